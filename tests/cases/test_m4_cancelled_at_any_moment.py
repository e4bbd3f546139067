"""M4: a cancel at any moment ends the run once, as cancelled or as completed; what came back is kept, no more."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agentq import Agent, ApprovalNotPendingError, RunContext, tool
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted, Step
from agentq.storage import commits, control
from agentq.storage.database import Database
from agentq.storage.sql import Connection
from tests.cases.scene import Scene
from tests.cases.stored import codes, results
from tests.engine.drain import Died


class Facts:
    def recall(self, ctx: RunContext, text: str) -> list[str]:
        return ["a fact"]


@tool
def act(n: int) -> str:
    """Act."""
    return f"did {n}"


def asking(calls: int) -> list[Step]:
    return [[Call("act", {"n": n}) for n in range(calls)], "done"]


def scene(database: Database, calls: int, *, gated: bool = False, **options: Any) -> Scene:
    approve = ["act"] if gated else []
    return Scene(database, asking(calls), tools=[act], memory=Facts(), approve=approve, **options)


# ---------------------------------------------------------------------------------------------- at every place

POINTS = ("claimed", "effect", "committed", "announced")
# A single call is run by the tools step itself; a lane has no point of its own after its commit.
PLACES = [
    (point, phase, calls) for point in POINTS for phase in ("recall", "model", "review", "tools") for calls in (1, 3)
]
PLACES += [(point, "call", 3) for point in POINTS[:3]]


@pytest.mark.parametrize(("point", "phase", "calls"), PLACES)
def test_at_any_point_of_any_step(database: Database, point: str, phase: str, calls: int) -> None:
    asked: list[str] = []

    def probe(at: str, what: str) -> None:
        if (at, what) == (point, phase) and not asked:
            asked.append(found.handle.cancel())

    found = scene(database, calls, gated=phase == "review", probe=probe)
    assert found.settle() == "cancelled"
    assert len(asked) == 1
    # What had come back by then is kept, whatever was not begun is closed.
    came_back = codes(found.handle)
    assert set(came_back) <= {None, "cancelled"}
    ran = (phase == "call" and point in ("claimed", "effect", "committed")) or (phase == "tools" and calls == 1)
    assert came_back.count(None) == (1 if ran else 0)
    found.goes_on()


@pytest.mark.parametrize(("point", "phase", "calls"), PLACES)
def test_when_the_worker_has_died_at_that_point(database: Database, point: str, phase: str, calls: int) -> None:
    died: list[bool] = []

    def probe(at: str, what: str) -> None:
        if (at, what) == (point, phase) and not died:
            died.append(True)
            raise Died

    found = scene(database, calls, gated=phase == "review", probe=probe)
    with pytest.raises(Died):
        found.drain.work()
    found.drain.wake_ups.clear()
    found.handle.cancel()
    assert found.settle() == "cancelled"
    in_progress = (phase == "call" or (phase == "tools" and calls == 1)) and point in ("claimed", "effect")
    assert codes(found.handle).count("interrupted") == (1 if in_progress else 0)
    found.goes_on()


@pytest.mark.parametrize("gated", [False, True], ids=["free", "gated"])
@pytest.mark.parametrize("calls", [1, 3])
def test_between_any_two_messages(database: Database, calls: int, gated: bool) -> None:
    before = 0
    while True:
        with database.transaction() as connection:
            connection.execute("truncate agentq.runs, agentq.threads cascade")
        found = scene(database, calls, gated=gated)
        for _ in range(before):
            if not found.drain.wake_ups:
                break
            found.drain.do(found.drain.wake_ups.pop(0))
        if not gated and found.handle.status() == "completed":
            break
        assert found.handle.cancel() == "cancelled"
        for approval in found.drain.client.approvals(run_id=found.handle.id, status=None):
            with pytest.raises(ApprovalNotPendingError, match="closed"):
                found.handle.approve(approval.call_id)
        assert found.settle() == "cancelled"
        found.goes_on()
        if found.handle.run().model_calls and gated:
            break
        before += 1
    assert before > 1


# ---------------------------------------------------------------------------------------------- the final commit


def test_a_cancel_that_comes_before_the_final_commit_wins_and_the_answer_is_kept(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Scene(database, ["done"])
    real = commits.commit

    def commit(connection: Connection, *args: Any, **options: Any) -> float:
        if not options.get("even_if_cancelled"):
            found.handle.cancel()
        return real(connection, *args, **options)

    monkeypatch.setattr(commits, "commit", commit)
    found.drain.work()
    monkeypatch.undo()
    assert found.settle() == "cancelled"
    assert [message.role for message in found.handle.messages()] == ["user", "assistant"]
    found.goes_on()


def test_a_cancel_that_holds_the_run_when_the_final_commit_comes_wins(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, saving = control.ask_cancel, threading.Event()

    def ask_cancel(connection: Connection, run_id: str) -> None:
        real(connection, run_id)
        # The step goes on to its commit now, and waits there for this transaction.
        saving.set()
        working.join(0.5)

    def probe(point: str, what: str) -> None:
        if point == "effect" and not saving.is_set():
            cancelling.start()
            assert saving.wait(10)

    monkeypatch.setattr(control, "ask_cancel", ask_cancel)
    found = Scene(database, ["done"], probe=probe)
    cancelling = threading.Thread(target=found.handle.cancel)
    working = threading.Thread(target=found.drain.work)
    working.start()
    working.join(30)
    cancelling.join(30)
    assert found.settle() == "cancelled"
    found.goes_on()


def test_a_final_commit_that_was_there_when_a_cancel_comes_wins(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Scene(database, ["done"])
    real, said = commits.commit, []

    def commit(*args: Any, **options: Any) -> float:
        age_secs = real(*args, **options)
        said.append(found.handle.cancel())
        return age_secs

    monkeypatch.setattr(commits, "commit", commit)
    found.drain.work()
    monkeypatch.undo()
    assert said == ["completed"]
    assert found.settle() == "completed"
    assert found.handle.result().text == "done"
    found.goes_on()


def test_a_run_that_has_ended_stays_as_it_is(database: Database) -> None:
    found = Scene(database, ["done"])
    found.drain.work()
    assert [found.handle.cancel() for _ in range(2)] == ["completed", "completed"]
    assert found.settle() == "completed"
    found.goes_on()


# ---------------------------------------------------------------------------------------------- by several people


@pytest.mark.parametrize("at_work", [False, True])
def test_by_two_people_one_after_the_other(database: Database, at_work: bool) -> None:
    def reply(request: ModelRequest) -> str:
        if at_work:
            assert [found.handle.cancel() for _ in range(2)] == ["running", "running"]
        return "done"

    found = Scene(database, [reply])
    if not at_work:
        assert [found.handle.cancel() for _ in range(2)] == ["cancelled", "cancelled"]
    assert found.settle() == "cancelled"
    found.goes_on()


@pytest.mark.parametrize("at_work", [False, True])
def test_by_eight_people_at_once(database: Database, at_work: bool) -> None:
    start = threading.Barrier(8)

    def cancel() -> None:
        start.wait(30)
        found.handle.cancel()

    def all_cancel() -> None:
        people = [threading.Thread(target=cancel) for _ in range(8)]
        for person in people:
            person.start()
        for person in people:
            person.join(30)

    def reply(request: ModelRequest) -> str:
        if at_work:
            all_cancel()
        return "done"

    found = Scene(database, [reply])
    if not at_work:
        all_cancel()
    assert found.settle() == "cancelled"
    found.goes_on()


def test_by_one_while_another_approves(database: Database) -> None:
    for _ in range(5):
        with database.transaction() as connection:
            connection.execute("truncate agentq.runs, agentq.threads cascade")
        found = scene(database, 1, gated=True)
        found.drain.work()
        (approval,) = found.handle.result().approvals
        refused: list[str] = []

        def approve(found: Scene = found, call_id: str = approval.call_id, refused: list[str] = refused) -> None:
            try:
                found.handle.approve(call_id)
            except ApprovalNotPendingError as error:
                refused.append(str(error))

        approving = threading.Thread(target=approve)
        approving.start()
        found.handle.cancel()
        approving.join(30)
        assert found.settle() == "cancelled"
        assert codes(found.handle) == ["cancelled"]
        found.goes_on()


# ---------------------------------------------------------------------------------------------- in the middle of a tool


async def obeys(started: Callable[[], object]) -> None:
    started()
    await asyncio.sleep(60)


async def cleans_up(started: Callable[[], object]) -> None:
    started()
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.05)


async def swallows(started: Callable[[], object]) -> str:
    started()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "never heard of it"
    return "never"


async def swallows_for_ever(started: Callable[[], object]) -> None:
    started()
    end = asyncio.get_running_loop().time() + 3
    while (left := end - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


async def raises_something_else(started: Callable[[], object]) -> None:
    started()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError as error:
        raise RuntimeError("not now") from error


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize(
    "body", [obeys, cleans_up, swallows, swallows_for_ever, raises_something_else], ids=lambda body: body.__name__
)
def test_during_an_async_tool_which_is_told_and_not_waited_for(
    database: Database, body: Callable[[Callable[[], object]], Any], calls: int
) -> None:
    @tool
    async def wait() -> Any:
        """Wait."""
        return await body(lambda: threading.Thread(target=found.handle.cancel).start())

    asked = [Call("wait"), *[Call("act", {"n": n}) for n in range(calls - 1)]]
    found = Scene(database, [asked, "done"], tools=[wait, act], lease_secs=1.0)
    found.drain.work()
    assert found.settle() == "cancelled"
    assert codes(found.handle) == ["cancelled"] * calls
    assert "may or may not have taken effect" in results(found.handle)[0].text
    found.goes_on()


@pytest.mark.parametrize("outcome", ["value", "error", "timeout"])
@pytest.mark.parametrize("calls", [1, 3])
def test_during_a_sync_tool_whose_outcome_is_kept(database: Database, calls: int, outcome: str) -> None:
    @tool(timeout=0.3)
    def work() -> str:
        """Work."""
        assert found.handle.cancel() == "running"
        if outcome == "error":
            raise RuntimeError("broken")
        if outcome == "timeout":
            threading.Event().wait()
        return "finished"

    asked = [Call("act", {"n": 0}), Call("work"), Call("act", {"n": 2})] if calls == 3 else [Call("work")]
    found = Scene(database, [asked, "done"], tools=[work, act])
    assert found.settle() == "cancelled"
    code = {"value": None, "error": "tool_failed", "timeout": "timeout"}[outcome]
    assert codes(found.handle) == ([None, code, "cancelled"] if calls == 3 else [code])
    found.goes_on()


def test_while_two_calls_run_the_one_that_comes_back_is_kept_and_the_other_is_unknown(database: Database) -> None:
    both = threading.Barrier(2)

    @tool
    def first() -> str:
        """Come back first."""
        both.wait(30)
        found.handle.cancel()
        return "first"

    @tool
    def second() -> str:
        """Come back when the run has ended."""
        both.wait(30)
        lane.join(30)
        return "second"

    found = Scene(database, [[Call("first"), Call("second"), Call("first")], "done"], tools=[first, second])
    found.drain.do(found.drain.wake_ups.pop(0))
    found.drain.do(found.drain.wake_ups.pop(0))
    batch = found.drain.wake_ups.pop(0)
    lanes = batch.lanes  # type: ignore[union-attr]
    lane = threading.Thread(target=found.drain.do, args=(lanes[0],))
    lane.start()
    found.drain.do(lanes[1])
    found.drain.do(lanes[2])
    assert found.settle() == "cancelled"
    assert codes(found.handle) == [None, "interrupted", "cancelled"]
    found.goes_on()


# ---------------------------------------------------------------------------------------------- sub-agents


@pytest.mark.parametrize("where", ["queued", "in its model call", "in its tool", "waiting"])
@pytest.mark.parametrize("deep", [1, 2])
def test_of_a_parent_ends_the_sub_agents_wherever_they_are(database: Database, where: str, deep: int) -> None:
    def cancel() -> str:
        if where.startswith("in its"):
            found.handle.cancel()
        return "done"

    @tool
    def act() -> str:
        """Act."""
        return cancel()

    @tool
    def other() -> str:
        """Do something else."""
        return "other"

    def reply(request: ModelRequest) -> Any:
        if where == "in its model call":
            cancel()
        return [Call("act")]

    bottom = Agent("bottom", model=Scripted([reply, "x"]), tools=[act], approve=["act"] if where == "waiting" else [])
    middle = Agent("middle", model=Scripted([[Call("bottom", {"input": "x"})], "x"]), tools=[bottom.as_tool()])
    child = bottom if deep == 1 else middle
    asked = [Call(child.name, {"input": "x"}), Call("other")]
    others = [bottom] if deep == 1 else [bottom, middle]
    found = Scene(database, [asked, "done"], *others, tools=[child.as_tool(), other])
    if where == "queued":
        while not found.drain.client.runs(agent="bottom"):
            found.drain.do(found.drain.wake_ups.pop(0))
        found.handle.cancel()
    elif where == "waiting":
        found.drain.work()
        found.handle.cancel()
    assert found.settle() == "cancelled"
    assert {run.status for run in found.drain.client.runs()} == {"cancelled"}
    # It may have done a lot: nobody says that it did not run.
    assert "Not run" not in results(found.handle)[0].text
    assert sorted(found.ends) == sorted(f"{other.name} cancelled" for other in (found.agent, *others))
    found.goes_on()
