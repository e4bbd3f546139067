"""The engine of this process: made at first use, and made anew in a forked child."""

import mmap
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace

from celery import Celery

from agentq.agent import AgentSpec
from agentq.config import Settings
from agentq.engine import Engine
from agentq.heartbeat import Heartbeat
from agentq.producer import CeleryDispatcher
from agentq.providers.registry import resolve
from agentq.services import Services, no_probe
from agentq.storage.database import Database


class Runtime:
    """Settings, agents and app of a worker, and the engine that works with them."""

    def __init__(
        self,
        settings: Settings,
        agents: Mapping[str, AgentSpec],
        app: Celery,
        *,
        probe: Callable[[str, str], None] = no_probe,
    ) -> None:
        self.settings = settings
        self.agents = agents
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._main_pid = os.getpid()
        # Set when the process is about to end: what it claims now would be lost with it.
        self.is_leaving = False
        # A byte that the processes of the pool share with this one, from which they are forked.
        self._stopping = mmap.mmap(-1, 1)
        self.database = Database(str(settings.database_url), pool_size=settings.db_pool_size)
        self.dispatcher = CeleryDispatcher(app, queue=settings.queue)
        # A connection of its own: steps that use up the pool must not cost each other their leases.
        self._heartbeat_database = Database(str(settings.database_url), pool_size=1)
        self._heartbeat = Heartbeat(self._heartbeat_database, settings.lease_secs)
        self._probe = probe
        self._engine: Engine | None = None
        self._pid = 0

    def after_fork(self) -> None:
        """Leave the parent's connections alone; called in a prefork child before its first task."""
        self.database.after_fork()
        self._heartbeat_database.after_fork()
        self._engine = None

    def stop(self) -> None:
        """The worker has been told to end: work in hand is finished, and its run goes on elsewhere."""
        self._stopping[0] = 1

    @property
    def is_stopping(self) -> bool:
        """Whether that was said, to this process or to the one whose pool it is of."""
        return self._stopping[0] == 1

    @property
    def is_main_process(self) -> bool:
        """Whether this is the worker itself, not a process of its pool."""
        return os.getpid() == self._main_pid

    @property
    def worker(self) -> str:
        """The name of this process in leases and events."""
        return self.name if self.is_main_process else f"{self.name}/{os.getpid()}"

    @property
    def sweeping(self) -> Engine:
        """The engine of this process as the sweep uses it: one run that somebody has locked holds up no other."""
        return Engine(replace(self.engine.services, waits_for_locks=False))

    @property
    def engine(self) -> Engine:
        if self._engine is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._engine = Engine(
                Services(
                    database=self.database,
                    agents=self.agents,
                    dispatcher=self.dispatcher,
                    heartbeat=self._heartbeat,
                    resolve=resolve,
                    worker=self.worker,
                    lease_secs=self.settings.lease_secs,
                    probe=self._probe,
                    local_steps=self.settings.local_steps,
                    may_stay=lambda: not self.is_stopping,
                    queue=self.settings.queue,
                )
            )
        return self._engine
