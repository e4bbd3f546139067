"""Moments between two statements: a cancel, a claim, a deploy or a death that comes right there."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from agentq import (
    Agent,
    ConfigError,
    EndRun,
    Handle,
    Hooks,
    RunContext,
    RunFailedError,
    ToolMessage,
    UnavailableError,
    tool,
)
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.storage import calls, steps
from agentq.storage.database import Database
from agentq.storage.sql import Connection
from agentq.wire import BatchMessage, CallMessage
from tests.engine.drain import Died, Drain
from tests.waiting import eventually


@tool(idempotent=True)
def safe(n: int) -> str:
    """Do no harm when repeated."""
    return f"safe {n}"


@tool
def bad() -> None:
    """Fail."""
    raise RuntimeError("boom")


def results(handle: Handle) -> list[tuple[str | None, str]]:
    found = [message.result for message in handle.messages() if isinstance(message, ToolMessage)]
    return [(result.code, result.text) for result in found]


def goes_on(drain: Drain, handle: Handle) -> bool:
    """Whether the run ends by itself, given time."""
    for _ in range(15):
        drain.work()
        if handle.run().is_terminal:
            return True
        drain.age(70)
        drain.sweep()
    return False


def lanes(drain: Drain) -> tuple[CallMessage, ...]:
    """Work until the batch is open; its lanes, which are then in nobody's hands."""
    while not isinstance(drain.wake_ups[0], BatchMessage):
        drain.do(drain.wake_ups.pop(0))
    batch = drain.wake_ups.pop(0)
    assert isinstance(batch, BatchMessage)
    return batch.lanes


def before(patch: pytest.MonkeyPatch, module: Any, name: str, happens: Callable[[], object]) -> None:
    """Let something happen right before a statement, the first time it is made."""
    real, done = getattr(module, name), []

    def first(*args: Any, **kwargs: Any) -> Any:
        if not done:
            done.append(True)
            happens()
        return real(*args, **kwargs)

    patch.setattr(module, name, first)


def two_safe_calls() -> Agent:
    return Agent("test", model=Scripted([[Call("safe", {"n": 0}), Call("safe", {"n": 1})], "done"]), tools=[safe])


