"""O3: hooks and memories that raise or hang are on record, the run goes on, and no finished tool runs again."""

import threading
from typing import Any

import pytest

from agentq import Agent, Hooks, RunContext, tool
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.cases.stored import assert_over, assert_strict_and_clean, results
from tests.engine.drain import Drain
from tests.engine.moments import Does
from tests.waiting import eventually
from tests.workers.fleet import Fleet

MOMENTS = ("before_model", "after_model", "before_tool", "after_tool")


@pytest.fixture
def free() -> Any:
    """Lets go what hangs, at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def fails() -> None:
    raise RuntimeError("the customer's secret")


class FailsOnce:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == 1:
            fails()


def run(database: Database, calls: int, *hooks: Hooks, **more: Any) -> tuple[list[list[str]], list[int], list[str]]:
    """The faults on record, which calls ran, and what the model was told of them. The run ends as if nothing was."""
    ran: list[int] = []

    @tool(idempotent=True)
    def pay(n: int) -> str:
        """Pay."""
        ran.append(n)
        return f"paid {n}"

    script = [[Call("pay", {"n": n}) for n in range(calls)], "done"]
    drain = Drain(database, test := Agent("test", model=Scripted(script), tools=[pay], hooks=hooks, **more))
    handle = drain.enqueue(test)
    drain.work()
    assert handle.result().text == "done"
    assert_over(database, handle)
    assert_strict_and_clean(database)
    events = list(handle.events(follow=False))
    assert "secret" not in str([event.data for event in events])
    assert not [event for event in events if event.type in ("step.failed", "step.recovered")]
    assert all(event.data.get("attempt", 1) == 1 for event in events)
    return (
        [event.data["faults"] for event in events if "faults" in event.data],
        ran,
        [result.text for result in results(handle)],
    )


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_hook_that_always_raises_changes_nothing_and_is_noted_each_time(
    database: Database, moment: str, calls: int
) -> None:
    faults, ran, told = run(database, calls, Does(moment, fails))
    assert faults == [["Does: RuntimeError"]] * (2 if "model" in moment else calls)
    assert sorted(ran) == list(range(calls))
    assert told == [f"paid {n}" for n in range(calls)]


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_hook_that_raises_once_is_noted_once(database: Database, moment: str, calls: int) -> None:
    faults, ran, told = run(database, calls, Does(moment, FailsOnce()))
    assert faults == [["Does: RuntimeError"]]
    assert sorted(ran) == list(range(calls))
    assert told == [f"paid {n}" for n in range(calls)]


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_hook_that_hangs_is_left_behind_and_noted(
    database: Database, free: threading.Event, moment: str, calls: int
) -> None:
    faults, ran, told = run(database, calls, Does(moment, free.wait), hook_timeout_secs=0.1)
    assert faults == [["Does: no answer within 0.1 s"]] * (2 if "model" in moment else calls)
    assert sorted(ran) == list(range(calls))
    assert told == [f"paid {n}" for n in range(calls)]


def memory(database: Database, recall: Any, **more: Any) -> tuple[list[list[str]], str]:
    """The faults on record, and the instructions that the model was given."""

    class Store:
        def recall(self, ctx: RunContext, text: str) -> Any:
            return recall()

    seen: list[ModelRequest] = []
    model = Scripted([lambda request: seen.append(request) or "done"])
    drain = Drain(database, test := Agent("test", model=model, memory=Store(), **more))
    handle = drain.enqueue(test)
    drain.work()
    assert handle.result().text == "done"
    assert_strict_and_clean(database)
    return [event.data["faults"] for event in handle.events(follow=False) if "faults" in event.data], seen[
        0
    ].instructions


def test_a_store_that_raises_leaves_the_run_without_facts_and_says_so(database: Database) -> None:
    assert memory(database, fails) == ([["memory: RuntimeError"]], "")


def test_a_store_that_hangs_leaves_the_run_without_facts_and_says_so(database: Database, free: threading.Event) -> None:
    def late() -> Any:
        free.wait()
        yield "too late"

    for hangs in (free.wait, late):
        faults, instructions = memory(database, hangs, hook_timeout_secs=0.1)
        assert (faults, instructions) == ([["memory: no answer within 0.1 s"]], "")


def test_text_of_a_store_that_nobody_can_store_is_cleaned(database: Database) -> None:
    faults, instructions = memory(database, lambda: ["a\x00b", "c\ud800d"])
    assert (faults, instructions) == ([], "What you remember:\n- a\ufffdb\n- c\ufffdd")


# ---------------------------------------------------------------------------------------------- on real workers


@pytest.mark.crash
def test_on_real_workers_faults_are_noted_and_tools_run_once(workers: Fleet) -> None:
    workers.both(concurrency=4)
    for name, calls in (("fails_once", 1), ("fails_once_beside", 3)):
        (workers.folder / "failed").unlink(missing_ok=True)
        before = len(workers.calls("note"))
        handle = workers.client.enqueue(name, "go")
        assert handle.wait(60).text == "done"
        faults = [event.data["faults"] for event in handle.events(follow=False) if "faults" in event.data]
        # Beside each other, more than one may have come before the file was there.
        assert faults[0] == ["FailsOnce: RuntimeError"]
        assert len(workers.calls("note")) - before == calls
        assert_over(workers.database, handle)
    handle = workers.client.enqueue("fails_always", "go")
    assert handle.wait(60).text == "done"
    faults = [event.data["faults"] for event in handle.events(follow=False) if "faults" in event.data]
    assert faults == [["FailsBeforeModel: RuntimeError"]] * 2
    assert_over(workers.database, handle)


@pytest.mark.crash
@pytest.mark.long
def test_on_real_workers_hooks_that_hang_block_no_step_and_lose_no_lease(workers: Fleet) -> None:
    """Each hangs for longer than its lease: seven times in all, in one thread and one process."""
    workers.both(concurrency=1)
    handle = workers.client.enqueue("hooks_hang", "go")
    # Far from seven times 120 s.
    assert handle.wait(100).text == "done"
    events = list(handle.events(follow=False))
    faults = [event.data["faults"] for event in events if "faults" in event.data]
    late = "HangsEverywhere: no answer within 3 s"
    assert faults == [[late] * 2] * 3
    assert not [event for event in events if event.type in ("step.failed", "step.recovered")]
    assert len(workers.calls("note")) == 1
    # Both workers go on, while what hangs is still hanging.
    assert workers.client.enqueue("quick", "go").wait(60).text == "done"
    eventually(lambda: any(call["name"] == "on_end" for call in workers.calls("hang")))
    assert workers.calls("woke") == []
    assert_over(workers.database, handle)


@pytest.mark.crash
def test_on_real_workers_a_memory_that_fails_is_done_without(workers: Fleet) -> None:
    workers.both(concurrency=2)
    expected = {
        "memory_down": ("no facts", [["memory: ConnectionError"]]),
        "memory_hangs": ("no facts", [["memory: no answer within 3 s"]]),
        "memory_nul": ("What you remember:\n- likes\ufffdtea \ufffd", []),
    }
    handles = {name: workers.client.enqueue(name, "go") for name in expected}
    for name, handle in handles.items():
        text = handle.wait(60).text
        faults = [event.data["faults"] for event in handle.events(follow=False) if "faults" in event.data]
        assert (text, faults) == expected[name]


@pytest.mark.crash
def test_on_real_workers_hooks_hear_of_a_cancel_by_a_producer_without_the_agents(workers: Fleet) -> None:
    workers.both(concurrency=1)
    # Nobody is at it: it waits for a person.
    handle = workers.client.enqueue("waits", "go")
    handle.wait(60)
    assert workers.client.agents == {}
    assert handle.cancel() == "cancelled"
    heard = eventually(lambda: workers.calls("end"), what="a worker tells the hooks")
    assert [(call["run"], call["status"]) for call in heard] == [(handle.id, "cancelled")]
    assert_over(workers.database, handle)
    assert len(workers.calls("end")) == 1
