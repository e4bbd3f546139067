"""Processes that die, messages that are lost or doubled: what is repeated and what is not (see test_crash_matrix)."""

from collections.abc import Callable
from typing import Any

import pytest

from agentq import Agent, Handle, RunContext, RunFailedError, ToolMessage, ToolResult, tool
from agentq.errors import UnavailableError
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from agentq.wire import BatchMessage, CallMessage, StepMessage
from tests.engine.drain import Died, Drain


class World:
    """Effects and model calls as the outside sees them."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.replies = 0

    def agent(self, *, idempotent: bool, calls: int) -> Agent:
        @tool(idempotent=idempotent)
        def act(n: int, ctx: RunContext) -> str:
            """Do something outside."""
            self.effects.append(ctx.idempotency_key)
            return f"did {n}"

        def count(answer: Any) -> Callable[[ModelRequest], Any]:
            def reply(request: ModelRequest) -> Any:
                self.replies += 1
                return answer

            return reply

        class Facts:
            def recall(self, ctx: RunContext, text: str) -> list[str]:
                return ["a fact"]

        asked = [Call("act", {"n": n}) for n in range(calls)]
        return Agent(
            "test",
            model=Scripted([count(asked), count("done")]),
            tools=[act],
            memory=Facts(),
        )


def die_once(point: str, phase: str) -> Callable[[str, str], None]:
    """A probe that kills the process the first time it comes to this point of this phase."""
    died: list[bool] = []

    def probe(at: str, what: str) -> None:
        if (at, what) == (point, phase) and not died:
            died.append(True)
            raise Died

    return probe


def work_through(drain: Drain, handle: Handle, *, rounds: int = 30) -> int:
    """Work and sweep until the run has ended, dying where the probe says; how often it died."""
    deaths = 0
    for _ in range(rounds):
        try:
            drain.work()
        except Died:
            deaths += 1
        if handle.run().is_terminal:
            return deaths
        for approval in drain.client.approvals():
            handle.approve(approval.call_id)
        # What the dead process held in memory is gone, and its lease runs out.
        drain.age(20)
        drain.sweep()
    raise AssertionError(f"the run stands still: {handle.run()}")


def results(handle: Handle) -> list[ToolResult]:
    return [message.result for message in handle.messages() if isinstance(message, ToolMessage)]


def test_a_wake_up_delivered_twice_does_nothing_the_second_time(database: Database) -> None:
    world = World()
    test = world.agent(idempotent=False, calls=3)
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    while drain.wake_ups:
        wake_up = drain.wake_ups.pop(0)
        drain.do(wake_up)
        if isinstance(wake_up, BatchMessage):
            drain.wake_ups.extend(wake_up.lanes)
        else:
            drain.do(wake_up)
    assert handle.result().text == "done"
    assert len(world.effects) == 3
    assert world.replies == 2


def test_lost_wake_ups_are_sent_again_by_the_sweep(database: Database) -> None:
    world = World()
    test = world.agent(idempotent=False, calls=3)
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    while not handle.run().is_terminal:
        drain.wake_ups.clear()
        drain.age(61)
        assert drain.sweep() > 0
        assert drain.wake_ups
        drain.do(drain.wake_ups.pop(0))
    assert handle.result().text == "done"
    assert (len(world.effects), world.replies) == (3, 2)


def test_a_fresh_wake_up_is_not_sent_twice(database: Database) -> None:
    drain = Drain(database, test := World().agent(idempotent=False, calls=1))
    drain.enqueue(test)
    assert drain.sweep() == 0


def test_two_sweeps_at_once_send_one_wake_up(database: Database) -> None:
    drain = Drain(database, test := World().agent(idempotent=False, calls=1))
    drain.enqueue(test)
    drain.age(11)
    drain.sent.clear()
    drain.sweep()
    drain.sweep()
    assert len(drain.sent) == 1


def test_a_step_whose_lease_went_to_somebody_else_writes_nothing(database: Database) -> None:
    world = World()
    other: list[Drain] = []

    @tool
    def stall() -> str:
        """Be stopped for longer than the lease, while another worker settles the call."""
        other[0].age(20)
        other[0].sweep()
        return "too late"

    test = Agent("test", model=Scripted([Call("stall", {}), "done"]), tools=[stall])
    drain = Drain(database, test)
    other.append(Drain(database, test))
    handle = drain.enqueue(test)
    drain.work()
    other[0].work()
    assert [result.code for result in results(handle)] == ["interrupted"]
    assert handle.result().text == "done"
    assert world.effects == []


def test_a_step_that_loses_its_worker_three_times_fails_the_run_as_crashed(database: Database) -> None:
    def kill(point: str, what: str) -> None:
        if (point, what) == ("claimed", "model"):
            raise Died

    drain = Drain(database, test := Agent("test", model=Scripted(["never"])), probe=kill)
    handle = drain.enqueue(test)
    assert work_through(drain, handle) == 3
    with pytest.raises(RunFailedError, match="3 times") as caught:
        handle.result()
    assert caught.value.code == "crashed"


def test_a_call_that_loses_its_worker_three_times_is_given_up_and_its_siblings_keep_their_results(
    database: Database,
) -> None:
    @tool(idempotent=True)
    def deadly() -> str:
        """Kill the process."""
        raise Died

    @tool
    def good(n: int) -> str:
        """Work."""
        return f"good {n}"

    asked = [Call("good", {"n": 1}), Call("deadly", {}), Call("good", {"n": 2})]
    drain = Drain(database, test := Agent("test", model=Scripted([asked, "done"]), tools=[deadly, good]))
    handle = drain.enqueue(test)
    assert work_through(drain, handle) == 3
    assert [result.code for result in results(handle)] == [None, "crashed", None]
    assert handle.result().text == "done"


def test_a_fault_of_the_step_itself_is_tried_three_times_and_then_fails_the_run(database: Database) -> None:
    def broken(request: ModelRequest) -> str:
        raise RuntimeError("bug in an adapter")

    drain = Drain(database, test := Agent("test", model=Scripted([broken])))
    handle = drain.enqueue(test)
    assert work_through(drain, handle) == 0
    with pytest.raises(RunFailedError, match="bug in an adapter") as caught:
        handle.result()
    assert caught.value.code == "internal_error"
    assert len([event for event in handle.events(follow=False) if event.type == "step.failed"]) == 2


def test_a_call_that_was_due_before_the_server_restarted_is_not_run_when_it_may_have_been(database: Database) -> None:
    """A claim waits for no fsync, so a crashing server may forget that an unsafe call was begun."""
    for idempotent, code in ((True, None), (False, "interrupted")):
        world = World()
        test = world.agent(idempotent=idempotent, calls=1)
        drain = Drain(database, test)
        handle = drain.enqueue(test)
        while handle.run().phase != "tools":
            drain.do(drain.wake_ups.pop(0))
        with database.transaction() as connection:
            connection.execute(
                "update agentq.runs set due_at = pg_stat_get_bgwriter_stat_reset_time() - interval '1 s'"
            )
        drain.work()
        assert [result.code for result in results(handle)] == [code]
        assert len(world.effects) == (1 if idempotent else 0)


def test_a_parent_that_was_not_told_of_its_child_is_told_by_the_sweep(database: Database) -> None:
    def die(point: str, what: str) -> None:
        if point == "committed" and what == "model" and not died and drain.client.runs(status="completed"):
            died.append(True)
            raise Died

    died: list[bool] = []
    helper = Agent("helper", model=Scripted(["two"]))
    boss = Agent("boss", model=Scripted([Call("helper", {"input": "x"}), "done"]), tools=[helper.as_tool()])
    drain = Drain(database, boss, probe=die)
    handle = drain.enqueue(boss)
    assert work_through(drain, handle) == 1
    assert [result.text for result in results(handle)] == ["two"]
    assert handle.result().text == "done"


def test_what_carries_a_batch_are_ids_only(database: Database) -> None:
    drain = Drain(database, test := World().agent(idempotent=True, calls=3))
    handle = drain.enqueue(test, "private text")
    drain.work()
    assert handle.result().text == "done"
    for sent in drain.sent:
        parts = [*sent.lanes, sent.body] if isinstance(sent, BatchMessage) else [sent]
        assert all(isinstance(part, StepMessage | CallMessage) and part.run_id == handle.id for part in parts)


def test_a_tool_whose_exception_cannot_be_printed_is_run_once(database: Database) -> None:
    ran: list[int] = []

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    @tool
    def mute() -> None:
        """Raise it."""
        ran.append(1)
        raise Mute

    for calls in (1, 3):
        ran.clear()
        drain = Drain(database, test := Agent("test", model=Scripted([[Call("mute")] * calls, "done"]), tools=[mute]))
        handle = drain.enqueue(test)
        drain.work()
        assert handle.result().text == "done"
        assert [(r.code, r.text) for r in results(handle)] == [("tool_failed", "Mute")] * calls
        assert len(ran) == calls


def test_a_cancelled_run_says_of_a_call_lost_with_its_worker_that_it_may_have_taken_effect(database: Database) -> None:
    for calls in (1, 3):
        world = World()
        test = world.agent(idempotent=True, calls=calls)
        drain = Drain(database, test, probe=die_once("effect", "tools" if calls == 1 else "call"))
        handle = drain.enqueue(test)
        with pytest.raises(Died):
            drain.work()
        handle.cancel()
        drain.age(20)
        drain.sweep()
        drain.work()
        assert handle.status() == "cancelled"
        assert [r.code for r in results(handle)] == ["interrupted"] + ["cancelled"] * (calls - 1)


def test_a_call_that_is_to_be_repeated_is_not_said_not_to_have_run_when_its_run_ends_before(database: Database) -> None:
    for calls in (1, 3):
        world = World()
        test = world.agent(idempotent=True, calls=calls)
        drain = Drain(database, test, probe=die_once("effect", "tools" if calls == 1 else "call"))
        handle = drain.enqueue(test)
        with pytest.raises(Died):
            drain.work()
        drain.age(20)
        drain.sweep()
        handle.cancel()
        assert handle.status() == "cancelled"
        assert len(world.effects) == 1
        assert [r.code for r in results(handle)] == ["interrupted"] + ["cancelled"] * (calls - 1)


def test_a_pool_that_ends_its_process_is_not_a_failure_of_the_tool(database: Database) -> None:
    ran: list[int] = []

    @tool
    def ended() -> None:
        """Be in the middle when billiard's handler of SIGTERM exits."""
        ran.append(1)
        raise SystemExit(-(256 - 15))

    drain = Drain(database, test := Agent("test", model=Scripted([Call("ended"), "done"]), tools=[ended]))
    handle = drain.enqueue(test)
    with pytest.raises(SystemExit):
        drain.work()
    assert work_through(drain, handle) == 0
    assert [result.code for result in results(handle)] == ["interrupted"]
    assert len(ran) == 1


@pytest.mark.parametrize("calls", [1, 3])
def test_a_broker_that_is_away_costs_a_wake_up_no_patience(database: Database, calls: int) -> None:
    world = World()
    drain = Drain(database, test := world.agent(idempotent=False, calls=calls))
    handle = drain.enqueue(test)
    others = [drain.enqueue(test) for _ in range(3)]
    while handle.run().phase != "tools" or not drain.wake_ups:
        drain.do(drain.wake_ups.pop(0))
    drain.wake_ups.clear()
    send, tries = drain.send, []

    def away(wake_up: Any) -> None:
        tries.append(wake_up)
        raise UnavailableError("no broker")

    drain.send = away  # type: ignore[method-assign]
    for _ in range(3):
        drain.age(61)
        drain.sweep()
    # One try a round is enough to know.
    assert len(tries) == 3
    drain.send = send  # type: ignore[method-assign]
    # Nothing is put off to a later minute.
    drain.sweep()
    drain.work()
    for each in (handle, *others):
        assert each.result().text == "done"
