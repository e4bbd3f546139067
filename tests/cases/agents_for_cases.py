"""The agents that real workers run in these cases; what they do is written to a file in AGENTQ_TEST_LOG."""

import asyncio
import contextvars
import ctypes
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentq import Agent, AssistantMessage, Hooks, ModelView, RunContext, ToolCall, ToolResult, tool
from agentq.messages import UserMessage
from agentq.providers.base import ModelReply, ModelRequest
from agentq.providers.scripted import Call, Scripted, Step

LOG = Path(os.environ.get("AGENTQ_TEST_LOG", "."))
TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


def log(kind: str, **data: object) -> None:
    """One line, whole, whoever else writes."""
    line = json.dumps({"kind": kind, "at": time.monotonic(), "pid": os.getpid(), **data}) + "\n"
    handle = os.open(LOG / "calls.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, line.encode())
    os.close(handle)


class Model:
    """A script that checks each transcript: every call has one result, in its place. It answers "again" at once."""

    name = "model"

    def __init__(self, steps: list[Step]) -> None:
        self._script = Scripted(steps)

    def complete(self, request: ModelRequest) -> ModelReply:
        asked: list[str] = []
        for message in request.messages:
            if message.role == "tool":
                assert message.result.call_id == asked.pop(0)
            else:
                assert asked == []
                asked = [call.id for call in message.calls] if message.role == "assistant" else []
        last = request.messages[-1]
        if isinstance(last, UserMessage) and last.text == "again":
            return Scripted([lambda _: "still here"] * 99).complete(request)
        return self._script.complete(request)


# ---------------------------------------------------------------------------------------------- tools


@tool(timeout=60)
def note(name: str, ctx: RunContext, secs: float = 0) -> str:
    """Write down that it ran."""
    log("note", name=name, key=ctx.idempotency_key)
    time.sleep(secs)
    log("noted", name=name)
    return name


@tool(timeout=60, idempotent=True)
def safe_note(name: str, ctx: RunContext, secs: float = 0) -> str:
    """Write down that it ran; slow only at first."""
    log("note", name=name, key=ctx.idempotency_key)
    time.sleep(secs if ctx.attempt == 1 else 0)
    return name


@tool(timeout=60)
async def async_note(name: str, secs: float = 0) -> str:
    """Write down that it ran, and that it was told to stop."""
    log("note", name=name)
    try:
        await asyncio.sleep(secs)
    except asyncio.CancelledError:
        log("told", name=name)
        raise
    return name


@tool(timeout=60)
async def deaf_note(name: str, secs: float) -> str:
    """Write down that it ran, and swallow being told to stop."""
    log("note", name=name)
    end = time.monotonic() + secs
    while time.monotonic() < end:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            log("told", name=name)
    return name


def charge_then_die(ctx: RunContext) -> str:
    """Charge, and lose the process the first time."""
    log("charge", key=ctx.idempotency_key, attempt=ctx.attempt)
    if ctx.attempt == 1:
        os._exit(9)
    return "charged"


charge = tool(name="charge", timeout=60)(charge_then_die)
safe_charge = tool(name="safe_charge", timeout=60, idempotent=True)(charge_then_die)


@tool(timeout=60, idempotent=True)
def deadly(times: int, ctx: RunContext) -> str:
    """Kill the process, a number of times."""
    log("deadly", key=ctx.idempotency_key)
    if ctx.attempt <= times:
        os._exit(9)
    return "survived"


@tool(timeout=1)
def swallow() -> str:
    """Hang, and swallow whatever is raised."""
    log("hang")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            time.sleep(60)
        except BaseException:
            continue
    return "never"


@tool(timeout=1)
async def swallow_async() -> str:
    """Hang on the loop, and swallow whatever is raised."""
    log("hang")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            await asyncio.sleep(60)
        except BaseException:
            continue
    return "never"


@tool(timeout=1)
async def block_the_loop() -> str:
    """Block the loop in a call that is not async."""
    log("hang")
    time.sleep(60)
    return "never"


def lock_for_ever(library: ctypes.CDLL) -> None:
    """Take a lock twice: a wait in C that no signal ends."""
    mutex = ctypes.create_string_buffer(256)
    library.pthread_mutex_init(mutex, None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


@tool(timeout=1)
def hang_in_c() -> None:
    """Wait in C, where no signal is looked at; the process's other threads go on."""
    log("hang")
    lock_for_ever(ctypes.CDLL(None))


@tool(timeout=1)
def hold_the_interpreter() -> None:
    """Wait in C with the interpreter's lock in hand: no thread of the process goes on."""
    log("hang")
    lock_for_ever(ctypes.PyDLL(None))


@tool
def tenant() -> str:
    """The run's tenant, as a sync tool sees it."""
    seen = TENANT.get()
    TENANT.set("set by a tool")
    return f"{seen} {os.getpid()}"


@tool
async def tenant_async() -> str:
    """The run's tenant, as an async tool sees it."""
    seen = TENANT.get()
    TENANT.set("set by a tool")
    return f"{seen} {os.getpid()}"


class SetsTenant(Hooks):
    """The way to set something for a run's tools."""

    def before_tool(self, ctx: RunContext, call: ToolCall) -> None:
        if "tenant" in ctx.context:
            TENANT.set(ctx.context["tenant"])


class Ends(Hooks):
    """Writes down how runs end."""

    def on_end(self, ctx: RunContext, status: str) -> None:
        log("end", run=ctx.run_id, status=status)


class FailsOnce(Hooks):
    """Raises the first time that a tool came back to it."""

    def after_tool(self, ctx: RunContext, result: ToolResult) -> None:
        log("after", name=result.name)
        if not (LOG / "failed").exists():
            (LOG / "failed").touch()
            raise RuntimeError("once")


class FailsBeforeModel(Hooks):
    def before_model(self, ctx: RunContext, view: ModelView) -> None:
        log("before", replies=len(view.messages) // 2)
        raise RuntimeError("always")


class HangsEverywhere(Hooks):
    """Longer than the lease of any worker, wherever it is called."""

    def _hang(self, where: str) -> None:
        log("hang", name=where)
        time.sleep(120)
        log("woke", name=where)

    def before_model(self, ctx: RunContext, view: ModelView) -> None:
        self._hang("before_model")

    def after_model(self, ctx: RunContext, reply: AssistantMessage) -> None:
        self._hang("after_model")

    def before_tool(self, ctx: RunContext, call: ToolCall) -> None:
        self._hang("before_tool")

    def after_tool(self, ctx: RunContext, result: ToolResult) -> None:
        self._hang("after_tool")

    def on_end(self, ctx: RunContext, status: str) -> None:
        self._hang("on_end")


class Store:
    """A memory that does what it was given."""

    def __init__(self, recall: Callable[[], list[str]]) -> None:
        self._recall = recall

    def recall(self, ctx: RunContext, text: str) -> list[str]:
        log("recall")
        return self._recall()


def store_is_down() -> list[str]:
    raise ConnectionError("the store is down")


def store_hangs() -> list[str]:
    time.sleep(120)
    return ["too late"]


def seen_by_the_model(request: ModelRequest) -> str:
    """Answer with the facts it was given."""
    return request.instructions or "no facts"


def slow_reply(request: ModelRequest) -> str:
    """Take long."""
    log("note", name="model")
    time.sleep(3)
    return "done"


TOOLS = [note, safe_note, async_note, deaf_note, charge, safe_charge, deadly, tenant, tenant_async]
HUNG = [swallow, swallow_async, block_the_loop, hang_in_c, hold_the_interpreter]


def agent(name: str, *steps: Step, **options: Any) -> Agent:
    hooks = [Ends(), SetsTenant(), *options.pop("more_hooks", ())]
    return Agent(name, model=Model(list(steps)), tools=[*TOOLS, *HUNG], hooks=hooks, **options)


def once(name: str, *calls: Call, **options: Any) -> Agent:
    return agent(name, list(calls), "done", **options)


quick = once("quick", Call("note", {"name": "quick"}))
# A short limit: Celery keeps a timer for each task, until a time that goes by its limit, in its worker's memory.
tiny = once("tiny", Call("tenant"), Call("tenant"), Call("tenant_async"), limits={"tool_timeout_secs": 5})
tenants = once("tenants", Call("tenant"), Call("tenant_async"))

# F1: A comes back, B and C are under way.
half = once(
    "half",
    Call("note", {"name": "A"}),
    Call("note", {"name": "B", "secs": 30}),
    Call("safe_note", {"name": "C", "secs": 30}),
)

# F2
pays = once("pays", Call("charge"))
pays_beside = once("pays_beside", Call("charge"), Call("note", {"name": "beside"}))
pays_safely = once("pays_safely", Call("safe_charge"))
pays_safely_beside = once("pays_safely_beside", Call("safe_charge"), Call("note", {"name": "beside"}))

# F5
poison = once("poison", Call("note", {"name": "one"}), Call("deadly", {"times": 99}), Call("note", {"name": "two"}))
poison_twice = once(
    "poison_twice", Call("note", {"name": "one"}), Call("deadly", {"times": 2}), Call("note", {"name": "two"})
)

# M4
sync_tool = once("sync_tool", Call("note", {"name": "slow", "secs": 3}))
sync_tools = once(
    "sync_tools", *[Call("note", {"name": f"slow {n}", "secs": 3}) for n in range(2)], Call("note", {"name": "x"})
)
async_tool = once("async_tool", Call("async_note", {"name": "slow", "secs": 50}))
async_tools = once("async_tools", *[Call("async_note", {"name": f"slow {n}", "secs": 50}) for n in range(12)])
deaf_tool = once("deaf_tool", Call("deaf_note", {"name": "slow", "secs": 4}))
slow_model = agent("slow_model", slow_reply)
lost_tool = once("lost_tool", Call("note", {"name": "slow", "secs": 50}))
asks_helper = Agent(
    "asks_helper",
    model=Model([[Call("async_tools", {"input": "go"}), Call("note", {"name": "beside"})], "done"]),
    tools=[async_tools.as_tool(), note],
    hooks=[Ends()],
)

# O3. Hooks are given longer than a lease of these tests.
fails_once = once("fails_once", Call("safe_note", {"name": "paid"}), more_hooks=[FailsOnce()])
fails_once_beside = once(
    "fails_once_beside", *[Call("safe_note", {"name": f"paid {n}"}) for n in range(3)], more_hooks=[FailsOnce()]
)
fails_always = once("fails_always", Call("note", {"name": "x"}), more_hooks=[FailsBeforeModel()])
hooks_hang = once("hooks_hang", Call("safe_note", {"name": "x"}), more_hooks=[HangsEverywhere()], hook_timeout_secs=3.0)
waits = once("waits", Call("note", {"name": "x"}), approve=["note"])
memory_down = agent("memory_down", seen_by_the_model, memory=Store(store_is_down))
memory_hangs = agent("memory_hangs", seen_by_the_model, memory=Store(store_hangs), hook_timeout_secs=3.0)
memory_nul = agent("memory_nul", seen_by_the_model, memory=Store(lambda: ["likes\x00tea \ud800"]))

# Hung tools
eight_hung = once("eight_hung", *[Call("swallow") for _ in range(8)], Call("note", {"name": "ninth"}))
swallows = once("swallows", Call("swallow"))
swallows_async = once("swallows_async", Call("swallow_async"))
blocks_the_loop = once("blocks_the_loop", Call("block_the_loop"))
hangs_in_c = once("hangs_in_c", Call("hang_in_c"))
holds_the_interpreter = once("holds_the_interpreter", Call("hold_the_interpreter"))
