"""The model call: transcript, instructions and tool schemas go out, a checked reply comes back."""

import random
from typing import Any

from agentq.agent import AgentSpec
from agentq.errors import ErrorInfo, ProviderError
from agentq.hooks import EndRun
from agentq.messages import AssistantMessage
from agentq.outcomes import HookEnded, ModelFailed, Replied
from agentq.output import OUTPUT_TOOL
from agentq.providers.base import ModelReply, ModelRequest, ToolSpec
from agentq.run import Snapshot
from agentq.services import Services
from agentq.steps.base import Done, call_hooks, context, guarded
from agentq.steps.plan import plan, structured, with_ids


def call_model(snapshot: Snapshot, agent: AgentSpec, services: Services) -> Done:
    """One call of the model whose turn it is; a provider's fault is an outcome, not an exception."""
    # A deploy may have shortened the list of fallback models meanwhile.
    chosen = agent.models[min(snapshot.progress.model_index, len(agent.models) - 1)]
    provider, model = services.resolve(chosen)
    request = ModelRequest(
        model=model,
        instructions=_instructions(agent, snapshot.progress.facts),
        messages=services.transcripts.read(snapshot),
        tools=tool_specs(agent),
        settings=agent.model_settings,
        timeout_secs=_bounded(snapshot, agent),
    )
    data: dict[str, Any] = {"provider": provider.name, "model": model}
    try:
        reply = guarded(lambda: provider.complete(request))
    except ProviderError as error:
        return Done(_failed(error, agent), data | {"error": error.code})
    return _replied(snapshot, agent, reply, data)


def _bounded(snapshot: Snapshot, agent: AgentSpec) -> float:
    """The model's time limit, or what is left of the run's."""
    left = snapshot.secs_left
    return agent.model_timeout_secs if left is None else min(agent.model_timeout_secs, max(left, 0.001))


def _replied(snapshot: Snapshot, agent: AgentSpec, reply: ModelReply, data: dict[str, Any]) -> Done:
    message = with_ids(_signed(reply.message, data), snapshot.turn + 1)
    faults: list[str] = []
    usage = {"input_tokens": reply.usage.input_tokens, "output_tokens": reply.usage.output_tokens}
    known = {name: tokens for name, tokens in usage.items() if tokens is not None}
    data = data | known | {"calls": [call.name for call in message.calls]}
    try:
        call_hooks(agent, "after_model", lambda: (context(snapshot), message), faults)
    except EndRun as end:
        return Done(HookEnded(end.output, message, reply.usage), data)
    outcome = _outcome(snapshot, agent, message, reply, faults)
    return Done(outcome, data | ({"faults": faults} if faults else {}))


def _signed(message: AssistantMessage, data: dict[str, Any]) -> AssistantMessage:
    """The reply with a word on who gave it, where its provider left that out."""
    if message.provider or message.model:
        return message
    return message.model_copy(update={"provider": data["provider"], "model": data["model"]})


def _outcome(
    snapshot: Snapshot, agent: AgentSpec, message: AssistantMessage, reply: ModelReply, faults: list[str]
) -> Replied:
    cut = message.stop == "length"
    calls = tuple(plan(call, agent, snapshot, cut=cut, faults=faults) for call in message.calls)
    return Replied(message, reply.usage, calls, structured(message, agent))


def _failed(error: ProviderError, agent: AgentSpec) -> ModelFailed:
    info = ErrorInfo(code=error.code, message=error.message, details={"status": error.details.get("status")})
    return ModelFailed(info, error.retryable, error.retry_after, models=len(agent.models), jitter=random.random())


def _instructions(agent: AgentSpec, facts: tuple[str, ...]) -> str:
    if not facts:
        return agent.instructions
    listed = "\n".join(f"- {fact}" for fact in facts)
    return f"{agent.instructions}\n\nWhat you remember:\n{listed}".strip()


def tool_specs(agent: AgentSpec) -> tuple[ToolSpec, ...]:
    """The tools as the model sees them, with the one for the final answer where the agent has an output schema."""
    specs = [ToolSpec(tool.name, tool.description, tool.schema) for tool in agent.tools.values()]
    if agent.output is not None:
        specs.append(ToolSpec(OUTPUT_TOOL, "Give the final answer in this form.", agent.output.schema))
    return tuple(specs)
