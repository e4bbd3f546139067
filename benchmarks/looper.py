"""The scripted agent as a user of agentq writes one: a provider, a tool, a hook."""

import json
from typing import Any

from agentq import Agent, RunContext
from agentq.hooks import Hooks
from agentq.messages import AssistantMessage, ToolCall, Usage
from agentq.providers.base import ModelReply, ModelRequest
from benchmarks import notes
from benchmarks.modes import Mode, make_tool
from benchmarks.scripts import Script, ask_model, call_tool

NAME = "looper"


class ScriptedModel:
    """Answers by the script; the run's message is its name."""

    name = "script"

    def __init__(self, script: Script) -> None:
        self._script = script

    def complete(self, request: ModelRequest) -> ModelReply:
        first, *others = request.messages
        turn = sum(isinstance(message, AssistantMessage) for message in others)
        reply = ask_model(self._script, getattr(first, "text", ""), turn)
        calls = tuple(
            ToolCall(id=call["id"], name=call["name"], arguments=json.dumps(call["arguments"]))
            for call in reply["tool_calls"]
        )
        return ModelReply(AssistantMessage(text=reply["content"], calls=calls), Usage())


class TellTheDriver(Hooks):
    """A run ends for the driver when its end is committed."""

    def on_end(self, ctx: RunContext, status: str) -> None:
        notes.tell(status, ctx.run_id)


def make_agent(script: Script, mode: Mode) -> Agent:
    """The agent of a script, for workers and producers alike."""

    inline = mode == "local" and not script.has_tool_pool

    def lookup(item: int, part: int, ctx: RunContext) -> dict[str, Any]:
        """Find an item."""
        return call_tool(script, ctx.run_id, item, part)

    return Agent(
        NAME,
        model=ScriptedModel(script),
        instructions="Look everything up.",
        tools=[make_tool(lookup, inline=inline, idempotent=script.is_idempotent)],
        limits={"model_calls": script.model_calls},
        hooks=[TellTheDriver()],
    )
