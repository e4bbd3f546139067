"""What the agents of the scenarios are made of: models and tools that take their time, and say where they are."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentq import Happened, NotHappened, RunContext, UserMessage, tool
from agentq.providers.base import ModelReply, ModelRequest
from agentq.providers.scripted import Fault, Scripted, Step

FOLDER = Path(os.environ.get("AGENTQ_TEST_LOG", "."))
MARKS, PIPE = "marks.jsonl", "marks.pipe"
# Long enough for a kill to come in between, short enough that sixty scenarios are done in minutes.
MODEL_SECS, TOOL_SECS, HOOK_SECS = 0.12, 0.16, 0.08


def mark(point: str, **data: Any) -> None:
    """A line for the evidence, and at once to whoever kills workers; whole, whoever else writes."""
    known = {"point": point, "pid": os.getpid(), "group": os.getpgrp(), "at": time.monotonic()}
    line = (json.dumps({"end": False, "agent": "", **known, **data}) + "\n").encode()
    _append(FOLDER / MARKS, line, os.O_CREAT)
    with suppress(FileNotFoundError):
        _append(FOLDER / PIPE, line, os.O_NONBLOCK)


def _append(path: Path, line: bytes, how: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | how, 0o644)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


@contextmanager
def at(point: str, **data: Any) -> Iterator[None]:
    """Marks where the block begins and ends."""
    mark(point, **data)
    try:
        yield
    finally:
        mark(point, **data, end=True)


class Played(Scripted):
    """A script whose model takes its time; of a thread the replies since its last message count."""

    def __init__(self, steps: Sequence[Step | Fault], name: str, *, secs: float = MODEL_SECS) -> None:
        super().__init__(steps, name)
        self._secs = secs

    def complete(self, request: ModelRequest) -> ModelReply:
        with at("model", agent=self.name):
            time.sleep(self._secs)
            return super().complete(self._now(request))

    def _now(self, request: ModelRequest) -> ModelRequest:
        """The request as it would be without what was said before on the thread."""
        asked = max(n for n, message in enumerate(request.messages) if isinstance(message, UserMessage))
        return replace(request, messages=request.messages[asked:])


class Whole(Played):
    """One that counts all replies it is shown: for runs that get further messages on their way."""

    def _now(self, request: ModelRequest) -> ModelRequest:
        return request


def act(ctx: RunContext, name: str, *, secs: float = TOOL_SECS) -> None:
    """Do something outside: the effect is in the middle of the time it takes."""
    known = {"agent": ctx.agent, "run": ctx.run_id, "call": ctx.call_id, "tool": name}
    with at("tool", **known, attempt=ctx.attempt, approved=ctx.approved):
        time.sleep(secs / 2)
        mark("effect", **known, key=ctx.idempotency_key)
        time.sleep(secs / 2)


@tool(timeout=30)
def pay(n: int, ctx: RunContext) -> str:
    """An effect that must not happen twice."""
    act(ctx, "pay")
    return f"pay {n}"


@tool(timeout=30, idempotent=True)
def look(n: int, ctx: RunContext) -> str:
    """Something that may happen again."""
    act(ctx, "look")
    return f"look {n}"


@tool(timeout=30, idempotent=True)
async def fetch(n: int, ctx: RunContext) -> str:
    """The same on the loop."""
    act(ctx, "fetch")
    return f"fetch {n}"


@tool(timeout=30, on_unknown="ask")
def ask(n: int, ctx: RunContext) -> str:
    """An effect that a person can look for."""
    act(ctx, "ask", secs=0.4)
    return f"ask {n}"


def find(n: int, ctx: RunContext) -> Happened | NotHappened:
    """What the destination knows of a key."""
    with at("probe", agent=ctx.agent, run=ctx.run_id):
        is_there = any(each["key"] == ctx.idempotency_key for each in marks(FOLDER) if each["point"] == "effect")
        return Happened(f"probed {n}") if is_there else NotHappened()


@tool(timeout=30, on_unknown=find)
def probed(n: int, ctx: RunContext) -> str:
    """An effect that its destination can be asked about."""
    act(ctx, "probed")
    return f"probed {n}"


def marks(folder: Path) -> list[dict[str, Any]]:
    """Everything marked until now."""
    path = folder / MARKS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