def test_a_cancel_between_take_over_and_rearm_ends_the_run(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    die: list[bool] = []

    def probe(point: str, what: str) -> None:
        if (point, what) == ("claimed", "call") and die:
            raise Died

    drain = Drain(database, test := two_safe_calls(), probe=probe)
    handle = drain.enqueue(test)
    first, second = lanes(drain)
    drain.do(first)
    die.append(True)
    with pytest.raises(Died):
        drain.do(second)
    die.clear()
    before(monkeypatch, calls, "rearm", handle.cancel)
    drain.age(20)
    drain.sweep()
    assert goes_on(drain, handle)
    assert handle.status() == "cancelled"


def test_a_cancel_while_a_call_is_handed_back_ends_the_run(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    drain = Drain(database, test := two_safe_calls())
    handle = drain.enqueue(test)
    first, second = lanes(drain)
    drain.do(first)
    before(monkeypatch, calls, "rearm", handle.cancel)
    drain.agents.clear()
    drain.do(second)
    drain.agents["test"] = test
    assert goes_on(drain, handle)
    assert handle.status() == "cancelled"


def test_a_cancelled_run_is_not_worked_on_when_its_step_is_given_back(database: Database) -> None:
    asked: list[bool] = []

    def reply(request: ModelRequest) -> str:
        asked.append(True)
        handle.cancel()
        raise RuntimeError("boom")

    drain = Drain(database, test := Agent("test", model=Scripted([reply])))
    handle = drain.enqueue(test)
    drain.work()
    assert handle.status() == "cancelled"
    assert len(asked) == 1


def test_a_cancelled_run_of_an_agent_nobody_has_ends(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    drain = Drain(database, test := Agent("test", model=Scripted(["done"])))
    handle = drain.enqueue(test)
    drain.agents.clear()
    before(monkeypatch, steps, "release", handle.cancel)
    drain.work()
    assert handle.status() == "cancelled"


def test_a_sibling_that_is_claimed_while_the_batch_ends_is_not_said_not_to_have_run(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    @tool
    def pay(ctx: RunContext) -> str:
        """Pay."""
        ran.append(ctx.idempotency_key)
        return "paid"

    test = Agent("test", model=Scripted([[Call("bad"), Call("pay")]]), tools=[bad, pay], on_tool_exception="fail")
    drain, other = Drain(database, test), Drain(database, test)
    handle = drain.enqueue(test)
    bad_lane, pay_lane = lanes(drain)
    racing = threading.Thread(target=other.do, args=(pay_lane,))
    claims_then_waits(monkeypatch, racing)
    drain.do(bad_lane)
    racing.join()
    assert handle.status() == "failed"
    said_not_to_have_run = results(handle)[1][0] == "cancelled"
    assert said_not_to_have_run == (ran == [])


def claims_then_waits(patch: pytest.MonkeyPatch, racing: threading.Thread) -> None:
    """Start a claim by somebody else right before the calls of an ending run are read."""
    real: Callable[[Connection, Any], Any] = calls.with_calls

    def with_calls(connection: Connection, snapshot: Any) -> Any:
        racing.start()
        # Either it claims at once, or it waits for the lock that ending the run has taken.
        racing.join(0.5)
        return real(connection, snapshot)

    patch.setattr(calls, "with_calls", with_calls)


def test_children_end_with_a_parent_whose_worker_died_right_after_its_last_commit(database: Database) -> None:
    def probe(point: str, what: str) -> None:
        if (point, what) == ("committed", "call"):
            raise Died

    child = Agent("child", model=Scripted([Call("safe", {"n": 0})]), tools=[safe], approve=["safe"])
    asked = [Call("child", {"input": "x"}), Call("bad")]
    test = Agent("test", model=Scripted([asked]), tools=[child.as_tool(), bad], on_tool_exception="fail")
    drain = Drain(database, test, probe=probe)
    handle = drain.enqueue(test)
    with pytest.raises(Died):
        drain.work()
    drain.work()
    assert handle.status() == "failed"
    drain.age(70)
    drain.sweep()
    assert {run.status for run in drain.client.runs(agent="child")} == {"cancelled"}


def test_at_most_eight_calls_are_out_when_sub_agents_end_beside_them(database: Database) -> None:
    child = Agent("child", model=Scripted(["x"]))
    asked = [Call("child", {"input": "x"})] * 8 + [Call("safe", {"n": n}) for n in range(24)]
    test = Agent("test", model=Scripted([asked, "done"]), tools=[child.as_tool(), safe])
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    waiting = []
    while drain.wake_ups:
        wake_up = drain.wake_ups.pop(0)
        if isinstance(wake_up, BatchMessage | CallMessage):
            waiting.append(wake_up)
        else:
            drain.do(wake_up)
    with database.autocommit() as connection:
        out = connection.execute("select count(*) from agentq.tool_calls where status = 'announced'").scalar()
    assert out == 8
    drain.wake_ups.extend(waiting)
    drain.work()
    assert handle.result().text == "done"


def test_handing_a_call_back_costs_no_attempt(database: Database) -> None:
    drain = Drain(database, test := two_safe_calls())
    handle = drain.enqueue(test)
    first, second = lanes(drain)
    drain.agents.clear()
    for _ in range(4):
        drain.do(first)
    drain.agents["test"] = test
    drain.do(second)
    assert goes_on(drain, handle)
    assert [code for code, _ in results(handle)] == [None, None]


def test_an_outage_before_a_step_was_begun_costs_no_attempt(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = steps.messages_after, [UnavailableError("Postgres restarts")] * 5

    def messages_after(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*args)

    monkeypatch.setattr(steps, "messages_after", messages_after)
    drain = Drain(database, test := Agent("test", model=Scripted(["done"])))
    handle = drain.enqueue(test)
    assert goes_on(drain, handle)
    assert handle.result().text == "done"


def test_a_run_of_a_newer_release_waits_for_it_and_holds_up_nobody(database: Database) -> None:
    newer = Agent("newer", model=Scripted(["done"]))
    other = Agent("other", model=Scripted(["fine"]))
    drain = Drain(database, newer, other)
    handle, beside = drain.enqueue(newer), drain.enqueue(other)
    save = "update agentq.runs set progress = %s where id = %s"
    with database.transaction() as connection:
        connection.execute(save, ('{"version":2}', handle.id))
    for _ in range(6):
        while drain.wake_ups:
            with suppress(ConfigError):
                drain.do(drain.wake_ups.pop(0))
        drain.age(70)
        drain.sweep()
    assert beside.result().text == "fine"
    assert [run.status for run in drain.client.runs(agent="newer")] == ["queued"]
    # The newer worker comes.
    with database.transaction() as connection:
        connection.execute(save, ('{"version":1}', handle.id))
    assert goes_on(drain, handle)
    assert handle.result().text == "done"


def test_a_limit_that_this_release_does_not_know_is_left_out(database: Database) -> None:
    drain = Drain(database, test := Agent("test", model=Scripted(["done"])))
    handle = drain.enqueue(test)
    with database.transaction() as connection:
        save = """update agentq.runs set progress = '{"version":1,"limits":{"model_calls":3,"later":5}}'"""
        connection.execute(save)
    drain.work()
    assert handle.result().text == "done"


def test_a_hook_that_hangs_at_the_end_holds_up_neither_a_worker_nor_the_sweep(database: Database) -> None:
    heard = threading.Event()
    release = threading.Event()

    class Hangs(Hooks):
        def on_end(self, ctx: RunContext, status: str) -> None:
            heard.set()
            release.wait(60)

    drain = Drain(database, test := Agent("test", model=Scripted(["done"]), hooks=[Hangs()]))
    handle = drain.enqueue(test)
    drain.work()
    assert handle.result().text == "done"
    assert heard.wait(10)
    release.set()


def test_a_hook_that_ends_a_run_which_has_ended_changes_nothing(database: Database) -> None:
    heard: list[str] = []

    class Ends(Hooks):
        def on_end(self, ctx: RunContext, status: str) -> None:
            heard.append(status)
            raise EndRun("x")

    drain = Drain(database, test := Agent("test", model=Scripted(["done"]), hooks=[Ends()]))
    assert drain.run(test).text == "done"
    assert eventually(lambda: heard) == ["completed"]


def test_a_sub_agent_that_a_deploy_took_away_is_an_unknown_tool(database: Database) -> None:
    child = Agent("child", model=Scripted(["x"]))
    script = Scripted([[Call("child", {"input": "x"}), Call("safe", {"n": 1})], "done"])
    drain = Drain(database, test := Agent("test", model=script, tools=[child.as_tool(), safe]))
    handle = drain.enqueue(test)
    drain.do(drain.wake_ups.pop(0))
    drain.agents["test"] = Agent("test", model=script, tools=[safe])
    assert goes_on(drain, handle)
    assert [code for code, _ in results(handle)] == ["unknown_tool", None]
    assert handle.result().text == "done"


@pytest.mark.parametrize("text", ["\udc80", "a\x00b", None], ids=["surrogate", "nul", "none at all"])
def test_an_error_of_a_step_is_stored_whatever_its_text_is(
    database: Database, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    # The runner's processes cannot hand over a log with half a character in it.
    caplog.set_level(logging.CRITICAL, logger="agentq.engine")

    class OddError(Exception):
        def __str__(self) -> str:
            if text is None:
                raise RuntimeError("no text")
            return text

    def reply(request: ModelRequest) -> str:
        raise OddError

    drain = Drain(database, test := Agent("test", model=Scripted([reply])))
    handle = drain.enqueue(test)
    assert goes_on(drain, handle)
    with pytest.raises(RunFailedError) as caught:
        handle.result()
    assert caught.value.code == "internal_error"


def test_a_backlog_does_not_stand_before_lost_work(database: Database) -> None:
    drain = Drain(database, test := Agent("test", model=Scripted(["done"])), lease_secs=2)
    handle = drain.enqueue(test)
    with database.autocommit() as connection:
        assert steps.claim(connection, handle.id, 0, lease_secs=0, worker="dead")
    with database.transaction() as connection:
        connection.execute("""
            insert into agentq.runs (id, agent, status, phase, seq, turn, depth, progress, context, tags, queue,
                                     due_at, sweep_at, sweep_look_at, message_count, event_count)
            select 'run_b' || g, 'test', 'queued', 'recall', 0, 0, 0, '{"version":1}', '{}', '{}', 'agentq',
                   now() - interval '6 s', now() - interval '1 s', now() - interval '1 s', 1, 1
            from generate_series(1, 1000) g
        """)
    drain.wake_ups.clear()
    drain.sweep()
    assert handle.id in {wake_up.run_id for wake_up in drain.wake_ups if not isinstance(wake_up, BatchMessage)}
