"""What passes the hooks of a moment: each may change it, or end the run; what goes wrong in them is noted."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from agentq import aside
from agentq.agent import AgentSpec
from agentq.arguments import ArgumentsError
from agentq.context import RunContext
from agentq.errors import ContentError, ErrorInfo
from agentq.hooks import EndRun, ModelView, Moment
from agentq.limits import MAX_HOOKS_SECS
from agentq.messages import AssistantMessage, Reasoning, ToolCall, ToolMessage, ToolResult, UserMessage
from agentq.results import check_media, given_json, to_text
from agentq.steps.base import guarded
from agentq.steps.plan import needs_person
from agentq.text import clean

logger = logging.getLogger(__name__)

T = TypeVar("T")


class RefusedError(Exception):
    """A hook returned what it may not; the text says why, and nothing of what it was about."""


@dataclass
class Notes:
    """What hooks did and what went wrong with them, for the step's event: names only."""

    faults: list[str] = field(default_factory=list)
    changed_by: list[str] = field(default_factory=list)

    @property
    def data(self) -> dict[str, Any]:
        return {name: found for name, found in self.__dict__.items() if found}


@dataclass(frozen=True)
class Passed(Generic[T]):
    """``value`` after the hooks have seen it, and the run's end where one of them wants it, or had to see it."""

    value: T
    ends: EndRun | ErrorInfo | None = None


def let_pass(
    agent: AgentSpec,
    moment: Moment,
    ctx: RunContext,
    value: Any,
    notes: Notes,
    *,
    take: Callable[[Any, Any], Any] = lambda value, _: value,
) -> Passed[Any]:
    """Call the hooks of a moment; ``take`` makes a value of the one that passed and a hook's answer.

    Once a call has its result no further hook is asked about it.
    """
    until = time.monotonic() + MAX_HOOKS_SECS
    for hook in agent.listeners[moment]:
        secs = min(agent.hook_timeout_secs, until - time.monotonic())
        try:
            answer = guarded(partial(aside.call, partial(hook.call, ctx, value), secs))
            if answer is not None:
                value = take(value, answer)
                notes.changed_by.append(hook.name)
        except EndRun as end:
            return Passed(value, end)
        except Exception as error:
            notes.faults.append(f"{hook.name}: {_named(error)}")
            # Its text may hold what the run is about: only for those who ask for it.
            logger.warning("a hook of agent %s failed in %s: %s", agent.name, moment, notes.faults[-1])
            logger.debug("hook %s", hook.name, exc_info=True)
            if hook.required:
                return Passed(value, _failed(hook.name, moment, error))
        if moment == "before_tool" and isinstance(value, ToolResult):
            break
    return Passed(value)


def _named(error: Exception) -> str:
    return str(error) if isinstance(error, RefusedError | aside.TookTooLong) else type(error).__name__


def _failed(name: str, moment: Moment, error: Exception) -> ErrorInfo:
    message = f"the hook {name} failed in {moment}: {_named(error)}"
    return ErrorInfo(code="hook_failed", message=message, details={"hook": name, "moment": moment})


def _must_be(kind: type[T], answer: Any) -> T:
    if not isinstance(answer, kind):
        raise RefusedError(f"it returned {type(answer).__name__}, not {kind.__name__} or None")
    return answer


# ---------------------------------------------------------------------------------------------- before_model


def before_model(agent: AgentSpec, ctx: RunContext, view: ModelView, notes: Notes) -> Passed[ModelView]:
    """What the model is given."""
    return let_pass(agent, "before_model", ctx, view, notes, take=_changed_view)


def _changed_view(view: ModelView, answer: Any) -> ModelView:
    changed = _must_be(ModelView, answer)
    messages, tools = tuple(changed.messages), tuple(dict.fromkeys(changed.tools))
    if not isinstance(changed.instructions, str):
        raise RefusedError("it returned instructions that are not a text")
    if not set(tools) <= set(view.tools):
        raise RefusedError("it returned tools that were not offered")
    if problem := next(_problems(messages), None):
        raise RefusedError(f"it returned messages that no provider takes: {problem}")
    return ModelView(clean(changed.instructions), messages, tools, view.model)


def _problems(messages: tuple[Any, ...]) -> Iterator[str]:
    if not messages or not isinstance(messages[0], UserMessage):
        yield "the first one is not a user's"
    asked: list[str] = []
    for message in messages:
        match message:
            case ToolMessage(result=result) if asked and result.call_id == asked[0]:
                del asked[0]
            case ToolMessage():
                yield "a result without its call before it"
            case UserMessage() | AssistantMessage() if asked:
                yield "a call without its result behind it"
            case AssistantMessage(calls=calls):
                asked = [call.id for call in calls]
            case UserMessage():
                pass
            case _:
                yield f"a {type(message).__name__}"
    if asked:
        yield "a call without its result behind it"


# ---------------------------------------------------------------------------------------------- after_model


def after_model(agent: AgentSpec, ctx: RunContext, reply: AssistantMessage, notes: Notes) -> Passed[AssistantMessage]:
    """The reply that is stored and followed."""
    return let_pass(agent, "after_model", ctx, reply, notes, take=_changed_reply)


