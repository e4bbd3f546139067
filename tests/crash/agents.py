"""The agents of the crash matrix; every model call and every effect of a tool is written down in a folder."""

import json
import os
from pathlib import Path
from typing import Any

from agentq import Agent, RunContext, Tool, tool
from agentq.providers.base import ModelReply, ModelRequest
from agentq.providers.scripted import Call, Scripted

FOLDER = Path(os.environ.get("AGENTQ_TEST_LOG", "."))

# Two more than there are lanes, so that two calls come to theirs by replacing another.
CALLS = 10


def note(file: str, /, **data: Any) -> None:
    """One line on the disk, whole, whoever else writes and whatever happens next."""
    handle = os.open(FOLDER / f"{file}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, (json.dumps(data) + "\n").encode())
    os.fsync(handle)
    os.close(handle)


def noted(folder: Path, file: str) -> list[dict[str, Any]]:
    path = folder / f"{file}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _tool(*, idempotent: bool, inline: bool) -> Tool:
    @tool(timeout=30, idempotent=idempotent, inline=inline)
    def act(n: int, ctx: RunContext) -> str:
        """Do something outside."""
        note("effects", key=ctx.idempotency_key)
        return f"did {n}"

    return act


class Noted(Scripted):
    """A script that writes down who asked it, also for a step that it does not have."""

    def complete(self, request: ModelRequest) -> ModelReply:
        note("replies", agent=self.name, step=sum(message.role == "assistant" for message in request.messages))
        return super().complete(request)


class Facts:
    def recall(self, ctx: RunContext, text: str) -> list[str]:
        return ["a fact"]


def _acting(name: str, calls: int, *, idempotent: bool = False, inline: bool = False, **options: Any) -> Agent:
    asked = [Call("act", {"n": n}) for n in range(calls)]
    return Agent(
        name, model=Noted([asked, "done"], name), tools=[_tool(idempotent=idempotent, inline=inline)], **options
    )


_helper = Agent("helper", model=Noted(["two"], "helper"))

AGENTS = {
    agent.name: agent
    for agent in (
        _acting("one", 1, memory=Facts()),
        _acting("one_safe", 1, memory=Facts(), idempotent=True),
        _acting("gated", 1, approve=["act"]),
        _acting("gated_safe", 1, approve=["act"], idempotent=True),
        _acting("quick", 1, inline=True),
        _acting("quick_safe", 1, inline=True, idempotent=True),
        _acting("many", CALLS),
        _acting("many_safe", CALLS, idempotent=True),
        Agent("boss", model=Noted([Call("helper", {"input": "x"}), "done"], "boss"), tools=[_helper.as_tool()]),
        _helper,
    )
}
