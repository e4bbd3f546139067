"""Work for an agent that this process does not have: when it is due again, for those who have it, and what is said."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from agentq.facts import Fleet
from agentq.storage import queries
from agentq.storage.sql import Connection

logger = logging.getLogger(__name__)

# So many times the same work is given back at once: it is mostly another worker that takes it next.
AT_ONCE = 8
# Then they are busy: it is due again after half the time that it has been about, within these.
SOON_SECS, SELDOM_SECS = 1.0, 10.0
# Nobody alive has the agent.
NOBODY_SECS = 10.0
# How long what was read of the workers is good for, where it says that somebody has the agent.
_KNOWN_SECS = 1.0
# How often the same is said of an agent.
_SAID_SECS = 60.0
# So much work is remembered; what came first is forgotten first.
_REMEMBERED = 10_000


@dataclass
class _Seen:
    """How often this process had some work, and since when."""

    since: float
    times: int = 0


class Elsewhere:
    """One a process; thread-safe. ``prefix`` is what the queues of this installation begin with."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._fleet, self._fleet_until = Fleet((), prefix), 0.0
        self._seen: OrderedDict[Hashable, _Seen] = OrderedDict()
        self._said: dict[tuple[str, int], float] = {}
        self._lock = threading.Lock()

    def delay_secs(
        self, connection: Connection, work: tuple[Hashable, ...], *, queue: str, agent: str, here: Iterable[str]
    ) -> float:
        """After how long ``work`` (a run's id, and which of its steps or calls it is) is due again; 0 is at once.

        ``here`` are the agents of this process, for the log.
        """
        if not self._somebody_has(connection, queue, agent):
            known = ", ".join(sorted(here)) or "none"
            why = f"which no running worker of its queue has; this one has: {known} (AGENTQ_AGENTS)"
            self._say(logging.ERROR, agent, f"run {work[0]} needs agent {agent!r}, {why}")
            return NOBODY_SECS
        self._say(logging.INFO, agent, f"run {work[0]} needs agent {agent!r}: left to workers that have it")
        now = time.monotonic()
        with self._lock:
            seen = self._seen.setdefault(work, _Seen(now))
            seen.times += 1
            while len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
            return 0.0 if seen.times <= AT_ONCE else min(max(SOON_SECS, (now - seen.since) / 2), SELDOM_SECS)

    def _somebody_has(self, connection: Connection, queue: str, agent: str) -> bool:
        with self._lock:
            if time.monotonic() < self._fleet_until and self._fleet.gap(queue, agent) is None:
                return True
        # Somebody may have come since.
        fleet = Fleet(queries.workers(connection), self._prefix)
        with self._lock:
            self._fleet, self._fleet_until = fleet, time.monotonic() + _KNOWN_SECS
        return fleet.gap(queue, agent) is None

    def _say(self, level: int, agent: str, message: str) -> None:
        """Once an agent and minute; the rest is for who debugs."""
        now = time.monotonic()
        with self._lock:
            is_due = now >= self._said.get((agent, level), 0.0)
            if is_due:
                self._said[agent, level] = now + _SAID_SECS
        logger.log(level if is_due else logging.DEBUG, "%s", message)
