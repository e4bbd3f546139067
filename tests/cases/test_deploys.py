"""Calls that wait while a deploy changes their tools, and runs whose agent changes: each has its one right result."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from agentq import Agent, ApprovalRule, Deferred, Handle, Happened, NotHappened, RunContext, ThreadBusyError, tool
from agentq.agent import OnChange
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from agentq.wire import BatchMessage
from tests.cases.stored import assert_every_call_is_answered_once, assert_over, codes, results
from tests.engine.drain import Died, Drain

did: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> Iterator[None]:
    did.clear()
    yield
    did.clear()


def pay(**options: Any) -> Any:
    @tool(name="pay", **options)
    def pay(order: str, amount: float = 0, ctx: RunContext | None = None) -> str:
        """Pay."""
        did.append(f"paid {order} {amount:g}")
        return "paid"

    return pay


@tool
def look(n: int = 0) -> str:
    """Look."""
    did.append(f"looked {n}")
    return "seen"


@tool
def pay_back(order: str, amount: float = 0) -> str:
    """The tool that a careless resolver would take for the one that is gone."""
    did.append("the wrong tool")
    return "wrong"


HELPER = Agent("pay", model=Scripted(["an agent answered"]), description="Pay.")
ONE = [Call("pay", {"order": "7", "amount": 80}, id="call_0")]
TWO = [*ONE, Call("look", {"n": 1}, id="call_1")]
Shape = tuple[str, list[Call]]
SHAPES: list[Shape] = [("alone", ONE), ("in a batch", TWO)]
shapes = pytest.mark.parametrize("calls", [calls for _, calls in SHAPES], ids=[name for name, _ in SHAPES])


def agent(calls: list[Call], *tools: Any, **more: Any) -> Agent:
    return Agent("test", model=Scripted([calls, "done"]), tools=[*tools, look], **more)


@dataclass
class Change:
    """A run under way with old code, and workers with the new one on the same queue."""

    database: Database
    old: Drain
    handle: Handle

    @classmethod
    def under_way(cls, database: Database, old: Agent, **options: Any) -> "Change":
        """Its calls are asked for, and none is begun."""
        drain = Drain(database, old)
        handle = drain.enqueue(old, **options)
        drain.do(drain.wake_ups.pop(0))
        return cls(database, drain, handle)

    def fan_out(self) -> None:
        self.old.do(self.old.wake_ups.pop(0))
        assert isinstance(self.old.wake_ups[0], BatchMessage)
        self.old.do(self.old.wake_ups.pop(0))

    def to(self, new: Agent) -> Drain:
        drain = Drain(self.database, new)
        drain.wake_ups = self.old.wake_ups
        return drain

    def first(self) -> Any:
        return results(self.handle)[0]


# ---------------------------------------------------------------------------------------------- a tool that is gone


@dataclass(frozen=True)
class Gone:
    """What the new code has in the place of the tool."""

    tools: Callable[[], list[Any]]
    listed: str


GONE = {
    "taken away": Gone(list, "look"),
    "renamed": Gone(lambda: [pay_back], "pay_back, look"),
    "an agent's now": Gone(lambda: [HELPER.as_tool()], "pay, look"),
}


@pytest.mark.parametrize("gone", GONE.values(), ids=GONE)
@shapes
def test_a_call_whose_tool_is_gone_says_which_there_are_and_reaches_no_other_function(
    database: Database, calls: list[Call], gone: Gone
) -> None:
    change = Change.under_way(database, agent(calls, pay()))
    if len(calls) > 1:
        change.fan_out()
    change.to(agent(calls, *gone.tools())).work()
    assert change.handle.result().text == "done"
    first = change.first()
    assert (first.code, first.name) == ("unknown_tool", "pay")
    assert first.text == f"There is no tool 'pay' any more. The tools are: {gone.listed}."
    assert did == (["looked 1"] if len(calls) > 1 else [])
    assert_every_call_is_answered_once(change.handle)
    assert_over(database, change.handle)


def test_a_call_of_an_agent_that_is_a_function_now_does_not_reach_it(database: Database) -> None:
    asked = [Call("pay", {"input": "x"}, id="call_0"), TWO[1]]
    change = Change.under_way(database, agent(asked, HELPER.as_tool()))
    change.to(agent(asked, pay())).work()
    assert codes(change.handle) == ["unknown_tool", None]
    assert did == ["looked 1"]
    assert_over(database, change.handle)


@pytest.mark.parametrize("on_change", ["continue", "hold", "fail"])
def test_no_mode_gives_a_call_to_another_function(database: Database, on_change: OnChange) -> None:
    change = Change.under_way(database, agent(TWO, pay()))
    change.fan_out()
    change.to(agent(TWO, pay_back, on_change=on_change)).work()
    assert "the wrong tool" not in did


def lost(change: Change) -> None:
    """A worker with the old code begins the call, and is lost in it."""

    def probe(point: str, _: str) -> None:
        if point == "effect":
            raise Died

    dying = Drain(change.database, change.old.client.agents["test"], probe=probe)  # type: ignore[arg-type]
    with suppress(Died):
        dying.do(change.old.wake_ups.pop(0))
    assert did == ["paid 7 80"]
    change.old.age(20)
    change.old.sweep()


@shapes
def test_a_call_that_may_have_run_before_its_tool_went_is_not_said_to_be_undone(
    database: Database, calls: list[Call]
) -> None:
    change = Change.under_way(database, agent(calls, pay(idempotent=True)))
    if len(calls) > 1:
        change.fan_out()
    lost(change)
    change.to(agent(calls)).work()
    first = change.first()
    assert first.code == "interrupted"
    assert "may or may not have taken effect" in first.text
    assert "There is no tool 'pay' any more. The tools are: look." in first.text


@shapes
def test_a_call_that_may_have_run_before_its_parameters_changed_is_not_said_to_be_undone(
    database: Database, calls: list[Call]
) -> None:
    @tool(name="pay", idempotent=True)
    def stricter(order: str, amount: float, currency: str) -> str:
        """Pay."""
        raise AssertionError

    change = Change.under_way(database, agent(calls, pay(idempotent=True)))
    if len(calls) > 1:
        change.fan_out()
    lost(change)
    change.to(agent(calls, stricter)).work()
    assert change.first().code == "interrupted"
    assert "currency: required" in change.first().text


# ---------------------------------------------------------------------------------------------- other parameters


@tool(name="pay")
def with_currency(order: str, amount: float, currency: str) -> str:
    """Pay."""
    did.append("paid without asking")
    return "paid"


@tool(name="pay")
def with_default(order: str, amount: float, currency: str = "EUR") -> str:
    """Pay, in some currency."""
    did.append(f"paid {order} {amount:g} {currency}")
    return "paid"


@shapes
def test_arguments_are_checked_again_against_the_parameters_there_are(database: Database, calls: list[Call]) -> None:
    change = Change.under_way(database, agent(calls, pay()))
    if len(calls) > 1:
        change.fan_out()
    change.to(agent(calls, with_currency)).work()
    assert change.first().code == "invalid_arguments"
    assert "currency: required" in change.first().text
    assert "paid without asking" not in did
    assert_over(database, change.handle)


@shapes
def test_a_new_parameter_with_a_default_takes_it(database: Database, calls: list[Call]) -> None:
    change = Change.under_way(database, agent(calls, pay()))
    change.to(agent(calls, with_default)).work()
    assert did[0] == "paid 7 80 EUR"
    assert change.handle.result().text == "done"


@pytest.mark.parametrize("was_safe", [True, False])
@shapes
def test_whether_a_call_may_run_again_was_said_when_it_was_asked_for(
    database: Database, calls: list[Call], was_safe: bool
) -> None:
    change = Change.under_way(database, agent(calls, pay(idempotent=was_safe)))
    if len(calls) > 1:
        change.fan_out()
    lost(change)
    new = change.to(agent(calls, pay(idempotent=not was_safe)))
    for _ in range(3):
        new.work()
        new.age(20)
        new.sweep()
    assert change.handle.result().text == "done"
    assert did.count("paid 7 80") == (2 if was_safe else 1)
    assert change.first().code == (None if was_safe else "interrupted")


def test_a_probe_that_is_gone_leaves_the_outcome_unknown(database: Database) -> None:
    def find(order: str) -> Happened | NotHappened:
        return NotHappened()

    change = Change.under_way(database, agent(ONE, pay(on_unknown=find)))
    lost(change)
    change.to(agent(ONE, pay())).work()
    assert change.first().code == "interrupted"
    assert did == ["paid 7 80"]


# ---------------------------------------------------------------------------------------------- people


def waiting(database: Database, calls: list[Call], **more: Any) -> Change:
    change = Change.under_way(database, agent(calls, pay(), approve=["pay"], **more))
    change.old.work()
    assert [approval.call_id for approval in change.handle.approvals()] == ["call_0"]
    return change


@shapes
def test_an_approval_holds_for_these_arguments_under_another_description(database: Database, calls: list[Call]) -> None:
    change = waiting(database, calls)
    change.handle.approve("call_0")
    change.to(agent(calls, with_default, approve=["pay"])).work()
    assert did[0] == "paid 7 80 EUR"
    assert change.handle.result().text == "done"
    (approval,) = change.handle.approvals(status=None)
    assert (approval.status, approval.arguments) == ("approved", '{"order": "7", "amount": 80}')


@shapes
def test_an_approval_is_no_pass_for_arguments_that_do_not_fit_any_more(database: Database, calls: list[Call]) -> None:
    change = waiting(database, calls)
    change.handle.approve("call_0")
    change.to(agent(calls, with_currency, approve=["pay"])).work()
    assert change.first().code == "invalid_arguments"
    assert "paid without asking" not in did
    assert_over(database, change.handle)


def test_what_a_person_has_put_in_their_place_is_asked_about_again_where_it_does_not_fit(database: Database) -> None:
    change = waiting(database, ONE)
    change.handle.approve("call_0", arguments={"order": "7", "amount": 5})
    new = change.to(agent(ONE, with_currency, approve=["pay"]))
    new.work()
    (asked,) = change.handle.approvals()
    assert "currency: required" in asked.question
    new.client.handle(change.handle.id).approve("call_0", arguments={"order": "7", "amount": 5, "currency": "SEK"})
    new.work()
    assert change.handle.result().text == "done"
    assert_over(database, change.handle)


@shapes
def test_a_tool_that_went_while_a_person_thought_is_told_when_they_approve(
    database: Database, calls: list[Call]
) -> None:
    change = waiting(database, calls)
    change.handle.approve("call_0")
    change.to(agent(calls)).work()
    assert change.first().code == "unknown_tool"
    assert_over(database, change.handle)


def test_a_rejection_needs_no_tool(database: Database) -> None:
    change = waiting(database, ONE)
    change.handle.reject("call_0", reason="no")
    change.to(agent(ONE)).work()
    assert change.first().code == "rejected"
    assert change.handle.result().text == "done"


@pytest.mark.parametrize("needed", [True, False])
def test_whether_a_call_needs_approval_was_decided_when_it_was_asked_for(database: Database, needed: bool) -> None:
    """A rule that is new holds for the calls after it: this one's turn has been reviewed."""
    rule = {"pay": ApprovalRule()} if needed else {}
    other = {} if needed else {"pay": ApprovalRule()}
    change = Change.under_way(database, agent(ONE, pay(), approve=rule))
    new = change.to(agent(ONE, pay(), approve=other))
    new.work()
    assert [approval.call_id for approval in change.handle.approvals()] == (["call_0"] if needed else [])
    assert did == ([] if needed else ["paid 7 80"])


