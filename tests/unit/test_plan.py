"""A reply's calls before any runs: ids of their own, what cannot run, and which answer counts."""

import json
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from agentq.agent import AgentSpec
from agentq.context import RunContext
from agentq.limits import Limits
from agentq.messages import AssistantMessage, Stop, ToolCall, Usage, UserMessage
from agentq.outcomes import Output, Replied, Transition
from agentq.steps.answers import answers, structured
from agentq.steps.plan import plan, with_ids
from agentq.tools import tool
from agentq.transition import decide
from tests.unit.loop import codes, fresh


class Ticket(BaseModel):
    a: int = 1


@tool
def pay(amount: int) -> str:
    return f"paid {amount}"


@tool(timeout=5, queue="gpu", idempotent=True)
def draw(text: str = "") -> str:
    return text


HELPER = AgentSpec("helper", model="openai:x")
PLAIN = AgentSpec("plain", model="openai:x", tools=[pay, draw, HELPER.as_tool()], approve=["pay"])
TYPED = AgentSpec("typed", model="openai:x", tools=[pay, draw], approve=["pay"], output=Ticket)


CTX = RunContext(run_id="run_1", agent="test")


def worth(reply: AssistantMessage, agent: AgentSpec) -> Output | None:
    return structured(answers(reply, agent, CTX))


def message(*calls: tuple[str, Any], text: str = "", stop: Stop = "tool_calls") -> AssistantMessage:
    asked = [
        ToolCall(id=f"c{i}", name=name, arguments=given if isinstance(given, str) else json.dumps(given))
        for i, (name, given) in enumerate(calls)
    ]
    return AssistantMessage(text=text, calls=tuple(asked), stop=stop)


def planned(reply: AssistantMessage, agent: AgentSpec = PLAIN, **changes: Any) -> list[Any]:
    snapshot = fresh(**changes)
    found = answers(reply, agent, CTX)
    cut = reply.stop == "length"
    return [
        plan(call, agent, snapshot, cut=cut, faults=[], until=inf, answer=found.get(index))
        for index, call in enumerate(reply.calls)
    ]


def follow(reply: AssistantMessage, agent: AgentSpec = TYPED) -> Transition:
    """What the state machine makes of it."""
    return decide(fresh(), Replied(reply, Usage(), tuple(planned(reply, agent)), worth(reply, agent)))


# ---------------------------------------------------------------------------------------------- ids


def ids(*given: str, turn: int = 1) -> list[str]:
    calls = tuple(ToolCall(id=call_id, name="pay", arguments="{}") for call_id in given)
    return [call.id for call in with_ids(AssistantMessage(calls=calls), turn).calls]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("a", "b"), ["a", "b"]),
        (("dup", "dup"), ["dup", "dup_1_1"]),
        (("", ""), ["call_1_0", "call_1_1"]),
        (("a_1_2", "a", "a"), ["a_1_2", "a", "a_1_2_"]),
        (("a", "a", "a_1_1"), ["a", "a_1_1_", "a_1_1"]),
        (("call_1_1", ""), ["call_1_1", "call_1_1_"]),
    ],
)
def test_every_call_has_an_id_of_its_own_and_a_good_one_stays(given: tuple[str, ...], expected: list[str]) -> None:
    assert ids(*given) == expected


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["", "a", "a_1_1", "a_1_2", "a_1_1_", "call_1_0", "call_1_1", "_"]), max_size=8))
def test_no_two_ids_are_the_same_and_the_first_of_a_kind_stays(given: list[str]) -> None:
    made = ids(*given)
    assert len(set(made)) == len(given)
    assert "" not in made
    for index, call_id in enumerate(given):
        assert not call_id or call_id in given[:index] or made[index] == call_id


def test_an_id_of_an_earlier_turn_is_not_given_again() -> None:
    first, second, third = (message(("pay", {}), ("pay", {})) for _ in range(3))
    first = with_ids(first, 1)
    second = with_ids(second, 2, [UserMessage(text="go"), first])
    third = with_ids(third, 3, [first, second])
    ids = [call.id for reply in (first, second, third) for call in reply.calls]
    assert len(set(ids)) == 6
    assert with_ids(second, 2, [first]) is second


def test_the_rest_of_the_message_stays() -> None:
    reply = message(("pay", {"amount": 1}), text="paying")
    assert with_ids(reply, 3) == reply


# ---------------------------------------------------------------------------------------------- how a call will run


def test_a_call_runs_as_its_tool_says() -> None:
    first, second, third = planned(
        message(("pay", {"amount": 1}), ("draw", ""), ("helper", {"input": "hi"})), limits=Limits(tool_timeout_secs=7)
    )
    assert (first.kind, first.queue, first.timeout_secs, first.on_unknown, first.review) == (
        "tool",
        "agentq.tools",
        7.0,
        "report",
        True,
    )
    assert (second.queue, second.timeout_secs, second.on_unknown, second.review) == ("gpu", 5, "retry", False)
    assert third.kind == "agent"
    assert first.result is second.result is third.result is None


