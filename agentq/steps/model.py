"""The model call: transcript, instructions and tool schemas go out, a checked reply comes back."""

import time
from typing import Any

from agentq.agent import AgentSpec
from agentq.content import File, Image, joined
from agentq.errors import ContentError, ContentMissingError, ErrorInfo, ProviderError
from agentq.hooks import EndRun, ModelView
from agentq.limits import MAX_HOOKS_SECS
from agentq.media_types import is_text
from agentq.messages import AssistantMessage, Message, ToolMessage, Usage
from agentq.outcomes import Failed, HookEnded, Replied
from agentq.output import OUTPUT_TOOL
from agentq.prices import priced
from agentq.providers.base import (
    HasOutputFormat,
    ModelReply,
    ModelRequest,
    OutputFormat,
    Provider,
    ToolSpec,
)
from agentq.providers.content import placeholder
from agentq.run import Snapshot
from agentq.services import Services
from agentq.steps.answers import answers, structured
from agentq.steps.base import Done, context, guarded
from agentq.steps.choice import choose, failed
from agentq.steps.hooked import Notes, after_model, before_model
from agentq.steps.plan import plan, with_ids
from agentq.streams import Stream
from agentq.values import replace


def call_model(snapshot: Snapshot, agent: AgentSpec, services: Services, stream: Stream | None = None) -> Done:
    """One call of the model whose turn it is; a provider's fault is an outcome, not an exception.

    ``stream`` shows the reply while it is written.
    """
    choice = choose(snapshot, agent, services)
    if isinstance(choice, Done):
        return choice
    provider, model = choice.provider, choice.model
    output = _native_output(agent, provider, model)
    request = ModelRequest(
        model=model,
        instructions=_instructions(agent, snapshot.progress.facts),
        messages=services.transcripts.read(snapshot),
        tools=tool_specs(agent, with_output=output is None),
        settings=agent.model_settings,
        output=output,
        timeout_secs=_bounded(snapshot, agent),
        on_delta=stream.add if stream else None,
    )
    own, notes = request.messages[-snapshot.message_count :], Notes()
    if agent.listeners["before_model"]:
        seen = _as_hooks_want(request, snapshot, agent, provider, notes)
        if not isinstance(seen, ModelRequest):
            return Done(_ended(seen), notes.data)
        request = seen
    data = choice.data
    try:
        request = replace(request, messages=services.blobs.load(request.messages))
    except (ContentError, ContentMissingError) as error:
        fault = ErrorInfo(code=error.code, message=error.message, details=error.details)
        return Done(Failed(fault), data | {"error": error.code} | notes.data)
    try:
        reply = _complete(provider, request, agent)
    except ProviderError as error:
        if stream:
            stream.settle(None)
        outcome = failed(error, choice, snapshot, agent, services)
        return Done(outcome, data | {"error": error.code} | notes.data)
    if stream:
        stream.settle(reply.message.text)
    named = replace(reply, message=with_ids(reply.message, snapshot.turn + 1, own))
    return _replied(snapshot, agent, request, named, data, notes)


def _as_hooks_want(
    request: ModelRequest, snapshot: Snapshot, agent: AgentSpec, provider: Provider, notes: Notes
) -> ModelRequest | EndRun | ErrorInfo:
    """The request as the before_model hooks leave it, or the run's end."""
    began, tools = time.monotonic(), {spec.name: spec for spec in request.tools}
    view = ModelView(request.instructions, tuple(request.messages), tuple(tools), f"{provider.name}:{request.model}")
    passed = before_model(agent, context(snapshot), view, notes)
    if passed.ends is not None:
        return passed.ends
    later = replace(snapshot, age_secs=snapshot.age_secs + time.monotonic() - began)
    return replace(
        request,
        instructions=passed.value.instructions,
        messages=passed.value.messages,
        tools=tuple(tools[name] for name in passed.value.tools),
        timeout_secs=_bounded(later, agent),
    )


def _ended(
    ends: EndRun | ErrorInfo, message: AssistantMessage | None = None, usage: Usage | None = None
) -> HookEnded | Failed:
    """The end that a hook wants; a reply that a hook had to see, and did not, is not kept."""
    return HookEnded(ends.output, message, usage or Usage()) if isinstance(ends, EndRun) else Failed(ends, usage)


def _bounded(snapshot: Snapshot, agent: AgentSpec) -> float:
    """The model's time limit, or what is left of the run's."""
    left = snapshot.secs_left
    return agent.model_timeout_secs if left is None else min(agent.model_timeout_secs, max(left, 0.001))


