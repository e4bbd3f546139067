"""Keep the leases of this process alive: one thread for all of them, started when the first is held."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from agentq.errors import AgentqError, LeaseLost
from agentq.storage import leases
from agentq.storage.database import Database

logger = logging.getLogger(__name__)

# What a tool may take beyond its time limit before its lease is let go: the result still has to be saved.
GRACE_SECS = 10.0


@dataclass
class Lease:
    """One held lease; ``cancelled`` is set when somebody asked to cancel the run, or when the lease is lost.

    It is kept alive until ``until``, by the monotonic clock; for ``sure_until`` see Claim.
    """

    token: UUID
    run_id: str
    until: float
    sure_until: float | None = None
    spare_secs: float = 0.0
    cancelled: threading.Event = field(default_factory=threading.Event)

    def begin(self, limit_secs: float) -> None:
        """Something begins that may take so long, be it after other things that have taken their time.

        Raises LeaseLost where those took so much that the lease was let go: somebody else has answered for it.
        """
        if time.monotonic() > self.until:
            raise LeaseLost(f"run {self.run_id}: what went before took too long")
        self.until = max(self.until, time.monotonic() + limit_secs + self.spare_secs)


class Heartbeat:
    """Renews every held lease each third of its time. Safe over a fork: a child starts with none."""

    def __init__(self, database: Database, lease_secs: float) -> None:
        self._database = database
        self._lease_secs = lease_secs
        self._held: dict[UUID, Lease] = {}
        self._lock = threading.Lock()
        self._pid = 0

    @contextmanager
    def hold(self, token: UUID, run_id: str, *, limit_secs: float, sure_until: float | None = None) -> Iterator[Lease]:
        """Keep one lease alive until some time after the limit, then let it go, so that the sweep finds what hangs.

        A tool's lease has then lasted longer than that of a worker that died within the limit: so they are told apart.
        """
        spare_secs = GRACE_SECS + self._lease_secs / 3
        lease = Lease(token, run_id, time.monotonic() + limit_secs + spare_secs, sure_until, spare_secs)
        self._add(lease)
        try:
            yield lease
        finally:
            with self._lock:
                self._held.pop(token, None)

    def _add(self, lease: Lease) -> None:
        if self._pid != os.getpid():
            self._lock, self._held, self._pid = threading.Lock(), {}, os.getpid()
            threading.Thread(target=self._beat, name="agentq-heartbeat", daemon=True).start()
        with self._lock:
            self._held[lease.token] = lease

    def _beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._lease_secs / 3):
            try:
                self.renew()
            except AgentqError as error:
                logger.warning("leases could not be renewed, trying again: %s", error)
            except Exception:
                logger.exception("leases could not be renewed, trying again")

    def renew(self) -> None:
        """One round: prolong what is held and not overdue, and pass on whose work is in vain."""
        now = time.monotonic()
        with self._lock:
            held = {token: lease for token, lease in self._held.items() if lease.until > now}
        if not held:
            return
        with self._database.autocommit() as connection:
            cancelled = leases.renew(
                connection, {token: lease.run_id for token, lease in held.items()}, lease_secs=self._lease_secs
            )
        for token in cancelled:
            held[token].cancelled.set()
