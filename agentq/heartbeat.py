"""Keep the leases of this process alive: one thread for all of them, started when the first is held."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from agentq.errors import AgentqError
from agentq.storage import leases
from agentq.storage.database import Database

logger = logging.getLogger(__name__)


@dataclass
class Lease:
    """One held lease; ``cancelled`` is set when somebody asked to cancel the run, or when the lease is lost.

    For ``sure_until`` see Claim.
    """

    token: UUID
    run_id: str
    until: float
    sure_until: float | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)


class Heartbeat:
    """Renews every held lease each third of its time. Safe over a fork: a child starts with none."""

    def __init__(self, database: Database, lease_secs: float) -> None:
        self._database = database
        self._lease_secs = lease_secs
        self._held: dict[UUID, Lease] = {}
        self._lock = threading.Lock()
        self._pid = 0

    @contextmanager
    def hold(
        self, token: UUID, run_id: str, *, at_most_secs: float, sure_until: float | None = None
    ) -> Iterator[Lease]:
        """Keep one lease alive, but no longer than ``at_most_secs``: work that hangs is then found by the sweep."""
        lease = Lease(token, run_id, time.monotonic() + at_most_secs, sure_until)
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