def test_a_result_from_outside_is_taken_though_its_tool_is_gone(database: Database) -> None:
    @tool(name="pay")
    def starts(order: str, amount: float) -> str:
        """Start to pay."""
        raise Deferred

    change = Change.under_way(database, agent(ONE, starts))
    change.old.work()
    new = change.to(agent(ONE))
    change.handle.complete("call_0", "receipt 7")
    new.work()
    assert change.first().text == "receipt 7"
    assert change.handle.result().text == "done"


# ---------------------------------------------------------------------------------------------- L, M: counts, threads


def test_l1_counts_and_limits_are_those_of_the_whole_run_across_a_change(database: Database) -> None:
    turns: list[Any] = [[Call("look", {"n": n})] for n in range(5)]

    def code(words: str) -> Agent:
        return Agent(
            "test", model=Scripted([*turns, "done"]), tools=[look], instructions=words, limits={"tool_calls": 3}
        )

    drains = [Drain(database, code(words)) for words in ("one", "two", "three")]
    handle = drains[0].enqueue(code("one"))
    for drain in drains[1:]:
        drain.wake_ups = drains[0].wake_ups
    step = 0
    while drains[0].wake_ups:
        drains[step % 3].do(drains[0].wake_ups.pop(0))
        step += 1
    error = handle.run().error
    assert error is not None
    assert (error.code, error.details["limit"]) == ("limit_exceeded", "tool_calls")
    assert (len(did), handle.run().tool_calls) == (3, 3)
    assert_over(database, handle)