def _replied(
    snapshot: Snapshot, agent: AgentSpec, request: ModelRequest, reply: ModelReply, data: dict[str, Any], notes: Notes
) -> Done:
    message = _signed(reply.message, data)
    used = priced(reply.usage, data["provider"], data["model"])
    reply = replace(reply, usage=used)
    ends: EndRun | ErrorInfo | None = None
    if agent.listeners["after_model"]:
        passed = after_model(agent, context(snapshot), message, notes)
        message, ends = passed.value, passed.ends
    data = data | _of_usage(used) | {"calls": [call.name for call in message.calls]}
    if ends is not None:
        return Done(_ended(ends, message, reply.usage), data | notes.data)
    offered = frozenset(spec.name for spec in request.tools)
    cut, found = message.stop == "length", answers(message, agent, context(snapshot))
    until = time.monotonic() + MAX_HOOKS_SECS
    calls = tuple(
        plan(call, agent, snapshot, cut=cut, faults=notes.faults, until=until, offered=offered, answer=found.get(index))
        for index, call in enumerate(message.calls)
    )
    return Done(Replied(message, reply.usage, calls, structured(found)), data | notes.data)


def _signed(message: AssistantMessage, data: dict[str, Any]) -> AssistantMessage:
    """The reply with a word on who gave it, where its provider left that out."""
    if message.provider or message.model:
        return message
    return message.model_copy(update={"provider": data["provider"], "model": data["model"]})


def _of_usage(usage: Usage) -> dict[str, Any]:
    """What the step's event says of a call's usage: what is known, and of the details what is not nothing."""
    told: dict[str, Any] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    told = {name: tokens for name, tokens in told.items() if tokens is not None}
    details = {name: getattr(usage, name) for name in ("cache_read_tokens", "cache_write_tokens", "reasoning_tokens")}
    told |= {name: tokens for name, tokens in details.items() if tokens}
    return told | ({"cost": f"{usage.known_cost.normalize():f}"} if usage.known_cost is not None else {})


def _instructions(agent: AgentSpec, facts: tuple[str, ...]) -> str:
    if not facts:
        return agent.instructions
    listed = "\n".join(f"- {fact}" for fact in facts)
    return f"{agent.instructions}\n\nWhat you remember:\n{listed}".strip()


def tool_specs(agent: AgentSpec, *, with_output: bool) -> tuple[ToolSpec, ...]:
    """The tools as the model sees them; ``with_output``: with the one for the final answer, where there is a schema."""
    specs = [ToolSpec(tool.name, tool.description, tool.schema) for tool in agent.tools.values()]
    return (*specs, *_output_tool(agent)) if with_output else tuple(specs)


def _output_tool(agent: AgentSpec) -> tuple[ToolSpec, ...]:
    if agent.output is None:
        return ()
    return (ToolSpec(OUTPUT_TOOL, "Give the final answer in this form.", agent.output.schema),)


def _complete(provider: Provider, request: ModelRequest, agent: AgentSpec) -> ModelReply:
    """One call. A model that cannot take what its tools have returned is told so, and asked again at once."""
    began = time.monotonic()
    try:
        return _complete_in_form(provider, request, agent)
    except ProviderError as error:
        told = [_told(message) for message in request.messages]
        if error.kind != "content_unsupported" or all(a is b for a, b in zip(told, request.messages, strict=True)):
            raise
    left = max(request.timeout_secs - (time.monotonic() - began), 0.001)
    return _complete_in_form(provider, replace(request, messages=told, timeout_secs=left), agent)


def _told(message: Message) -> Message:
    """A result with a word in the place of each image or file in it that is no text."""
    if not isinstance(message, ToolMessage) or not message.result.media:
        return message
    parts = [_in_words(part) for part in message.result.parts]
    text, media = joined(parts)
    return ToolMessage(result=message.result.model_copy(update={"text": text, "media": media}))


def _in_words(part: str | Image | File) -> str | Image | File:
    return part if isinstance(part, str) or is_text(part.media_type) else placeholder(part)


# Models that have refused a request for their native form, and took it with a tool; of this process.
_REFUSED: set[tuple[str, str]] = set()


def _native_output(agent: AgentSpec, provider: Provider, model: str) -> OutputFormat | None:
    """The form of the final answer where the provider's own mode is used for it; else it is a tool."""
    if agent.output is None or agent.output_mode == "tool" or not isinstance(provider, HasOutputFormat):
        return None
    forced = agent.output_mode == "native"
    if (provider.name, model) in _REFUSED and not forced:
        return None
    return provider.output_format(agent.output.schema, forced=forced)


def _complete_in_form(provider: Provider, request: ModelRequest, agent: AgentSpec) -> ModelReply:
    """One call. A model that refuses the native form, which older ones do not have, is asked with the tool at once."""
    began = time.monotonic()
    try:
        return guarded(lambda: provider.complete(request))
    except ProviderError as error:
        if error.kind != "request_rejected" or request.output is None or agent.output_mode == "native":
            raise
    left = max(request.timeout_secs - (time.monotonic() - began), 0.001)
    plain = replace(request, output=None, tools=(*request.tools, *_output_tool(agent)), timeout_secs=left)
    reply = guarded(lambda: provider.complete(plain))
    _REFUSED.add((provider.name, request.model))
    return reply
