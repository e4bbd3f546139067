"""The agents that work while everything around them is killed; each effect leaves a line before it and one after."""

import asyncio
import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

from agentq import Agent, Happened, NotHappened, RunContext, ToolMessage, tool
from agentq.messages import AssistantMessage, UserMessage
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Answer, Call, Scripted, Step
from agentq.tools import Tool

LOG = Path(os.environ.get("AGENTQ_TEST_LOG", "."))
# Beyond what a frozen worker sleeps: here a call that comes back late is no failure of its tool.
TIMEOUT_SECS = 60
MESSAGES_OF_A_THREAD = 10
GATED = "pay_gated"


def note(kind: str, **data: object) -> None:
    """One line, whole, whoever else writes."""
    line = json.dumps({"kind": kind, "at": time.time(), "pid": os.getpid(), **data}) + "\n"
    handle = os.open(LOG / "effects.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, line.encode())
    os.close(handle)


@tool(timeout=TIMEOUT_SECS)
def pay(n: int, secs: float, ctx: RunContext) -> str:
    """An effect that must not happen twice."""
    note("begin", tool="pay", key=ctx.idempotency_key, attempt=ctx.attempt)
    time.sleep(secs)
    note("end", tool="pay", key=ctx.idempotency_key, attempt=ctx.attempt)
    return f"pay {n}"


@tool(timeout=TIMEOUT_SECS, name=GATED)
def pay_gated(n: int, secs: float, ctx: RunContext) -> str:
    """An effect that must not happen twice, and not before somebody has agreed."""
    note("begin", tool=GATED, key=ctx.idempotency_key, attempt=ctx.attempt)
    time.sleep(secs)
    note("end", tool=GATED, key=ctx.idempotency_key, attempt=ctx.attempt)
    return f"{GATED} {n}"


def happened(key: str, folder: Path = LOG) -> bool:
    """Whether the effect of a call is there: what a destination knows."""
    path = folder / "effects.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return any(f'"key": "{key}"' in line and '"kind": "end"' in line for line in lines)


def find_payment(n: int, ctx: RunContext) -> Happened | NotHappened:
    return Happened(f"pay_probed {n}") if happened(ctx.idempotency_key) else NotHappened()


@tool(timeout=TIMEOUT_SECS, on_unknown=find_payment)
def pay_probed(n: int, secs: float, ctx: RunContext) -> str:
    """An effect that must not happen twice, and that can be looked for."""
    note("begin", tool="pay_probed", key=ctx.idempotency_key, attempt=ctx.attempt)
    time.sleep(secs)
    note("end", tool="pay_probed", key=ctx.idempotency_key, attempt=ctx.attempt)
    return f"pay_probed {n}"


@tool(timeout=TIMEOUT_SECS, on_unknown="ask")
def pay_asked(n: int, secs: float, ctx: RunContext) -> str:
    """An effect that must not happen twice, and that a person can look for."""
    note("begin", tool="pay_asked", key=ctx.idempotency_key, attempt=ctx.attempt)
    time.sleep(secs)
    note("end", tool="pay_asked", key=ctx.idempotency_key, attempt=ctx.attempt)
    return f"pay_asked {n}"


@tool(timeout=TIMEOUT_SECS, idempotent=True)
def look(n: int, secs: float, ctx: RunContext) -> str:
    """Something that may happen again."""
    note("begin", tool="look", key=ctx.idempotency_key, attempt=ctx.attempt)
    time.sleep(secs)
    note("end", tool="look", key=ctx.idempotency_key, attempt=ctx.attempt)
    return f"look {n}"


@tool(timeout=TIMEOUT_SECS, idempotent=True)
async def fetch(n: int, secs: float, ctx: RunContext) -> str:
    """Something that may happen again, on the loop."""
    note("begin", tool="fetch", key=ctx.idempotency_key, attempt=ctx.attempt)
    await asyncio.sleep(secs)
    note("end", tool="fetch", key=ctx.idempotency_key, attempt=ctx.attempt)
    return f"fetch {n}"


# What becomes of each tool's call whose worker was lost.
ON_UNKNOWN = {each.name: each.on_unknown for each in (pay, pay_gated, pay_probed, pay_asked, look, fetch)}


def thinking(agent: str, turns: Sequence[Answer], low: float, high: float) -> Step:
    """Every reply of an agent, which takes its time: its turns, then how many results it has seen."""

    def reply(request: ModelRequest) -> Answer:
        note("model", agent=agent)
        time.sleep(random.uniform(low, high))
        # Not counted from the beginning of a thread: an earlier run may have been cancelled in between.
        asked = max(at for at, message in enumerate(request.messages) if isinstance(message, UserMessage))
        since = request.messages[asked:]
        number = sum(isinstance(message, AssistantMessage) for message in since)
        results = sum(isinstance(message, ToolMessage) for message in since)
        return turns[number] if number < len(turns) else final_text(agent, results)

    return reply


def final_text(agent: str, results: int) -> str:
    return f"{agent} is done after {results} results"


# How many results a run of each agent sees before it answers.
RESULTS: dict[str, int] = {}
# What a producer may ask for, and how often.
WEIGHTS: dict[str, float] = {}


def act(name: str, n: int, low: float = 0.05, high: float = 0.3) -> Call:
    # One place in the script, one time: a repeated call of a run sleeps as long as the first.
    return Call(name, {"n": n, "secs": round(random.Random(f"{name}{n}{low}").uniform(low, high), 2)})


def make(
    name: str,
    *turns: Call | list[Call],
    weight: float,
    thinks: tuple[float, float] = (0.5, 2.0),
    tools: Sequence[Tool] = (),
    approve: Sequence[str] = (),
) -> Agent:
    """An agent that makes these turns and then answers."""
    RESULTS[name] = sum(len(turn) if isinstance(turn, list) else 1 for turn in turns)
    WEIGHTS[name] = weight
    replies = (len(turns) + 1) * MESSAGES_OF_A_THREAD
    model = Scripted([thinking(name, turns, *thinks)] * replies)
    return Agent(name, model=model, tools=[pay, pay_probed, pay_asked, look, fetch, *tools], approve=approve)


loop = make("loop", act("pay", 0), act("look", 1), act("pay", 2), act("fetch", 3), weight=3)
fan = make("fan", [act(("pay", "look", "pay", "fetch")[n % 4], n) for n in range(12)], weight=2)
slow_model = make("slow_model", act("look", 0), act("pay", 1), weight=2, thinks=(2.0, 6.0))
slow_tool = make("slow_tool", act("pay", 0, 0.5, 3.0), act("look", 1, 0.5, 3.0), weight=1)
gated = make("gated", [act(GATED, 0), act("look", 1)], weight=3, tools=[pay_gated], approve=[GATED])
child = make("child", [act("pay", 0), act("look", 1)], weight=0)
parent = make("parent", [Call("child", {"input": "go"}), act("look", 1)], weight=1.5, tools=[child.as_tool()])
checked = [act(("pay_probed", "pay_asked")[n % 2], n) for n in range(6)]
unknown = make("unknown", act("pay_probed", 0), act("pay_asked", 1), checked, weight=3)
talk = make("talk", act("pay", 0), weight=1.5)
