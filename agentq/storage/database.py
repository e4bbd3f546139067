"""The connection to Postgres: one engine a process, faults of the server told in our own words."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import ProgrammingError
from psycopg.conninfo import make_conninfo
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from agentq.errors import AgentqError, ConfigError, LockedError, SchemaOutdatedError, UnavailableError

_UNDEFINED_TABLE, _UNDEFINED_SCHEMA, _UNDEFINED_COLUMN = "42P01", "3F000", "42703"
_NO_PRIVILEGE, _READ_ONLY, _LOCKED = "42501", "25006", "55P03"
# A statement is prepared when a connection executes it for so many times.
PREPARE_THRESHOLD = 3
# A host that vanished answers nothing: without these a connection to it would hang for minutes or hours.
_NOTICE_A_DEAD_PEER = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() not in ("postgresql", "postgres"):
            raise ConfigError(f"AGENTQ_DATABASE_URL must be a Postgres URL, not {parsed.get_backend_name()}://")
        parsed = parsed.set(drivername="postgresql+psycopg")
        # Ports and hosts in the query are looked at only here.
        _, options = parsed.get_dialect()().create_connect_args(parsed)
        make_conninfo(**{name: value for name, value in options.items() if name not in ("context", "autocommit")})
    except ProgrammingError as error:
        raise ConfigError(f"AGENTQ_DATABASE_URL: {str(error).strip().splitlines()[0]}") from error
    except (ArgumentError, ValueError) as error:
        raise ConfigError("AGENTQ_DATABASE_URL is not a URL; it looks like postgresql://user@host:5432/name") from error
    return parsed


def _prepare_where_it_lasts(connection: Any, _: object) -> None:
    """Let statements be prepared, which saves their planning, unless a pooler may hand us another session each time.

    The process id that a pooler says at the start of a connection is not that of a server process.
    """
    if connection.execute("SELECT pg_backend_pid()").fetchone() == (connection.info.backend_pid,):
        connection.prepare_threshold = PREPARE_THRESHOLD
    connection.rollback()


class Database:
    """An engine for this process, made at first use and made anew in a forked child.

    ``url`` is a libpq URL (``postgresql://…``). PgBouncer in transaction mode works: no session state is used, and
    statements are prepared only where the connection is the server's own. Raises ConfigError for a URL that is
    none of Postgres.
    """

    def __init__(self, url: str, *, pool_size: int = 5) -> None:
        self.url = _parse(url)
        self._pool_size = pool_size
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._pid = 0

    def __repr__(self) -> str:
        return f"Database({self.shown_url})"

    @property
    def shown_url(self) -> str:
        """The URL for people: without its password."""
        return self.url.set(drivername="postgresql").render_as_string(hide_password=True)

    @property
    def engine(self) -> Engine:
        with self._lock:
            if self._engine is None or self._pid != os.getpid():
                self._engine, self._pid = self._make_engine(), os.getpid()
            return self._engine

    def _make_engine(self) -> Engine:
        if self._engine is not None:
            # Inherited sockets belong to the parent: forget them without closing.
            self._engine.dispose(close=False)
        engine = create_engine(
            self.url,
            pool_size=self._pool_size,
            max_overflow=0,
            pool_recycle=1800,
            # Errors carry their statement; its parameters are prompts and results.
            hide_parameters=True,
            connect_args={"prepare_threshold": None, "connect_timeout": 5, **_NOTICE_A_DEAD_PEER},
        )
        event.listen(engine, "connect", _prepare_where_it_lasts)
        return engine

    def after_fork(self) -> None:
        """Forget the parent's connections; call it in a child before anything else."""
        self._lock = threading.Lock()

    def dispose(self) -> None:
        """Close the pooled connections of this process."""
        with self._lock:
            if self._engine is not None and self._pid == os.getpid():
                self._engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction, committed at the end. Raises UnavailableError or SchemaOutdatedError."""
        with self._translated(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def autocommit(self) -> Iterator[Connection]:
        """A connection whose every statement is a transaction of its own: one round trip, nothing to roll back."""
        with self._translated(), self.engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self._translate(error) from error
        except PoolTimeoutError as error:
            raise UnavailableError(
                "all Postgres connections of this process are busy; see AGENTQ_DB_POOL_SIZE"
            ) from error

    def _translate(self, error: DBAPIError) -> AgentqError | DBAPIError:
        state: Any = getattr(error.orig, "sqlstate", None)
        if state in (_UNDEFINED_TABLE, _UNDEFINED_SCHEMA, _UNDEFINED_COLUMN):
            return SchemaOutdatedError("the database has no current agentq schema; run: agentq db upgrade")
        where = self.shown_url
        reason = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
        if state == _NO_PRIVILEGE:
            return ConfigError(f"Postgres at {where} refuses: {reason}; use a role that may write", url=where)
        if state == _LOCKED:
            return LockedError(f"a row is locked by somebody else: {reason}", url=where)
        # A server is read-only for a while in a failover.
        if isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated or state == _READ_ONLY:
            return UnavailableError(
                f"Postgres at {where} cannot be used: {reason}; check AGENTQ_DATABASE_URL", url=where
            )
        return error
