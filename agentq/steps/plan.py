"""Look at a reply's calls before any runs: which tool, fit arguments, unique ids."""

import logging
import time
from collections.abc import Container, Iterable
from functools import partial
from operator import is_
from typing import Any

from agentq import aside
from agentq.agent import AgentSpec
from agentq.arguments import ArgumentsError
from agentq.context import RunContext
from agentq.limits import MAX_DEPTH
from agentq.messages import AssistantMessage, Message, ToolCall, ToolResult
from agentq.outcomes import Output, PlannedCall
from agentq.output import OUTPUT_TOOL
from agentq.run import Snapshot
from agentq.steps.base import context, guarded
from agentq.text import cut as shorten
from agentq.wire import TOOL_QUEUE

logger = logging.getLogger(__name__)

_MAX_ID_CHARS = 1_000


def with_ids(message: AssistantMessage, turn: int, earlier: Iterable[Message] = ()) -> AssistantMessage:
    """The reply with an id of its own on each call: some servers send none, or the same one twice.

    ``earlier`` are the run's messages before it. A person's word on a call names its id, and must not be taken for
    another call of a later turn.
    """
    if not message.calls:
        return message
    bounded = [_bounded(call) for call in message.calls]
    asked = {call.id for call in bounded}
    made = {call.id for reply in earlier if isinstance(reply, AssistantMessage) for call in reply.calls}
    is_new = len(asked) == len(bounded) and "" not in asked and asked.isdisjoint(made)
    if is_new and all(map(is_, bounded, message.calls)):
        return message
    calls = []
    for index, call in enumerate(bounded):
        call_id = call.id
        if not call_id or call_id in made:
            call_id = f"{call.id or 'call'}_{turn}_{index}"
            while call_id in asked or call_id in made:
                call_id += "_"
        made.add(call_id)
        calls.append(call if call_id == call.id else call.model_copy(update={"id": call_id}))
    return message.model_copy(update={"calls": tuple(calls)})


def _bounded(call: ToolCall) -> ToolCall:
    """Names and ids go into rows and events; one of a megabyte is nobody's, and is not kept."""
    if len(call.id) <= _MAX_ID_CHARS and len(call.name) <= _MAX_ID_CHARS:
        return call
    call_id = call.id if len(call.id) <= _MAX_ID_CHARS else ""
    return call.model_copy(update={"id": call_id, "name": shorten(call.name, _MAX_ID_CHARS)})


def plan(
    call: ToolCall,
    agent: AgentSpec,
    snapshot: Snapshot,
    *,
    cut: bool,
    faults: list[str],
    until: float,
    offered: Container[str] | None = None,
    answer: Output | None = None,
) -> PlannedCall:
    """How the call will run, or the result that says why it cannot. ``faults`` are those of the user's own code.

    That is not waited for any longer than ``until``, by the monotonic clock.
    ``offered`` are the tools that the model had (None: all); ``answer`` is what the call is worth as a final answer.
    """
    tools = agent.tools if offered is None else {name: agent.tools[name] for name in agent.tools if name in offered}
    found = tools.get(call.name)
    base = PlannedCall(call_id=call.id, tool=call.name)
    if call.name == OUTPUT_TOOL and agent.output is not None:
        problem = answer.problem if answer is not None else None
        result = ToolResult.error(call, "invalid_arguments", problem) if problem else None
        return PlannedCall(call_id=call.id, tool=call.name, kind="output", result=result)
    if found is None:
        known = ", ".join([*tools, *([OUTPUT_TOOL] if agent.output else [])]) or "none"
        text = f"There is no tool {shorten(call.name, 100)!r}. The tools are: {known}."
        return _settled(base, ToolResult.error(call, "unknown_tool", text))
    if cut:
        text = "The reply was cut off by the output limit, so this call was not run. Ask again with shorter arguments."
        return _settled(base, ToolResult.error(call, "invalid_arguments", text))
    try:
        arguments = found.parameters.parse(call.arguments)
    except ArgumentsError as error:
        return _settled(base, ToolResult.error(call, "invalid_arguments", str(error)))
    if found.agent is not None and snapshot.depth + 1 > MAX_DEPTH:
        text = f"Agents may call agents {MAX_DEPTH} levels deep; this would be level {snapshot.depth + 1}."
        return _settled(base, ToolResult.error(call, "limit_exceeded", text))
    return PlannedCall(
        call_id=call.id,
        tool=call.name,
        kind="tool" if found.agent is None else "agent",
        queue=found.queue or TOOL_QUEUE,
        timeout_secs=found.timeout or snapshot.limits.tool_timeout_secs,
        on_unknown=found.on_unknown,
        review=needs_person(call, arguments, agent, context(snapshot, call_id=call.id), faults, until),
    )


def needs_person(
    call: ToolCall, arguments: dict[str, Any], agent: AgentSpec, ctx: RunContext, faults: list[str], until: float
) -> bool:
    """What the agent's rule says of the call. Where it cannot say, a person does."""
    if call.name not in agent.approve:
        return False
    when = agent.approve[call.name].when
    if when is None:
        return True
    secs = min(agent.hook_timeout_secs, until - time.monotonic())
    try:
        return bool(guarded(partial(aside.call, lambda: bool(when(ctx, arguments)), secs)))
    except Exception as error:
        what = str(error) if isinstance(error, aside.TookTooLong) else type(error).__name__
        logger.warning("approve[%r] of agent %s failed: %s", call.name, agent.name, what)
        logger.debug("approve[%r]", call.name, exc_info=True)
        faults.append(f"approve[{call.name}]: {what}")
        return True


def _settled(base: PlannedCall, result: ToolResult) -> PlannedCall:
    return PlannedCall(call_id=base.call_id, tool=base.tool, result=result)
