"""What a hook may put in the place of what passed, and what comes of one that fails."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from agentq import (
    AssistantMessage,
    EndRun,
    Hooks,
    ModelView,
    RunContext,
    ToolCall,
    ToolResult,
    UserMessage,
    aside,
    tool,
)
from agentq.agent import AgentSpec
from agentq.errors import ErrorInfo
from agentq.messages import Reasoning, ToolMessage
from agentq.providers.transcript import keep_block
from agentq.steps.hooked import Notes, Passed, after_model, after_tool, before_model, before_tool

CTX = RunContext(run_id="run_1", agent="test")


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    """A step has a context of its own, in which its hooks leave the place where they run."""
    yield
    aside._BESIDE.set(None)


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Does(Hooks):
    """At every moment what it was given: a value to return, an exception to raise, or a function of what passes."""

    def __init__(self, does: Any) -> None:
        self._does = does

    def _do(self, passes: Any) -> Any:
        if isinstance(self._does, Exception):
            raise self._does
        return self._does(passes) if callable(self._does) else self._does

    def before_model(self, ctx: RunContext, view: ModelView) -> Any:
        return self._do(view)

    def after_model(self, ctx: RunContext, reply: AssistantMessage) -> Any:
        return self._do(reply)

    def before_tool(self, ctx: RunContext, call: ToolCall) -> Any:
        return self._do(call)

    def after_tool(self, ctx: RunContext, result: ToolResult) -> Any:
        return self._do(result)


class Guard(Does):
    required = True


def agent(*hooks: Hooks, **more: Any) -> AgentSpec:
    return AgentSpec("test", model="openai:x", tools=[pay], hooks=hooks, **more)


CALLS = tuple(ToolCall(id=f"c{n}", name="pay", arguments=f'{{"amount": {n}}}') for n in range(3))
REPLY = AssistantMessage(text="paying now", calls=CALLS, stop="tool_calls", provider="p", model="m")
RESULT = ToolResult(call_id="c0", name="pay", text="paid 0")
VIEW = ModelView("Be kind.", (UserMessage(text="go"),), ("pay",), "p:m")


def seen(*does: Any, view: ModelView = VIEW) -> tuple[Passed[ModelView], Notes]:
    notes = Notes()
    return before_model(agent(*map(_hook, does)), CTX, view, notes), notes


def replied(*does: Any, reply: AssistantMessage = REPLY) -> tuple[Passed[AssistantMessage], Notes]:
    notes = Notes()
    return after_model(agent(*map(_hook, does)), CTX, reply, notes), notes


def called(*does: Any, is_approved: bool = False) -> tuple[Passed[ToolCall | ToolResult], Notes]:
    notes = Notes()
    return before_tool(agent(*map(_hook, does)), replace(CTX, approved=is_approved), CALLS[1], notes), notes


def came_back(*does: Any) -> tuple[Passed[ToolResult], Notes]:
    notes = Notes()
    return after_tool(agent(*map(_hook, does)), CTX, RESULT, notes), notes


def _hook(does: Any) -> Hooks:
    return does if isinstance(does, Hooks) else Does(does)


# ---------------------------------------------------------------------------------------------- of every moment


@pytest.mark.parametrize("moment", [seen, replied, called, came_back])
def test_a_hook_that_returns_nothing_changes_nothing(moment: Any) -> None:
    passed, notes = moment(None)
    assert passed.value in (VIEW, REPLY, CALLS[1], RESULT)
    assert (passed.ends, notes.data) == (None, {})


@pytest.mark.parametrize("moment", [seen, replied, called, came_back])
@pytest.mark.parametrize(
    ("does", "says"), [(ValueError("secret"), "Does: ValueError"), (7, "Does: it returned int, not ")]
)
def test_a_hook_that_fails_is_noted_without_its_words_and_the_next_one_is_called(
    moment: Any, does: Any, says: str
) -> None:
    called_too: list[Any] = []
    passed, notes = moment(does, called_too.append)
    assert passed.value in (VIEW, REPLY, CALLS[1], RESULT)
    assert passed.ends is None
    assert [fault.startswith(says) for fault in notes.faults] == [True]
    assert "secret" not in str(notes.data)
    assert called_too == [passed.value]


@pytest.mark.parametrize("moment", [seen, replied, called, came_back])
@pytest.mark.parametrize(("does", "what"), [(ValueError("secret"), "ValueError"), (7, "it returned int")])
def test_a_guard_that_fails_ends_the_run(moment: Any, does: Any, what: str) -> None:
    passed, notes = moment(Guard(does), lambda _: pytest.fail("called after the end"))
    assert isinstance(passed.ends, ErrorInfo)
    assert passed.ends.code == "hook_failed"
    assert passed.ends.details["hook"] == "Guard"
    assert what in passed.ends.message
    assert "secret" not in passed.ends.message
    assert len(notes.faults) == 1


@pytest.mark.parametrize("moment", [seen, replied, called, came_back])
def test_a_hook_that_hangs_is_left_behind(moment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    monkeypatch.setattr("agentq.steps.hooked.MAX_HOOKS_SECS", 0.2)
    passed, notes = moment(lambda _: free.wait(), lambda _: None)
    free.set()
    assert (passed.ends, len(notes.faults)) == (None, 2)
    assert notes.faults[0].startswith("Does: no answer within ")
    # Together they have no more than that.
    assert notes.faults[1] == "Does: those before it have used up the time"


@pytest.mark.parametrize("moment", [seen, replied, called, came_back])
def test_the_end_that_a_hook_wants_comes_with_what_those_before_it_have_changed(moment: Any) -> None:
    changes = {
        seen: lambda view: replace(view, instructions="changed"),
        replied: lambda reply: reply.model_copy(update={"text": "changed"}),
        called: lambda call: {"amount": 77},
        came_back: lambda result: result.model_copy(update={"text": "changed"}),
    }
    passed, notes = moment(changes[moment], EndRun("over"))
    assert isinstance(passed.ends, EndRun)
    assert passed.ends.output == "over"
    assert "changed" in str(passed.value) or "77" in str(passed.value)
    assert notes.data == {"changed_by": ["Does"]}


def test_hooks_may_be_async() -> None:
    class Async(Hooks):
        async def after_tool(self, ctx: RunContext, result: ToolResult) -> ToolResult:  # type: ignore[override]
            return result.model_copy(update={"text": "changed"})

    passed, _ = came_back(Async())
    assert passed.value.text == "changed"


# ---------------------------------------------------------------------------------------------- before_model


def test_a_view_may_have_other_instructions_messages_and_fewer_tools() -> None:
    other = replace(VIEW, instructions="a\x00b", messages=[UserMessage(text="x")], tools=["pay", "pay"])
    passed, notes = seen(other)
    assert passed.value == ModelView("a\ufffdb", (UserMessage(text="x"),), ("pay",), "p:m")
    assert notes.data == {"changed_by": ["Does"]}


def test_a_hook_as_they_were_written_before_is_called_without_the_view() -> None:
    class Old(Hooks):
        called = 0

        def before_model(self, ctx: RunContext) -> None:  # type: ignore[override]
            self.called += 1

    old = Old()
    passed, notes = seen(old)
    assert (old.called, passed.value, notes.data) == (1, VIEW, {})


ASKED = AssistantMessage(calls=CALLS[:2])
BACK = [ToolMessage(result=ToolResult(call_id=f"c{n}", name="pay", text="x")) for n in range(2)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"messages": ()}, "the first one is not a user's"),
        ({"messages": (REPLY,)}, "the first one is not a user's"),
        ({"messages": (*VIEW.messages, BACK[0])}, "a result without its call"),
        ({"messages": (*VIEW.messages, ASKED, BACK[1], BACK[0])}, "a result without its call"),
        ({"messages": (*VIEW.messages, ASKED, BACK[0])}, "a call without its result"),
        ({"messages": (*VIEW.messages, ASKED, *VIEW.messages)}, "a call without its result"),
        ({"messages": (*VIEW.messages, "hello")}, "a str"),
        ({"messages": None}, "TypeError"),
        ({"tools": ("pay", "other")}, "tools that were not offered"),
        ({"instructions": None}, "instructions that are not a text"),
    ],
)
def test_a_view_that_no_provider_would_take_is_refused(changes: dict[str, Any], why: str) -> None:
    passed, notes = seen(replace(VIEW, **changes))
    assert passed.value == VIEW
    assert why in notes.faults[0]


def test_whole_turns_may_be_left_out_of_a_view() -> None:
    view = replace(VIEW, messages=(*VIEW.messages, ASKED, *BACK, AssistantMessage(text="paid")))
    passed, notes = seen(lambda view: replace(view, messages=(view.messages[0], view.messages[-1])), view=view)
    assert len(passed.value.messages) == 2
    assert notes.faults == []


# ---------------------------------------------------------------------------------------------- after_model


def test_a_reply_may_have_another_text_fewer_calls_and_other_arguments() -> None:
    changed = ToolCall(id="c2", name="pay", arguments='{"amount": 5}')
    passed, notes = replied(REPLY.model_copy(update={"text": "x\x00", "calls": (CALLS[0], changed)}))
    assert (passed.value.text, passed.value.calls) == ("x\ufffd", (CALLS[0], changed))
    assert (passed.value.stop, passed.value.provider, passed.value.model) == ("tool_calls", "p", "m")
    assert notes.data == {"changed_by": ["Does"]}


def test_a_reply_left_without_calls_is_a_final_one() -> None:
    passed, _ = replied(REPLY.model_copy(update={"calls": ()}))
    assert (passed.value.calls, passed.value.stop) == ((), "final")


@pytest.mark.parametrize(
    "changes",
    [
        {"calls": (*CALLS, ToolCall(id="new", name="pay", arguments="{}"))},
        {"calls": (CALLS[1], CALLS[0])},
        {"calls": (CALLS[0], CALLS[0])},
        {"calls": (CALLS[0].model_copy(update={"id": "other"}),)},
        {"calls": (CALLS[0].model_copy(update={"name": "other"}),)},
        {"stop": "final"},
        {"provider": "other"},
        {"model": "other"},
        {"reasoning": (Reasoning(provider="p", model="m", data={}),)},
        {"text": 7},
    ],
)
def test_all_else_of_a_reply_stays_as_the_model_gave_it(changes: dict[str, Any]) -> None:
    passed, notes = replied(REPLY.model_copy(update=changes))
    assert passed.value == REPLY
    assert len(notes.faults) == 1


THOUGHT = tuple(
    keep_block("p", "m", {"signature": f"s{n}"}, chars=chars, calls=calls)
    for n, (chars, calls) in enumerate([(0, 0), (6, 0), (10, 2)])
)
THOUGHTFUL = REPLY.model_copy(update={"reasoning": THOUGHT})


def test_reasoning_stays_byte_for_byte_and_keeps_its_place_among_what_is_left() -> None:
    passed, _ = replied(lambda reply: reply.model_copy(update={"text": "pay", "calls": (CALLS[1],)}), reply=THOUGHTFUL)
    blocks = passed.value.reasoning
    assert [block.data["block"] for block in blocks] == [block.data["block"] for block in THOUGHT]
    assert [(block.data.get("chars", 0), block.data.get("calls", 0)) for block in blocks] == [(0, 0), (3, 0), (3, 1)]


def test_reasoning_may_be_left_out_of_a_reply_without_calls_only() -> None:
    without: Mapping[str, Any] = {"reasoning": ()}
    passed, notes = replied(lambda reply: reply.model_copy(update=without), reply=THOUGHTFUL)
    assert passed.value == THOUGHTFUL
    assert "changed reasoning" in notes.faults[0]
    passed, notes = replied(lambda reply: reply.model_copy(update={**without, "calls": ()}), reply=THOUGHTFUL)
    assert (passed.value.reasoning, notes.faults) == ((), [])


# ---------------------------------------------------------------------------------------------- before and after a tool


def test_a_call_may_have_other_arguments_which_the_hooks_after_it_see() -> None:
    later: list[Any] = []
    passed, notes = called({"amount": 5}, lambda call: later.append(call.arguments))
    assert isinstance(passed.value, ToolCall)
    assert (passed.value.id, passed.value.arguments) == ("c1", '{"amount": 5}')
    assert later == ['{"amount": 5}']
    assert notes.data == {"changed_by": ["Does"]}


@pytest.mark.parametrize("arguments", [{}, {"amount": "many"}, {"amount": 1, "other": 2}, {"amount": object()}])
def test_changed_arguments_that_do_not_fit_fail_the_call(arguments: Mapping[str, Any]) -> None:
    passed, notes = called(arguments)
    assert isinstance(passed.value, ToolResult)
    assert (passed.value.call_id, passed.value.code) == ("c1", "invalid_arguments")
    assert "it was not run" in passed.value.text
    assert notes.faults == ["before_tool: invalid_arguments"]


def test_arguments_that_a_person_has_approved_are_not_changed() -> None:
    passed, _ = called({"amount": 5}, is_approved=True)
    assert isinstance(passed.value, ToolResult)
    assert passed.value.code == "invalid_arguments"
    assert "a person has approved others" in passed.value.text
    passed, notes = called({"amount": 1}, is_approved=True)
    assert isinstance(passed.value, ToolCall)
    assert notes.faults == []


def test_arguments_that_a_person_would_have_to_approve_are_not_run() -> None:
    rule = {"pay": lambda ctx, arguments: arguments["amount"] > 100}
    for amount, code in ((101, "invalid_arguments"), (100, None)):
        notes = Notes()
        passed = before_tool(agent(Does({"amount": amount}), approve=rule), CTX, CALLS[1], notes)
        assert getattr(passed.value, "code", None) == code


def test_a_result_stands_in_for_the_tool_and_no_further_hook_is_asked() -> None:
    own = ToolResult(call_id="?", name="?", status="error", code="denied", text=" ")
    passed, _ = called(own, lambda _: pytest.fail("asked"))
    assert passed.value == ToolResult(call_id="c1", name="pay", status="error", code="denied", text='" "')


def test_a_changed_result_stays_that_of_its_call_and_within_its_size() -> None:
    passed, _ = came_back(ToolResult(call_id="?", name="?", text="x" * 200_000))
    assert (passed.value.call_id, passed.value.name) == ("c0", "pay")
    assert len(passed.value.text) <= 100_000


def test_a_result_that_a_guard_could_not_see_is_withheld() -> None:
    passed, _ = came_back(Guard(ValueError()))
    assert (passed.value.call_id, passed.value.status, passed.value.code) == ("c0", "error", "hook_failed")
    assert "paid" not in passed.value.text
