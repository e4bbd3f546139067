"""agentq as one of the peers: the file that their harness asks for, so that all are measured in one interleaved run.

    PYTHONPATH=HARNESS:. python benchmarks/peer_agentq.py --work w1 --procs 2 --conc 16 --runs 48 [--mode broker]

HARNESS is the folder with the peers' ``common.py``. Modes: ``local`` (the default, but ``broker`` where this version
has no local steps) and ``broker``, every step through the broker. ``--procs`` is the number of processes of threads
for steps; where tools need processes of their own, there is one pool more.
"""

import asyncio
import json
import os
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import common
import redis
from celery.signals import worker_ready

from agentq import Agent, Client, RunContext
from agentq.config import Settings
from agentq.hooks import Hooks
from agentq.messages import AssistantMessage, ToolCall, Usage
from agentq.providers.base import ModelReply, ModelRequest
from agentq.storage import migrate
from agentq.storage.database import Database
from benchmarks.modes import MODES, Mode, make_tool, variables
from tests.waiting import eventually

NAME = "looper"


def mode() -> Mode:
    return MODES[0] if os.environ["PEERS_MODE"] in ("", "local") else "broker"


def has_tool_pool() -> bool:
    """A batch of calls runs in processes whatever the mode."""
    calls: int = common.script().fan
    return calls > 1 or (mode() == "broker" and calls > 0)


class ScriptedModel:
    """Asks the harness; the run's message is its name."""

    name = "script"

    def complete(self, request: ModelRequest) -> ModelReply:
        turn = sum(isinstance(message, AssistantMessage) for message in request.messages)
        reply = common.model(getattr(request.messages[0], "text", ""), turn)
        calls = [
            ToolCall(id=call["id"], name=call["name"], arguments=json.dumps(call["args"]))
            for call in reply["tool_calls"]
        ]
        return ModelReply(AssistantMessage(text=reply["content"], calls=tuple(calls)), Usage())


class NoteTheEnd(Hooks):
    """After the commit that ended the run."""

    def on_end(self, ctx: RunContext, status: str) -> None:
        common.note(ctx.context["run"], "done", 0)


def lookup(item: int, part: int, ctx: RunContext) -> Any:
    """Find an item."""
    return common.tool(ctx.context["run"], item, part)


def make_agent() -> Agent:
    """The agent of the work that the harness has named."""
    return Agent(
        NAME,
        model=ScriptedModel(),
        tools=[make_tool(lookup, inline=not has_tool_pool(), idempotent=os.environ["PEERS_WORK"] != "w5")],
        limits={"model_calls": common.script().turns + 1},
        hooks=[NoteTheEnd()],
    )


# The harness names the work after it has imported this file; its workers and clients know it from the beginning.
if "PEERS_WORK" in os.environ:
    looper = make_agent()
worker_ready.connect(lambda **_: common.note("worker", "ready", os.getpid()), weak=False)


class AgentqPeer(common.Peer):  # type: ignore[misc]
    """Its workers are processes of their own; the client enqueues and waits for the end's line in the call log."""

    name, db, is_async = "agentq", "peers_agentq", True

    @cached_property
    def settings(self) -> Settings:
        return Settings(
            database_url=f"{common.PG}/{self.db}",
            broker_url=f"{common.REDIS}/{os.environ.get('PEERS_REDIS_DB', '5')}",
            agents=str(Path(__file__).resolve()),
        )

    def reset(self) -> None:
        redis.Redis.from_url(str(self.settings.broker_url)).flushdb()
        common.fresh_db(self.db)
        database = Database(str(self.settings.database_url))
        migrate.upgrade(database)
        database.dispose()

    def services(self, procs: int, conc: int) -> list[tuple[list[str], dict[str, str]]]:
        command = [sys.executable, "-m", "agentq", "worker", "--only"]
        own = self.settings.environment() | variables(mode())
        steps = [(*command, "steps", "--concurrency", str(max(4, conc // procs)))] * procs
        children = common.AT_ONCE if common.script().fan > 1 else min(2 * procs, conc)
        tools = [(*command, "tools", "--tool-concurrency", str(children))] if has_tool_pool() else []
        self._expected = len(steps) + len(tools)
        return [(list(words), own) for words in [*steps, *tools]]

    def ready(self) -> None:
        def count() -> int:
            return sum(kind == "ready" for _, kind, *_ in common.calls(os.environ["PEERS_CALLS"]))

        eventually(lambda: count() >= self._expected, within=60, what="the workers are ready")

    def service_pids(self) -> list[int]:
        return [redis.Redis.from_url(str(self.settings.broker_url)).info()["process_id"]]

    def client_procs(self, procs: int) -> int:
        return 1

    async def aopen(self) -> None:
        self.client = Client(settings=self.settings, agents=[make_agent()])
        self.done = common.Done()

    async def arun(self, run: str) -> None:
        handle = self.client.enqueue(NAME, run, context={"run": run})
        if os.environ["PEERS_WORK"] == "w5":
            # A killed worker may lose the hook of a run whose end it has committed.
            await asyncio.to_thread(handle.wait)
            common.note(run, "done", 0)
        else:
            await self.done.wait(run)

    async def aclose(self) -> None:
        self.client.close()


if __name__ == "__main__":
    common.main(AgentqPeer)