def _changed_reply(reply: AssistantMessage, answer: Any) -> AssistantMessage:
    # Made anew: a copy of pydantic's is not checked.
    changed = AssistantMessage.model_validate(_must_be(AssistantMessage, answer).model_dump(warnings=False))
    left = [(call.id, call.name) for call in changed.calls]
    if left != [(call.id, call.name) for call in reply.calls if (call.id, call.name) in left]:
        raise RefusedError("it returned calls that the model did not ask for")
    if changed.reasoning != reply.reasoning and (changed.reasoning or changed.calls):
        raise RefusedError("it changed reasoning; that stays as it is, or is left out of a reply without calls")
    if any(getattr(changed, name) != getattr(reply, name) for name in ("stop", "provider", "model")):
        raise RefusedError("it changed more than text, calls and reasoning")
    stop = "final" if changed.stop == "tool_calls" and not changed.calls else changed.stop
    reasoning = tuple(_placed(block, reply, changed) for block in changed.reasoning)
    return changed.model_copy(update={"stop": stop, "reasoning": reasoning})


def _placed(block: Reasoning, reply: AssistantMessage, changed: AssistantMessage) -> Reasoning:
    """The block with its place among what is left; see keep_block in agentq/providers/transcript.py."""
    left = {call.id for call in changed.calls}
    before = sum(call.id in left for call in reply.calls[: block.data.get("calls", 0)])
    places = {"chars": min(block.data.get("chars", 0), len(changed.text)), "calls": before}
    return block.model_copy(update={"data": block.data | {key: places[key] for key in places if key in block.data}})


# ---------------------------------------------------------------------------------------------- before and after a tool


def before_tool(
    agent: AgentSpec, ctx: RunContext, call: ToolCall, notes: Notes, *, is_bound: bool = True
) -> Passed[ToolCall | ToolResult]:
    """The call as its tool gets it, or its result where it does not run.

    ``is_bound``: where a person has approved the call, it was with these arguments.
    """
    until = time.monotonic() + MAX_HOOKS_SECS

    def take(call: ToolCall, answer: Any) -> ToolCall | ToolResult:
        if isinstance(answer, ToolResult):
            return _changed_result(call.id, call.name, answer)
        if not isinstance(answer, Mapping):
            raise RefusedError(f"it returned {type(answer).__name__}, not a mapping, a ToolResult or None")
        try:
            return _changed_call(call, answer, agent, ctx, notes, until, is_bound=is_bound)
        except (ArgumentsError, TypeError) as error:
            notes.faults.append("before_tool: invalid_arguments")
            text = f"A hook changed the arguments of this call, and it was not run: {error}"
            return ToolResult.error(call, "invalid_arguments", to_text(text))

    return let_pass(agent, "before_tool", ctx, call, notes, take=take)


def _changed_call(
    call: ToolCall,
    answer: Mapping[str, Any],
    agent: AgentSpec,
    ctx: RunContext,
    notes: Notes,
    until: float,
    *,
    is_bound: bool,
) -> ToolCall:
    """Raises ArgumentsError or TypeError for arguments that nobody would want the tool to run with."""
    changed = call.model_copy(update={"arguments": json.dumps(given_json(answer), ensure_ascii=False)})
    if tool := agent.tools.get(call.name):
        given = tool.parameters.parse(changed.arguments)
        if ctx.approved and is_bound and given != tool.parameters.parse(call.arguments):
            raise ArgumentsError("a person has approved others")
        if not ctx.approved and needs_person(call, given, agent, ctx, notes.faults, until):
            raise ArgumentsError("a person would have to approve these")
    return changed


def after_tool(agent: AgentSpec, ctx: RunContext, result: ToolResult, notes: Notes) -> Passed[ToolResult]:
    """The result that is stored. Where a hook had to see it and failed, it is withheld."""
    passed = let_pass(agent, "after_tool", ctx, result, notes, take=_same_call)
    if not isinstance(passed.ends, ErrorInfo):
        return passed
    text = "The tool came back; its result is withheld, because a hook that must see it failed."
    withheld = ToolResult(call_id=result.call_id, name=result.name, status="error", code="hook_failed", text=text)
    return Passed(withheld, passed.ends)


def _same_call(result: ToolResult, answer: Any) -> ToolResult:
    return _changed_result(result.call_id, result.name, _must_be(ToolResult, answer))


def _changed_result(call_id: str, name: str, answer: ToolResult) -> ToolResult:
    """The hook's words as the result of this call, as a tool's would be: cut, and never empty."""
    text = to_text(str(answer.text))
    own = {"call_id": call_id, "name": name, "text": text, "media": ()}
    made = ToolResult.model_validate(answer.model_dump(exclude={"media"}, warnings=False) | own)
    if not answer.media:
        return made
    try:
        check_media(answer.media)
    except (ContentError, AttributeError, TypeError) as error:
        raise RefusedError("it returned media that are no images and files with their bytes") from error
    # A shorter text has no room for their old places.
    media = tuple(one.placed(min(one.at, len(text))) for one in answer.media)
    return made.model_copy(update={"media": media})
