"""The way to Postgres: a few connections a process, faults of the server told in our own words."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from agentq.errors import AgentqError, ConfigError, ConnectionLost, LockedError, SchemaOutdatedError, UnavailableError
from agentq.storage.pool import Pool
from agentq.storage.sql import Connection

_UNDEFINED_TABLE, _UNDEFINED_SCHEMA, _UNDEFINED_COLUMN = "42P01", "3F000", "42703"
_NO_PRIVILEGE, _READ_ONLY, _LOCKED, _DEADLOCK = "42501", "25006", "55P03", "40P01"
# A host that vanished answers nothing: without these a connection to it would hang for minutes or hours.
_NOTICE_A_DEAD_PEER = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_NO_URL = "AGENTQ_DATABASE_URL is not a URL; it looks like postgresql://user@host:5432/name"


def _parse(url: str) -> tuple[str, dict[str, Any]]:
    """The URL as libpq reads it, and its parts."""
    try:
        scheme = urlsplit(url).scheme.split("+")[0]
        if scheme and scheme not in ("postgresql", "postgres"):
            raise ConfigError(f"AGENTQ_DATABASE_URL must be a Postgres URL, not {scheme}://")
        if not scheme or "://" not in url:
            raise ConfigError(_NO_URL)
        plain = f"postgresql://{url.split('://', 1)[1]}"
        parts = conninfo_to_dict(plain)
        # libpq looks at it only when it connects.
        for port in str(parts.get("port") or 0).split(","):
            int(port or 0)
        return plain, parts
    except psycopg.ProgrammingError as error:
        reason = str(error).strip().splitlines()[0]
        # What libpq says of any other part may show the password, or all of the URL.
        if "URI query parameter" in reason and "@" not in url.partition("?")[2]:
            raise ConfigError(f"AGENTQ_DATABASE_URL: {reason}") from None
        raise ConfigError(_NO_URL) from None
    except ValueError:
        raise ConfigError(_NO_URL) from None


class Database:
    """A pool of connections for this process, made at first use and made anew in a forked child.

    ``url`` is a libpq URL (``postgresql://…``). PgBouncer in transaction mode works: no session state is used, and
    statements are prepared only where the connection is the server's own. Raises ConfigError for a URL that is
    none of Postgres.
    """

    def __init__(self, url: str, *, pool_size: int = 5) -> None:
        self.url, self._parts = _parse(url)
        self._pool_size = pool_size
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self._pid = 0

    def __repr__(self) -> str:
        return f"Database({self.shown_url})"

    @property
    def name(self) -> str | None:
        """The database's name, where the URL says it."""
        return self._parts.get("dbname")

    @property
    def shown_url(self) -> str:
        """The URL for people: without its password, and without its options."""
        user = self._parts.get("user", "") + (":***" if self._parts.get("password") else "")
        port = f":{self._parts['port']}" if self._parts.get("port") else ""
        where = f"{self._parts.get('host', '')}{port}/{self._parts.get('dbname', '')}"
        return f"postgresql://{user}@{where}" if user else f"postgresql://{where}"

    def connect(self) -> Connection:
        """A connection of one's own, to be closed by the caller. Raises what psycopg raises."""
        options: dict[str, Any] = {"connect_timeout": 5, **_NOTICE_A_DEAD_PEER}
        connection = Connection.connect(self.url, autocommit=True, prepare_threshold=None, **options)
        # Let statements be prepared, which saves their planning, unless a pooler may hand us another session each time:
        # the process id that a pooler says at the start of a connection is not that of a server process.
        if connection.execute("SELECT pg_backend_pid()").scalar() == connection.info.backend_pid:
            connection.keeps_plans = True
        return connection

    def after_fork(self) -> None:
        """Forget the parent's connections; call it in a child before anything else."""
        self._lock = threading.Lock()

    def dispose(self) -> None:
        """Close the pooled connections of this process."""
        with self._lock:
            if self._pool is not None and self._pid == os.getpid():
                self._pool.close()
                self._pool = None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction, committed at the end. Raises UnavailableError or SchemaOutdatedError."""
        with Lent(self) as connection, connection.transaction():
            yield connection

    def autocommit(self) -> "Lent":
        """A connection whose every statement is a transaction of its own: one round trip, nothing to roll back.

        Raises as ``transaction`` does.
        """
        return Lent(self)

    def pool(self) -> Pool:
        """The connections of this process."""
        with self._lock:
            if self._pool is None or self._pid != os.getpid():
                # The pool of a parent is forgotten with its sockets open: they are the parent's.
                self._pool, self._pid = Pool(self.connect, self._pool_size), os.getpid()
            return self._pool

    def translate(
        self, error: psycopg.Error, away: type[UnavailableError] = UnavailableError
    ) -> AgentqError | psycopg.Error:
        """A fault of the server in our words; one of ours stays as it is."""
        state = error.sqlstate
        if state in (_UNDEFINED_TABLE, _UNDEFINED_SCHEMA, _UNDEFINED_COLUMN):
            return SchemaOutdatedError("the database has no current agentq schema; run: agentq db upgrade")
        where = self.shown_url
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if state == _NO_PRIVILEGE:
            return ConfigError(f"Postgres at {where} refuses: {reason}; use a role that may write", url=where)
        if state in (_LOCKED, _DEADLOCK):
            message = f"a row is locked by somebody else: {reason}"
            return LockedError(message, url=where, is_deadlock=state == _DEADLOCK)
        # A server is read-only for a while in a failover.
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or state == _READ_ONLY:
            return away(f"Postgres at {where} cannot be used: {reason}; check AGENTQ_DATABASE_URL", url=where)
        return error


class Lent:
    """``with Lent(database) as connection``: a connection from its pool, its faults in our words."""

    __slots__ = ("_connection", "_database", "_pool")

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> Connection:
        self._pool = self._database.pool()
        try:
            self._connection = self._pool.take()
        except psycopg.Error as error:
            raise self._database.translate(error) from error
        return self._connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        connection = self._connection
        is_closed = connection.closed
        # Left in the middle of something by an exception that is no error: a process that is told to go.
        is_idle = not is_closed and connection.pgconn.transaction_status == TransactionStatus.IDLE
        self._pool.give_back(connection, usable=is_idle)
        if is_closed:
            # Where the server has gone away it has gone for the others, too.
            self._database.dispose()
        if isinstance(error, psycopg.Error):
            raise self._database.translate(error, ConnectionLost if is_closed else UnavailableError) from error
