"""Steps that follow in the process that did the one before: the same run, with fewer messages and no claims."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import pytest

from agentq import Agent, Hooks, RunContext, tool
from agentq.engine import Engine
from agentq.errors import UnavailableError
from agentq.providers.scripted import Call, Scripted
from agentq.storage import leases, steps
from agentq.storage.database import Database
from agentq.storage.sql import Connection
from agentq.wire import StepMessage
from tests.engine.drain import Drain
from tests.engine.test_crashes import results

TURNS = 4


@tool(inline=True)
def look(n: int) -> str:
    """Look something up."""
    return f"found {n}"


@tool
def act(n: int) -> str:
    """Do something in a process of its own."""
    return f"did {n}"


def looker(*more: Any, **options: Any) -> Agent:
    script = [Call("look", {"n": n}) for n in range(TURNS)]
    return Agent("looker", model=Scripted([*script, "done"]), tools=[look, *more], **options)


def story(drain: Drain, agent: Agent) -> tuple[Any, ...]:
    """What is stored of a run of ``agent``, without what differs from run to run."""
    handle = drain.enqueue(agent)
    drain.work()
    own = {"ms", "worker"}
    events = [
        (event.type, {k: v for k, v in event.data.items() if k not in own}) for event in handle.events(follow=False)
    ]
    run = handle.run()
    return handle.messages(), events, run.status, run.seq, run.usage, run.model_calls, run.tool_calls


def test_a_run_in_one_process_is_the_same_as_one_by_messages(database: Database) -> None:
    by_message, local = (Drain(database, looker(), local_steps=steps) for steps in (0, 64))
    assert story(local, looker()) == story(by_message, looker())
    assert len(by_message.sent) == 2 * TURNS + 1
    assert len(local.sent) == 1


@pytest.mark.parametrize("local_steps", [1, 2, 3])
def test_no_more_steps_follow_than_is_allowed_before_others_get_their_turn(
    database: Database, local_steps: int
) -> None:
    drain = Drain(database, looker(), local_steps=local_steps)
    handle = drain.enqueue(looker())
    seen = []
    while drain.wake_ups:
        before = handle.run().seq
        drain.do(drain.wake_ups.pop(0))
        seen.append(handle.run().seq - before)
    assert handle.status() == "completed"
    assert set(seen[:-1]) == {local_steps + 1}


def test_a_process_that_may_not_go_on_hands_the_run_over_with_its_next_commit(database: Database) -> None:
    drain = Drain(database, looker(), local_steps=64)
    told: list[bool] = []
    drain.engine = Engine(replace(drain.engine.services, may_stay=lambda: not told))

    def probe(point: str, what: str) -> None:
        if (point, what) == ("claimed", "tools"):
            told.append(True)

    drain.engine = Engine(replace(drain.engine.services, probe=probe))
    handle = drain.enqueue(looker())
    drain.do(drain.wake_ups.pop(0))
    assert (handle.run().seq, handle.run().lease_until) == (2, None)
    assert [(wake_up.run_id, wake_up.seq) for wake_up in drain.wake_ups if isinstance(wake_up, StepMessage)] == [
        (handle.id, 2)
    ]


def test_a_tool_of_another_pool_is_sent_there(database: Database) -> None:
    test = Agent("test", model=Scripted([Call("look", {"n": 1}), Call("act", {"n": 2}), "done"]), tools=[look, act])
    drain = Drain(database, test, local_steps=64)
    handle = drain.enqueue(test)
    drain.work()
    assert [wake_up.queue for wake_up in drain.sent if isinstance(wake_up, StepMessage)] == [
        "agentq",
        "agentq.tools",
        "agentq",
    ]
    assert [result.text for result in results(handle)] == ["found 1", "did 2"]


def test_a_batch_of_inline_tools_runs_where_the_steps_run(database: Database) -> None:
    asked = [Call("look", {"n": n}) for n in range(3)]
    test = Agent("test", model=Scripted([asked, "done"]), tools=[look])
    drain = Drain(database, test, local_steps=64)
    handle = drain.enqueue(test)
    drain.do(drain.wake_ups.pop(0))
    (batch,) = drain.sent[1:]
    assert {lane.queue for lane in batch.lanes} == {"agentq"}  # type: ignore[union-attr]
    drain.work()
    assert [result.text for result in results(handle)] == ["found 0", "found 1", "found 2"]


def test_a_cancel_ends_the_run_with_the_next_commit(database: Database) -> None:
    cancelled: list[bool] = []

    class Cancels(Hooks):
        def after_tool(self, ctx: RunContext, result: Any) -> None:
            if not cancelled:
                cancelled.append(True)
                drain.client.handle(ctx.run_id).cancel()

    test = looker(hooks=[Cancels()])
    drain = Drain(database, test, local_steps=64)
    handle = drain.enqueue(test)
    drain.work()
    assert handle.status() == "cancelled"
    assert [result.text for result in results(handle)] == ["found 0"]


def test_the_time_limit_of_a_run_is_seen_between_steps(database: Database) -> None:
    class Slow(Hooks):
        def after_tool(self, ctx: RunContext, result: Any) -> None:
            with database.autocommit() as connection:
                past = "created_at = created_at - interval '1 minute'"
                connection.execute(f"update agentq.runs set {past} where id = '{ctx.run_id}'")

    test = looker(hooks=[Slow()], limits={"run_secs": 30})
    drain = Drain(database, test, local_steps=64)
    handle = drain.enqueue(test)
    drain.work()
    error = handle.run().error
    assert error is not None
    assert (error.code, error.details["limit"]) == ("limit_exceeded", "run_secs")
    assert len(results(handle)) == 1


def test_a_commit_whose_answer_was_lost_is_gone_on_from(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    drain = Drain(database, looker(), local_steps=64)
    real, lost = database.autocommit, iter([False, False, True])

    @contextmanager
    def autocommit() -> Iterator[Connection]:
        with real() as connection:
            yield connection
        if next(lost, False):
            raise UnavailableError("the connection was lost with the answer")

    handle = drain.enqueue(looker())
    # The claim, the read of the first message, the commit.
    monkeypatch.setattr(database, "autocommit", autocommit)
    drain.do(drain.wake_ups.pop(0))
    assert handle.status() == "completed"
    steps = [event.data["seq"] for event in handle.events(follow=False) if event.type == "step"]
    assert steps == list(range(2 * TURNS + 1))


@pytest.mark.parametrize("on_unknown", ["report", "retry"])
def test_a_process_that_stood_still_after_the_commit_does_not_begin_the_tool_late(
    database: Database, on_unknown: Any
) -> None:
    began: list[str] = []

    @tool(inline=True, on_unknown=on_unknown)
    def quick(ctx: RunContext) -> str:
        """Be quick."""
        began.append(str(ctx.idempotency_key))
        return "done"

    clock, stood_still = [0.0], []

    def probe(point: str, what: str) -> None:
        if (point, what) == ("claimed", "tools") and not stood_still:
            stood_still.append(True)
            drain.age(20)
            clock[0] += 20
            drain.sweep()

    test = Agent("test", model=Scripted([Call("quick"), "done"]), tools=[quick])
    drain = Drain(database, test, local_steps=64, probe=probe)
    drain.engine = Engine(replace(drain.engine.services, clock=lambda: clock[0]))
    handle = drain.enqueue(test)
    drain.do(drain.wake_ups.pop(0))
    assert began == []
    drain.work()
    assert handle.status() == "completed"
    assert len(began) == (1 if on_unknown == "retry" else 0)


def test_a_process_that_stood_still_after_the_commit_does_not_ask_the_model_for_what_others_have_asked(
    database: Database,
) -> None:
    asked: list[int] = []
    clock, stood_still = [0.0], []

    def answer(request: Any) -> str:
        asked.append(len(request.messages))
        return "done"

    def probe(point: str, what: str) -> None:
        if (point, what) == ("announced", "tools") and not stood_still:
            stood_still.append(True)
            drain.age(20)
            clock[0] += 20
            drain.sweep()
            drain.work()

    test = Agent("test", model=Scripted([Call("look", {"n": 1}), answer]), tools=[look])
    drain = Drain(database, test, local_steps=64, probe=probe)
    drain.engine = Engine(replace(drain.engine.services, clock=lambda: clock[0]))
    handle = drain.enqueue(test)
    drain.do(drain.wake_ups.pop(0))
    assert handle.status() == "completed"
    assert asked == [3]


def test_what_a_hook_sets_in_a_context_variable_is_not_seen_by_the_next_step(database: Database) -> None:
    seen: list[int] = []
    depth: ContextVar[int] = ContextVar("depth", default=0)

    class Counts(Hooks):
        def after_tool(self, ctx: RunContext, result: Any) -> None:
            seen.append(depth.get())
            depth.set(depth.get() + 1)

    test = looker(hooks=[Counts()])
    drain = Drain(database, test, local_steps=64)
    drain.enqueue(test)
    drain.work()
    assert seen == [0] * TURNS


def test_a_tool_late_in_a_stay_has_its_time_from_its_own_begin_on(database: Database) -> None:
    told: list[tuple[str | None, bool]] = []

    @tool(inline=True, timeout=60)
    def look_long(n: int, ctx: RunContext) -> str:
        """Look something up."""
        for hours in (0, 2) if n == 2 else ():
            with database.autocommit() as connection:
                # The stay began, and with ``hours`` this tool did too, longer ago than a tool may take.
                connection.execute("UPDATE agentq.runs SET claimed_at = now() - interval '2 hours'")
                connection.execute("UPDATE agentq.journal SET at = at - make_interval(hours => %s)", (hours,))
                before = connection.execute("SELECT lease_until FROM agentq.runs").scalar()
                due = leases.Due("run", ctx.run_id, 0, 0, "running", True)
                mine = [drain.engine.services.worker]
                hung = leases.keep(connection, due, mine=mine, lease_secs=3600, grace_secs=1)
                after = connection.execute("SELECT lease_until FROM agentq.runs").scalar()
                told.append((hung, after > before))
        return "found"

    script = [Call("look_long", {"n": n}) for n in range(TURNS)]
    drain = Drain(database, test := Agent("test", model=Scripted([*script, "done"]), tools=[look_long]), local_steps=64)
    drain.enqueue(test)
    drain.work()
    assert len(drain.sent) == 1
    assert told == [(None, True), (drain.engine.services.worker, False)]


@pytest.mark.parametrize("follows", [True, False])
def test_only_a_claim_can_be_forgotten_by_the_server_and_not_a_commit_that_kept_the_lease(
    database: Database, follows: bool
) -> None:
    drain = Drain(database, test := looker())
    handle = drain.enqueue(test)
    with database.autocommit() as connection:
        # A crash of the server lies between the run's last wake-up and what follows in its process.
        connection.execute("UPDATE agentq.runs SET due_at = '-infinity'")
        taken = steps.claim(connection, handle.id, 0, lease_secs=30, worker="w")
        assert taken is not None
        assert taken[0].forgotten
        steps.release(connection, replace(taken[0], follows=follows), patience_secs=5, forgive=True)
        again = steps.claim(connection, handle.id, 0, lease_secs=30, worker="w")
        assert again is not None
        assert again[0].forgotten is not follows
