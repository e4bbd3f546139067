"""The sweep's thread in a worker process: look once a second, and say now and then that this worker is alive."""

import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from agentq import recovery, retention
from agentq.errors import AgentqError
from agentq.storage import leases
from agentq_workers.runtime import Runtime

logger = logging.getLogger(__name__)

SEEN_SECS = 15.0
# How often each worker deletes what has been kept for long enough.
PURGE_SECS = 3600.0
_PURGE = "agentq-purge"


def period_secs(lease_secs: float) -> float:
    """Once a second is often enough for the usual lease; a short one is watched more closely."""
    return min(1.0, lease_secs / 8)


class Sweeper:
    """Started when the pool is ready, stopped with the worker.

    ``children`` gives the ids of the pool's living processes: what one of them died with is taken back without waiting
    for its lease to end.
    """

    def __init__(self, runtime: Runtime, *, pool: str, queues: Sequence[str], children: Callable[[], set[int]]) -> None:
        self._runtime = runtime
        self._children = children
        self._alive: set[int] = set()
        self._dead: set[int] = set()
        self._is_leaving = False
        self._pool = pool
        self._queues = list(queues)
        self._purging: threading.Thread | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agentq-sweep", daemon=True)

    def start(self) -> None:
        with self._runtime.database.autocommit() as connection:
            agents = self._runtime.agents
            hearing = [name for name, agent in agents.items() if agent.hears_ends]
            leases.know_agents(connection, sorted(agents), hearing=hearing)
        self._say_alive()
        recovery.wake_outdated(self._runtime.sweeping, is_new=True)
        self._alive = self._children()
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join(timeout=10)

    def say_gone(self) -> None:
        """Take this worker off the list of those alive."""
        try:
            with self._runtime.database.autocommit() as connection:
                leases.gone(connection, self._runtime.name)
        except AgentqError as error:
            logger.warning("leaving without a word: %s", error)

    def _run(self) -> None:
        seen, lease_secs, spared_secs = time.monotonic(), self._runtime.settings.lease_secs, 0.0
        # A worker may be started by the end of an outage: those that live must have had time to renew their leases.
        spared_until = seen + lease_secs / 2
        # The first time is soon, but not at once for a whole fleet.
        purged = seen - PURGE_SECS + random.uniform(0, 4 * SEEN_SECS)
        # Jittered, so that the workers of a fleet do not all look at the same moment.
        period = period_secs(lease_secs)
        while not self._stop.wait(period * random.uniform(0.75, 1.25)):
            try:
                self._bury()
                mine = [f"{self._runtime.name}/{pid}" for pid in self._alive]
                # Not for ever, where the database fails every other second.
                spares = time.monotonic() < spared_until and spared_secs < 3 * lease_secs
                recovery.sweep(self._runtime.sweeping, mine=mine, spare_leases=spares, hung=self._end)
                spared_secs = spared_secs + period if spares else 0.0
                if time.monotonic() - seen > SEEN_SECS:
                    recovery.let_in_all(self._runtime.sweeping)
                    if not self._is_leaving:
                        self._say_alive()
                        recovery.wake_outdated(self._runtime.sweeping)
                    seen = time.monotonic()
                if self._runtime.settings.keep_days is not None and time.monotonic() > purged + PURGE_SECS:
                    purged = time.monotonic()
                    self._start_purge()
            except AgentqError as error:
                # Whoever is alive renews its leases, and saves what it did meanwhile, before they are taken for lost.
                spared_until = time.monotonic() + lease_secs
                logger.warning("the sweep failed, trying again: %s", error)
            except Exception:
                logger.exception("the sweep failed, trying again")

    def _bury(self) -> None:
        alive = self._children()
        self._dead |= self._alive - alive
        self._alive = alive
        # One by one: while Postgres is away, those left are buried later.
        for pid in tuple(self._dead):
            recovery.take_back(self._runtime.sweeping, f"{self._runtime.name}/{pid}")
            self._dead.discard(pid)

    def _end(self, process: str) -> None:
        """Kill a process that a tool does not let go of; the pool starts another."""
        pid = int(process.rsplit("/", 1)[1])
        if pid in self._children():
            logger.warning("process %d is killed: its tool has outlived its time limit and cannot be stopped", pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _start_purge(self) -> None:
        """It may take long, and nobody waits for it; where the last one still does, there is none beside it."""
        if self._purging is None or not self._purging.is_alive():
            self._purging = threading.Thread(target=self._purge, name=_PURGE, daemon=True)
            self._purging.start()

    def _purge(self) -> None:
        try:
            purged = retention.purge(self._runtime.database, keep_days=self._runtime.settings.keep_days or 0)
        except AgentqError as error:
            logger.warning("what is too old stays for another hour: %s", error)
            return
        if purged != retention.Purged():
            logger.info("deleted what ended %g days ago: %s", self._runtime.settings.keep_days, purged)

    def leave(self) -> None:
        """Go on looking, but take nothing new: nobody is to count on this worker."""
        self._is_leaving = True
        self.say_gone()

    def _say_alive(self) -> None:
        runtime = self._runtime
        with runtime.database.autocommit() as connection:
            versions = {name: agent.version for name, agent in sorted(runtime.agents.items())}
            queues = self._queues
            leases.seen(
                connection, runtime.name, pool=self._pool, queues=queues, agents=sorted(versions), versions=versions
            )
