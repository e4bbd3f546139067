"""Keep the leases of this process alive: one thread for all of them, started when the first is held."""

import logging
import os
import threading
import time
from types import TracebackType
from uuid import UUID

from agentq.errors import AgentqError, LeaseLost
from agentq.storage import leases
from agentq.storage.database import Database

logger = logging.getLogger(__name__)

# What a tool may take beyond its time limit before its lease is let go: the result still has to be saved.
GRACE_SECS = 10.0


class Lease:
    """One lease, held in its ``with`` block; it is kept alive until ``until``, by the monotonic clock.

    For ``sure_until`` see Claim.
    """

    __slots__ = ("_at_least", "_heartbeat", "_is_cancelled", "_spare_secs", "run_id", "sure_until", "token", "until")

    def __init__(
        self,
        heartbeat: "Heartbeat",
        token: UUID,
        run_id: str,
        *,
        limit_secs: float,
        spare_secs: float,
        sure_until: float | None,
    ) -> None:
        self._heartbeat = heartbeat
        self._spare_secs = spare_secs
        self.token = token
        self.run_id = run_id
        self.sure_until = sure_until
        self.until = self._at_least = time.monotonic() + limit_secs + spare_secs
        self._is_cancelled = False

    def __enter__(self) -> "Lease":
        self._heartbeat.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._heartbeat.drop(self)

    def cancel(self) -> None:
        """Somebody asked to cancel the run, or the lease is lost."""
        self._is_cancelled = True

    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def begin(self, limit_secs: float) -> None:
        """Something begins that may take so long, be it after other things that have taken their time.

        Raises LeaseLost where those took so much that the lease was let go: somebody else has answered for it.
        """
        now = time.monotonic()
        if now > self.until:
            raise LeaseLost(f"run {self.run_id}: what went before took too long")
        self.until = max(self._at_least, now + limit_secs + self._spare_secs)

    def prolong(self, secs: float) -> None:
        """The same for what follows on the work, which is done: it is for the commit to say whether that was lost."""
        self.until = max(self.until, time.monotonic() + secs + self._spare_secs)


class Heartbeat:
    """Renews every held lease each third of its time. Safe over a fork: a child starts with none."""

    def __init__(self, database: Database, lease_secs: float) -> None:
        self._database = database
        self._lease_secs = lease_secs
        self._held: dict[UUID, Lease] = {}
        self._lock = threading.Lock()
        self._pid = 0

    def hold(self, token: UUID, run_id: str, *, limit_secs: float, sure_until: float | None = None) -> Lease:
        """Keep one lease alive until some time after the limit, then let it go, so that the sweep finds what hangs.

        A tool's lease has then lasted longer than that of a worker that died within the limit: so they are told apart.
        """
        spare_secs = GRACE_SECS + self._lease_secs / 3
        return Lease(self, token, run_id, limit_secs=limit_secs, spare_secs=spare_secs, sure_until=sure_until)

    def add(self, lease: Lease) -> None:
        """It is held from now on; called by its ``with`` block."""
        if self._pid != os.getpid():
            self._lock, self._held, self._pid = threading.Lock(), {}, os.getpid()
            threading.Thread(target=self._beat, name="agentq-heartbeat", daemon=True).start()
        with self._lock:
            self._held[lease.token] = lease

    def drop(self, lease: Lease) -> None:
        """It is held no longer."""
        with self._lock:
            self._held.pop(lease.token, None)

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
            held[token].cancel()
