"""The whole loop in one process on a real Postgres: wake-ups are collected and done one after the other."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from agentq import Agent, Client, Handle, Result
from agentq.agent import AgentSpec
from agentq.config import Settings
from agentq.engine import Engine
from agentq.heartbeat import Heartbeat
from agentq.providers.registry import resolve
from agentq.recovery import sweep
from agentq.registry import by_name
from agentq.services import Services, no_probe
from agentq.storage.database import Database
from agentq.wire import BatchMessage, CallMessage, StepMessage, WakeUp


class Died(BaseException):
    """What a probe raises where a process would be killed: nothing of ours catches it."""


class Drain:
    """A dispatcher that keeps what it is given, a client that enqueues to it, and an engine that works it off."""

    def __init__(
        self,
        database: Database,
        *agents: Agent,
        lease_secs: float = 15.0,
        probe: Callable[[str, str], None] = no_probe,
        local_steps: int = 0,
    ) -> None:
        self.wake_ups: list[WakeUp] = []
        self.sent: list[WakeUp] = []
        self.database = database
        self.agents: dict[str, AgentSpec] = by_name(agents)
        url = database.url
        settings = Settings(database_url=url, broker_url="redis://nowhere.invalid")
        self.client = Client(settings=settings, agents=agents)
        self.client.database = database
        self.client.__dict__["dispatcher"] = self
        services = Services(
            database=database,
            agents=self.agents,
            dispatcher=self,
            heartbeat=Heartbeat(database, lease_secs),
            resolve=resolve,
            worker="drain",
            lease_secs=lease_secs,
            probe=probe,
            local_steps=local_steps,
        )
        self.engine = Engine(services)

    def send(self, wake_up: WakeUp) -> None:
        self.wake_ups.append(wake_up)
        self.sent.append(wake_up)

    def enqueue(self, agent: Agent, text: str = "go", **options: Any) -> Handle:
        return agent.enqueue(text, client=self.client, **options)

    def run(self, agent: Agent, text: str = "go", **options: Any) -> Result:
        """Enqueue, work off, and give the result; raises as ``Handle.result`` does."""
        self.agents.setdefault(agent.name, agent)
        handle = self.enqueue(agent, text, **options)
        self.work()
        return handle.result()

    def work(self, *, order: Callable[[Sequence[WakeUp]], int] = lambda waiting: 0) -> None:
        """Do what waits until nothing does; ``order`` says which of the waiting comes next."""
        while self.wake_ups:
            self.do(self.wake_ups.pop(order(self.wake_ups)))

    def do(self, wake_up: WakeUp) -> None:
        match wake_up:
            case StepMessage():
                self.engine.run_step(wake_up.run_id, wake_up.seq)
            case CallMessage():
                end = self.engine.run_call(wake_up.run_id, wake_up.seq, wake_up.index)
                self.engine.saver.send(end.wake_ups)
                if end.wake_ups:
                    # In a worker Celery sends these: by replacing the lane's task, or as the chord's body.
                    self.engine.services.probe("body" if end.last else "announced", "call")
            case BatchMessage():
                self.wake_ups.extend(wake_up.lanes)

    def sweep(self) -> int:
        return sweep(self.engine)

    def age(self, seconds: float, *, past_a_crash: bool = False) -> None:
        """Let time pass for everything that is stored: leases, due times and what the sweep waits for.

        Not back to the server's last crash or start, which means something of its own (see ``Claim.forgotten``),
        unless ``past_a_crash``: for who reads how long something has waited, on a server that has just been started.
        """
        for telling in [thread for thread in threading.enumerate() if thread.name == "agentq-on-end"]:
            telling.join()
        columns = {
            "runs": ("lease_until", "sweep_at", "due_at", "claimed_at", "lease_look_at", "sweep_look_at", "on_end_at"),
            "tool_calls": ("lease_until", "sweep_at", "announced_at", "claimed_at"),
            "journal": ("at",),
            "approvals": ("expires_at",),
            "cooldowns": ("since", "until", "expires_at"),
        }
        last_crash = "'-infinity'::timestamptz" if past_a_crash else "pg_stat_get_bgwriter_stat_reset_time()"
        aged = f"greatest({{0}} - make_interval(secs => {{1}}), least({{0}}, {last_crash} + interval '1 ms'))"
        with self.database.transaction() as connection:
            for table, names in columns.items():
                changes = ", ".join(
                    f"{name} = case when {name} is not null then {aged.format(name, seconds)} end" for name in names
                )
                connection.execute(f"update agentq.{table} set {changes}")
