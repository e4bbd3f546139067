"""The agents that real workers run in these tests; what they do is written to files in AGENTQ_TEST_LOG."""

import asyncio
import ctypes
import json
import os
import time
from pathlib import Path
from typing import Any

from agentq import Agent, Happened, Image, NotHappened, RunContext, tool
from agentq.messages import media_of
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from tests.images import png

LOG = Path(os.environ.get("AGENTQ_TEST_LOG", "."))


def log(kind: str, **data: object) -> None:
    """One line, whole, whoever else writes."""
    line = json.dumps({"kind": kind, "at": time.monotonic(), "pid": os.getpid(), **data}) + "\n"
    handle = os.open(LOG / "calls.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, line.encode())
    os.close(handle)


@tool(timeout=30)
def nap(n: int, secs: float, ctx: RunContext) -> str:
    """Sleep, and say when."""
    log("begin", n=n, key=ctx.idempotency_key)
    time.sleep(secs)
    log("end", n=n, key=ctx.idempotency_key)
    return f"slept {n}"


@tool(timeout=30, idempotent=True)
def safe_nap(n: int, secs: float, ctx: RunContext) -> str:
    """Sleep, and allow to be woken and sent to sleep again."""
    log("begin", n=n, key=ctx.idempotency_key, attempt=ctx.attempt)
    # Only the first attempt is slow: the test kills it there.
    time.sleep(secs if ctx.attempt == 1 else 0)
    log("end", n=n, key=ctx.idempotency_key, attempt=ctx.attempt)
    return f"slept {n}"


@tool(timeout=1)
def hang() -> str:
    """Hang, and swallow whatever is raised."""
    log("begin", n=0)
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        try:
            time.sleep(60)
        except BaseException:
            log("swallowed", n=0)
    return "never"


@tool
async def async_nap(n: int, secs: float) -> str:
    """Sleep on the loop."""
    log("begin", n=n)
    await asyncio.sleep(secs)
    return f"slept {n}"


@tool(timeout=30)
def selfish(secs: float) -> str:
    """Hold the interpreter, so that no other thread of the process gets a turn."""
    log("begin", n=0)
    # sleep() of the C library, called without letting go of the interpreter.
    ctypes.PyDLL(None).usleep(int(secs * 1_000_000))
    return "let go"


@tool(idempotent=True)
def deadly() -> str:
    """Kill the process."""
    log("begin", n=0)
    os._exit(9)


@tool(timeout=5)
def brief_nap(n: int, ctx: RunContext) -> str:
    """Take one of the few seconds there are."""
    log("begin", n=n, key=ctx.idempotency_key)
    time.sleep(1.5)
    return f"slept {n}"


def look(n: int, ctx: RunContext) -> Happened | NotHappened:
    """Take most of the time a tool has."""
    log("look", n=n)
    time.sleep(4)
    return NotHappened()


@tool(timeout=5, on_unknown=look)
def looked_for(n: int, ctx: RunContext) -> str:
    """Take the process along at first, then most of the time there is."""
    log("begin", n=n, attempt=ctx.attempt)
    if ctx.attempt == 1:
        os._exit(9)
    time.sleep(4)
    return f"did {n}"


@tool(queue="special")
def routed() -> int:
    """Say which process ran it."""
    return os.getpid()


def slow_reply(request: ModelRequest) -> str:
    """Answer slowly the first time it is asked in this folder, so that a test can kill it there."""
    first = not (LOG / "asked").exists()
    (LOG / "asked").touch()
    log("begin", n=0)
    time.sleep(30 if first else 0)
    return "done"


@tool(idempotent=True)
def draw(n: int) -> list[Any]:
    """Draw."""
    return [f"drawn {n}", Image.from_bytes(png(n, filled_to=20_000 + n))]


def seen_slowly(request: ModelRequest) -> str:
    """Say how large what was seen is, and die with it the first time."""
    slow_reply(request)
    return " ".join(str(len(one.data or b"")) for message in request.messages for one in media_of(message))


def patient_reply(request: ModelRequest) -> str:
    """Answer when there is a file of the message's name."""
    log("begin", n=0)
    (message,) = request.messages
    while not (LOG / message.text).exists():  # type: ignore[union-attr]
        time.sleep(0.05)
    return "done"


TOOLS = [nap, safe_nap, hang, async_nap, selfish, deadly, routed]

quick = Agent("quick", model=Scripted([Call("nap", {"n": 1, "secs": 0}), "done"]), tools=TOOLS)
fan = Agent("fan", model=Scripted([[Call("nap", {"n": n, "secs": 0.1}) for n in range(32)], "done"]), tools=TOOLS)
slow_model = Agent("slow_model", model=Scripted([slow_reply]))
patient = Agent("patient", model=Scripted([patient_reply]))
slow_tool = Agent("slow_tool", model=Scripted([Call("nap", {"n": 1, "secs": 20}), "done"]), tools=TOOLS)
short_tool = Agent("short_tool", model=Scripted([Call("nap", {"n": 1, "secs": 3}), "done"]), tools=TOOLS)
loop = Agent("loop", model=Scripted([*[Call("nap", {"n": n, "secs": 0.2}) for n in range(6)], "done"]), tools=TOOLS)
slow_safe_tool = Agent("slow_safe_tool", model=Scripted([Call("safe_nap", {"n": 1, "secs": 20}), "done"]), tools=TOOLS)
slow_batch = Agent(
    "slow_batch",
    model=Scripted(
        [[Call("nap", {"n": 0, "secs": 0}), *[Call("safe_nap", {"n": n, "secs": 20}) for n in (1, 2)]], "done"]
    ),
    tools=TOOLS,
)
hung = Agent("hung", model=Scripted([[Call("hang"), Call("async_nap", {"n": 1, "secs": 0.05})], "done"]), tools=TOOLS)
hung_alone = Agent("hung_alone", model=Scripted([Call("hang"), "done"]), tools=TOOLS)
killer = Agent("killer", model=Scripted([[Call("deadly"), Call("nap", {"n": 1, "secs": 0})], "done"]), tools=TOOLS)
selfish_one = Agent("selfish_one", model=Scripted([Call("selfish", {"secs": 8}), "done"]), tools=TOOLS)
selfish_two = Agent(
    "selfish_two",
    model=Scripted([[Call("selfish", {"secs": 8}), Call("nap", {"n": 1, "secs": 0})], "done"]),
    tools=TOOLS,
)
painter = Agent("painter", model=Scripted([[Call("draw", {"n": n}) for n in (1, 2, 1)], seen_slowly]), tools=[draw])
brief = Agent("brief", model=Scripted([Call("brief_nap", {"n": 0}), "done"]), tools=[brief_nap])
brief_batch = Agent(
    "brief_batch", model=Scripted([[Call("brief_nap", {"n": n}) for n in range(2)], "done"]), tools=[brief_nap]
)
payer = Agent("payer", model=Scripted([Call("looked_for", {"n": 0}), "done"]), tools=[looked_for])
special = Agent("special", model=Scripted([Call("routed"), "done"]), tools=TOOLS)
gated = Agent("gated", model=Scripted([Call("nap", {"n": 1, "secs": 0}), "done"]), tools=TOOLS, approve=["nap"])
teller = Agent("teller", model=Scripted([" ".join(f"word{n}" for n in range(80))], delay_secs=3), stream=True)
