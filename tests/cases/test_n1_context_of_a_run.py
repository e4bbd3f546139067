"""N1: what is set in a ContextVar for a run is seen by its tools, sync and async, and by no other run."""

import contextvars
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentq import Agent, AssistantMessage, Hooks, RunContext, ToolCall, tool
from agentq.messages import ToolResult
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted, Step
from agentq.storage.database import Database
from agentq.wire import WakeUp
from tests.cases.stored import results
from tests.engine.drain import Drain
from tests.workers.fleet import Fleet

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


class Tenant(Hooks):
    """Sets the run's tenant, where it has one, before each of its tools."""

    def __init__(self, after: list[str]) -> None:
        self._after = after

    def before_tool(self, ctx: RunContext, call: ToolCall) -> None:
        if "tenant" in ctx.context:
            TENANT.set(ctx.context["tenant"])

    def after_tool(self, ctx: RunContext, result: ToolResult) -> None:
        self._after.append(TENANT.get())


@tool
def read() -> str:
    """Read it."""
    return TENANT.get()


@tool
async def read_async() -> str:
    """Read it on the loop."""
    return TENANT.get()


@tool
def write() -> str:
    """Change it."""
    TENANT.set("somebody else")
    return TENANT.get()


@tool
async def write_async() -> str:
    """Change it on the loop."""
    TENANT.set("somebody else")
    return TENANT.get()


TOOLS = [read, read_async, write, write_async]
NAMES = [made.name for made in TOOLS]
BATCH: list[Step] = [[Call(name) for name in NAMES], "done"]
ONE_BY_ONE: list[Step] = [*[[Call(name)] for name in NAMES], "done"]


@pytest.mark.parametrize("script", [BATCH, ONE_BY_ONE], ids=["batch", "one by one"])
def test_every_tool_sees_the_value_of_its_run_and_none_that_another_tool_or_run_has_set(
    database: Database, script: list[Step]
) -> None:
    after: list[str] = []
    drain = Drain(database, test := Agent("test", model=Scripted(script), tools=TOOLS, hooks=[Tenant(after)]))
    for tenant in ("acme", None, "other", None):
        after.clear()
        handle = drain.enqueue(test, context={"tenant": tenant} if tenant else {})
        drain.work()
        seen = tenant or "nobody"
        assert [result.text for result in results(handle)] == [seen, seen, "somebody else", "somebody else"]
        # Hooks see what hooks have set, never what a tool has.
        assert after == [seen] * 4
    assert TENANT.get() == "nobody"


def test_what_a_model_or_a_hook_sets_ends_with_the_step(database: Database) -> None:
    found: list[str] = []

    class Sets(Hooks):
        def before_model(self, ctx: RunContext) -> None:
            found.append(TENANT.get())
            TENANT.set("set by a hook")

        def after_model(self, ctx: RunContext, reply: AssistantMessage) -> None:
            found.append(TENANT.get())

    def reply(request: ModelRequest) -> str:
        TENANT.set("set by a model")
        return "done"

    drain = Drain(database, test := Agent("test", model=Scripted([reply]), hooks=[Sets()]))
    for _ in range(2):
        assert drain.run(test).text == "done"
    assert found == ["nobody", "set by a model"] * 2
    assert TENANT.get() == "nobody"


def test_runs_beside_each_other_in_a_pool_of_threads_keep_their_values(database: Database) -> None:
    """Eight runs on four threads, which outlive them; each thread gets calls of several runs."""
    drain = Drain(database, test := Agent("test", model=Scripted(BATCH), tools=TOOLS, hooks=[Tenant([])]))
    waiting: queue.SimpleQueue[WakeUp] = queue.SimpleQueue()
    drain.send = waiting.put  # type: ignore[method-assign]
    names: set[str] = set()

    def do(wake_up: WakeUp) -> None:
        names.add(threading.current_thread().name)
        drain.do(wake_up)

    tenants = ["acme", None, "other", None] * 2
    handles = [drain.enqueue(test, context={"tenant": tenant} if tenant else {}) for tenant in tenants]
    with ThreadPoolExecutor(4) as pool:
        while not all(handle.run().is_terminal for handle in handles):
            while not waiting.empty():
                pool.submit(do, waiting.get())
            while drain.wake_ups:
                pool.submit(do, drain.wake_ups.pop())
    assert len(names) > 1
    for handle, tenant in zip(handles, tenants, strict=True):
        seen = tenant or "nobody"
        assert [result.text for result in results(handle)] == [seen, seen, "somebody else", "somebody else"]


@pytest.mark.crash
def test_runs_after_each_other_in_one_worker_child_keep_their_values(workers: Fleet) -> None:
    workers.both(concurrency=1)
    pids: set[str] = set()
    for tenant in ("acme", None, "other", None):
        handle = workers.client.enqueue("tenants", "go", context={"tenant": tenant} if tenant else {})
        handle.wait(60)
        values, processes = zip(*(result.text.split(" ") for result in results(handle)), strict=True)
        assert values == (tenant or "nobody",) * 2
        pids.update(processes)
    assert len(pids) == 1
