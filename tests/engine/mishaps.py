"""Workers that die, freeze or lose the database between any two statements, as a test has drawn it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import UUID

from psycopg.pq import TransactionStatus

from agentq.engine import Engine as StepEngine
from agentq.errors import UnavailableError
from agentq.heartbeat import Heartbeat, Lease
from agentq.storage.database import Database
from agentq.storage.sql import Connection
from agentq.wire import WakeUp
from tests.engine.drain import Died, Drain

Moment = Literal["statement", "locked", "committed", "probe", "send", "model", "tool"]

# Where nobody is kept out while the process stands still: it holds no lock.
_MAY_FREEZE = frozenset({"statement", "committed", "probe", "send", "model", "tool"})
# A death in a hook or a provider would be taken for an exception of theirs.
_MAY_DIE = frozenset({"statement", "locked", "committed", "probe", "send", "tool"})
# "committed" is the commit of which the client never learned.
_MAY_LOSE_THE_DATABASE = frozenset({"statement", "locked", "committed"})


@dataclass(frozen=True)
class Mishap:
    """What befalls a process at the first fitting moment after ``after`` moments; ``meanwhile`` is what others do.

    ``at`` lets only moments of that kind count.
    """

    kind: Literal["dies", "freezes", "outage"]
    after: int
    meanwhile: tuple[Any, ...] = ()
    at: Moment | None = None


class Fate:
    """The mishap of the operation under way. ``frozen`` is called with what others do meanwhile."""

    def __init__(self, struck: Callable[[], None], frozen: Callable[[tuple[Any, ...]], None]) -> None:
        self._struck = struck
        self._frozen = frozen
        self._coming: Mishap | None = None

    @contextmanager
    def of(self, mishap: Mishap | None) -> Iterator[None]:
        """Let it come inside the block, where nothing else escapes than what it brings."""
        before, self._coming = self._coming, mishap
        try:
            yield
        except Died:
            assert mishap is not None
            assert mishap.kind == "dies"
        except UnavailableError:
            if mishap is None or mishap.kind != "outage":
                raise
        finally:
            self._coming = before

    def moment(self, what: Moment) -> None:
        coming = self._coming
        if coming is None or coming.at not in (None, what):
            return
        if coming.after > 0:
            self._coming = replace(coming, after=coming.after - 1)
        elif coming.kind == "dies" and what in _MAY_DIE:
            self._strike()
            raise Died
        elif coming.kind == "outage" and what in _MAY_LOSE_THE_DATABASE:
            self._strike()
            raise UnavailableError("the server went away")
        elif coming.kind == "freezes" and what in _MAY_FREEZE:
            self._strike()
            self._frozen(coming.meanwhile)

    def _strike(self) -> None:
        self._coming = None
        self._struck()


class ObservedDatabase(Database):
    """Tells ``moment`` of every statement and of every commit."""

    moment: Callable[[Moment], None] = staticmethod(lambda what: None)

    def connect(self) -> Connection:
        connection = super().connect()
        for name in ("execute", "fetch"):
            connection.__dict__[name] = self._observed(connection, getattr(connection, name))
        return connection

    def _observed(self, connection: Connection, method: Callable[..., Any]) -> Callable[..., Any]:
        def observed(*args: Any, **options: Any) -> Any:
            is_idle = connection.info.transaction_status == TransactionStatus.IDLE
            self.moment("statement" if is_idle else "locked")
            return method(*args, **options)

        return observed

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        with super().transaction() as connection:
            yield connection
        self.moment("committed")

    @contextmanager
    def autocommit(self) -> Iterator[Connection]:
        with super().autocommit() as connection:
            yield connection
        self.moment("committed")


class HandCranked(Heartbeat):
    """Renews leases only when it is told to."""

    def add(self, lease: Lease) -> None:
        self._held[lease.token] = lease

    @property
    def tokens(self) -> list[UUID]:
        return list(self._held)


class Worker(Drain):
    """A process on the common queue; ``post`` puts a wake-up into it, ``clock`` is what its leases are measured by."""

    def __init__(
        self,
        database: ObservedDatabase,
        fate: Fate,
        post: Callable[[WakeUp], None],
        clock: Callable[[], float],
        local_steps: int,
    ) -> None:
        super().__init__(database, probe=lambda point, what: fate.moment("probe"), local_steps=local_steps)
        self._fate = fate
        self._post = post
        services = self.engine.services
        self.heartbeat = HandCranked(database, services.lease_secs)
        self.engine = StepEngine(replace(services, heartbeat=self.heartbeat, clock=clock))

    def send(self, wake_up: WakeUp) -> None:
        self._fate.moment("send")
        self._post(wake_up)