def test_l4_a_sub_agent_that_changed_does_not_touch_its_sibling(database: Database) -> None:
    def code(words: str) -> list[Agent]:
        changing = Agent(
            "changing", model=Scripted([[Call("look", {"n": 1})], "one"]), tools=[look], instructions=words,
            on_change="fail",
        )  # fmt: skip
        steady = Agent("steady", model=Scripted([[Call("look", {"n": 2})], "two"]), tools=[look], on_change="fail")
        asks = [Call("changing", {"input": "x"}), Call("steady", {"input": "x"})]
        tools = [changing.as_tool(), steady.as_tool()]
        return [Agent("boss", model=Scripted([asks, "done"]), tools=tools, on_change="fail"), changing, steady]

    old, new = Drain(database, *code("old")), Drain(database, *code("new"))
    handle = old.enqueue(code("old")[0])
    for _ in range(4):
        old.do(old.wake_ups.pop(0))
    new.wake_ups = old.wake_ups
    new.work()
    assert handle.result().text == "done"
    assert codes(handle) == ["agent_changed", None]
    assert [result.text for result in results(handle)][1] == "two"
    assert did == ["looked 2"]


def test_m1_a_thread_whose_run_is_held_is_busy_and_free_when_that_is_cancelled(database: Database) -> None:
    change = Change.under_way(database, agent(ONE, pay()), thread="t")
    new = change.to(agent(ONE, pay(), instructions="new", on_change="hold"))
    new.work()
    assert change.handle.run().outdated_at is not None
    test = new.client.agents["test"]
    assert isinstance(test, Agent)
    with pytest.raises(ThreadBusyError):
        new.enqueue(test, thread="t")
    behind = new.enqueue(test, thread="t", on_busy="enqueue")
    change.handle.cancel()
    new.work()
    assert change.handle.status() == "cancelled"
    assert behind.run().is_terminal
    assert_over(database, change.handle)


def test_m4_a_cancel_while_code_changes_ends_the_run_once(database: Database) -> None:
    for on_change in ("continue", "hold", "fail"):
        change = Change.under_way(database, agent(TWO, pay()))
        change.fan_out()
        new = change.to(agent(TWO, pay(), instructions="new", on_change=on_change))
        new.do(new.wake_ups.pop(0))
        change.handle.cancel()
        new.work()
        assert change.handle.status() == ("failed" if on_change == "fail" else "cancelled")
        assert_over(database, change.handle)