@pytest.mark.parametrize(
    ("name", "given", "code", "says"),
    [
        ("serach", {}, "unknown_tool", "There is no tool 'serach'. The tools are: pay, draw, helper."),
        ("x" * 1_000_000, {}, "unknown_tool", "The tools are: pay, draw, helper."),
        ("final_answer", {}, "unknown_tool", "The tools are: pay, draw, helper."),
        ("pay", {}, "invalid_arguments", "amount: required"),
        ("pay", '{"{"ids":[1]}', "invalid_arguments", "not valid JSON"),
        ("helper", {"input": 5}, "invalid_arguments", "input: "),
    ],
)
def test_a_call_that_cannot_run_has_its_result(name: str, given: Any, code: str, says: str) -> None:
    (call,) = planned(message((name, given)))
    assert (call.result.status, call.result.code) == ("error", code)
    assert says in call.result.text
    assert len(call.result.text) < 1_000
    assert not call.review


def test_an_agent_without_tools_says_so() -> None:
    (call,) = planned(message(("x", {})), AgentSpec("none", model="openai:x"))
    assert call.result.text.endswith("The tools are: none.")


def test_the_tool_for_the_final_answer_is_one_of_the_tools() -> None:
    (call,) = planned(message(("x", {})), TYPED)
    assert call.result.text.endswith("The tools are: pay, draw, final_answer.")


@pytest.mark.parametrize(("depth", "refused"), [(0, False), (7, False), (8, True)])
def test_agents_call_agents_eight_levels_deep(depth: int, refused: bool) -> None:
    (call,) = planned(message(("helper", {"input": "hi"})), depth=depth)
    assert (call.result is not None) == refused
    if refused:
        assert (call.result.code, "level 9" in call.result.text) == ("limit_exceeded", True)


@pytest.mark.parametrize("given", ['{"amount": 1, "note": "hel', {"amount": 1}, {}])
def test_a_call_of_a_reply_that_was_cut_is_not_run(given: Any) -> None:
    (call,) = planned(message(("pay", given), stop="length"))
    assert call.result.code == "invalid_arguments"
    assert "cut off" in call.result.text


def test_a_whole_call_runs_whatever_the_reason_to_finish() -> None:
    (call,) = planned(message(("pay", {"amount": 1}), stop="final"))
    assert call.result is None


# ---------------------------------------------------------------------------------------------- structured answers

GOOD, OTHER, BAD = ("final_answer", {"a": 5}), ("final_answer", {"a": 6}), ("final_answer", {"a": "x"})


@pytest.mark.parametrize(
    ("calls", "output", "expected"),
    [
        ([GOOD, ("draw", "")], {"a": 5}, {0: "success", 1: "skipped"}),
        ([("draw", ""), GOOD], {"a": 5}, {0: "skipped", 1: "success"}),
        ([BAD, GOOD], {"a": 5}, {0: "invalid_arguments", 1: "success"}),
        ([GOOD, OTHER], {"a": 5}, {0: "success", 1: "skipped"}),
        ([GOOD, ("pay", {"amount": 1})], {"a": 5}, {0: "success", 1: "skipped"}),
        ([GOOD, BAD, ("nobody", {})], {"a": 5}, {0: "success", 1: "invalid_arguments", 2: "unknown_tool"}),
    ],
)
def test_the_first_valid_answer_is_final_and_nothing_else_runs(calls: Any, output: Any, expected: Any) -> None:
    transition = follow(message(*calls))
    assert transition.ending is not None
    assert (transition.ending.stop_reason, transition.ending.output) == ("output", output)
    assert codes(transition) == expected
    assert (transition.approvals, transition.snapshot.pending) == ((), ())


def test_beside_an_invalid_answer_the_others_run() -> None:
    transition = follow(message(BAD, ("draw", ""), ("pay", {"amount": 1})))
    assert [call.tool for call in transition.snapshot.pending] == ["draw", "pay"]
    assert transition.snapshot.phase == "review"
    assert transition.snapshot.progress.invalid_outputs == 1
    assert transition.snapshot.progress.tool_calls == 2


def test_two_invalid_answers_in_one_reply_count_once() -> None:
    assert follow(message(BAD, BAD)).snapshot.progress.invalid_outputs == 1


def test_an_answer_beyond_the_calls_that_are_taken_is_none() -> None:
    transition = follow(message(*[("draw", "")] * 32, GOOD))
    assert transition.ending is None
    assert codes(transition) == {32: "skipped"}


def test_a_text_alone_is_an_answer_and_one_beside_calls_is_none() -> None:
    alone = worth(AssistantMessage(text='{"a": 2}'), TYPED)
    assert alone is not None
    assert alone.value == {"a": 2}
    assert worth(message(("draw", ""), text='{"a": 2}'), TYPED) is None
    assert worth(AssistantMessage(text="  "), TYPED) is None
    assert worth(AssistantMessage(text="hello"), PLAIN) is None


@pytest.mark.parametrize(
    "reply",
    [
        message(("final_answer", "{}"), stop="length"),
        message(("final_answer", {"a": 1}), stop="length"),
        AssistantMessage(text='{"a": 1}', stop="length"),
    ],
)
def test_an_answer_that_was_cut_fits_only_by_chance_and_is_not_taken(reply: AssistantMessage) -> None:
    transition = follow(reply)
    assert transition.ending is None
    assert transition.snapshot.progress.invalid_outputs == 1
    assert "cut off" in transition.messages[1][1].model_dump_json()
