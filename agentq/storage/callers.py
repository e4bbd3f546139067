"""The caller's own transaction, as a place to write runs in: nothing of it is changed, and nothing of it is kept."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import namedtuple_row

from agentq.errors import ConfigError, ThreadBusyError
from agentq.storage.database import Database
from agentq.storage.sql import Found, Row, named, text

# Of this server since its start, and of this database in it: the same for two connections whatever stands between.
_PLACE = """concat_ws(' ', EXTRACT(epoch FROM pg_postmaster_start_time()),
    (SELECT oid FROM pg_database WHERE datname = current_database()))"""
# Fails where the schema is not of this release.
_OURS = text(
    f"SELECT {_PLACE} FROM (SELECT count(has_place) FROM agentq.runs CROSS JOIN agentq.blob_refs WHERE false) known"
)
# Fails nowhere, as that would end the transaction.
_THEIRS = text(f"""
    SELECT {_PLACE} AS place, current_setting('transaction_read_only') AS read_only, coalesce((
        SELECT bool_and(has_schema_privilege(n.oid, 'USAGE')
            AND has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
            AND (c.relname <> 'threads' OR has_table_privilege(c.oid, 'UPDATE')))
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'agentq' AND c.relname = ANY(string_to_array(:tables, ','))), false) AS may_write
""")
_TABLES = "runs,journal,threads"
_TABLES_OF_MEDIA = f"{_TABLES},blobs,blob_refs"
_SAVEPOINT, _RELEASE = text("SAVEPOINT agentq_enqueue"), text("RELEASE SAVEPOINT agentq_enqueue")
_ROLL_BACK = text("ROLLBACK TO SAVEPOINT agentq_enqueue")
_UNIQUE = "23505"
# Where a Session keeps what is to be done after its commit.
_PENDING = "agentq_after_commit"

_KINDS = "a SQLAlchemy Connection or Session, or a psycopg Connection"


class Callers(ABC):
    """A connection of somebody else, in whose open transaction statements are executed. Its errors pass as they are."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @abstractmethod
    def execute(self, statement: bytes, values: Mapping[str, Any], /) -> Found: ...

    def first(self, statement: bytes, values: Mapping[str, Any], /) -> Row | None:
        return self.execute(statement, values).first()

    @abstractmethod
    def after_commit(self, act: Callable[[], object]) -> None:
        """Have this done as soon as the transaction is committed, where that can be known."""

    def check(self, *, has_media: bool) -> None:
        """Raises ConfigError where no run of ours can be written, with the transaction as it was."""
        found: Any = self.first(_THEIRS, {"tables": _TABLES_OF_MEDIA if has_media else _TABLES})
        if found.place != _PLACES.get(self._database) and found.place != _place_of(self._database):
            raise ConfigError(
                f"connection= is connected to another database than this client ({self._database.shown_url}), where "
                "nobody would find the run; give one of the same database, or make a Client for that one"
            )
        if not found.may_write:
            raise ConfigError(
                "the role of connection= may not write runs; grant it USAGE on schema agentq, SELECT and INSERT on its "
                "tables, and UPDATE on agentq.threads"
            )
        if found.read_only == "on":
            raise ConfigError("the transaction of connection= is read-only; enqueue in one that may write")

    @contextmanager
    def undone_if_refused(self) -> Iterator[None]:
        """What an error of ours leaves behind is undone, and the transaction can go on."""
        self.execute(_SAVEPOINT, {})
        try:
            yield
        except BaseException as error:
            # A connection that is lost has nothing left to undo.
            with suppress(Exception):
                self.execute(_ROLL_BACK, {})
                self.execute(_RELEASE, {})
            if _state(error) == _UNIQUE:
                raise ThreadBusyError(
                    "the thread got another message since this transaction began, which cannot see it; try it again"
                ) from None
            raise
        self.execute(_RELEASE, {})


# Where our own connections led to when that was read last: a server may have been started again since.
_PLACES: WeakKeyDictionary[Database, str] = WeakKeyDictionary()


def _place_of(database: Database) -> str:
    """Raises SchemaOutdatedError where the schema is not there, or not of this release."""
    with database.autocommit() as connection:
        found = _PLACES[database] = str(connection.execute(_OURS).scalar())
    return found


def _state(error: BaseException) -> str | None:
    original = getattr(error, "orig", None) or error
    return getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)


class _Psycopg(Callers):
    def __init__(self, database: Database, connection: psycopg.Connection[Any]) -> None:
        super().__init__(database)
        if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
            raise ConfigError(
                "connection= is in autocommit mode and has no transaction; begin one with connection.transaction()"
            )
        self._connection = connection

    def execute(self, statement: bytes, values: Mapping[str, Any], /) -> Found:
        # A cursor of our own: theirs may give rows of any kind. Not prepared: a pooler may stand between.
        cursor: Any = _Rows(self._connection, row_factory=namedtuple_row)
        return cursor.execute(statement, values, prepare=False)  # type: ignore[no-any-return]

    def after_commit(self, act: Callable[[], object]) -> None:
        """Nobody is told of the commit: a sweep finds the run."""


class _Rows(psycopg.Cursor[Row]):
    def first(self) -> Row | None:
        return self.fetchone()

    def all(self) -> list[Row]:
        return self.fetchall()

    def scalar(self) -> Any:
        row = self.fetchone()
        return None if row is None else row[0]


class _SqlAlchemy(Callers):
    def __init__(self, database: Database, connection: Any, session: Any = None) -> None:
        super().__init__(database)
        if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
            raise ConfigError(
                "connection= is in SQLAlchemy's AUTOCOMMIT mode and has no transaction; use one without that"
            )
        if connection.dialect.name != "postgresql":
            raise ConfigError(f"connection= is of {connection.dialect.name}; runs are written to Postgres")
        self._connection, self._session = connection, session

    def execute(self, statement: bytes, values: Mapping[str, Any], /) -> Found:
        alchemy: Any = sys.modules["sqlalchemy"]
        sql, names = named(statement)
        try:
            found: Found = self._connection.execute(alchemy.text(sql), {name: values[name] for name in names})
        except alchemy.exc.StatementError as error:
            # Its text would show the values, and so what the run is about.
            error.hide_parameters = True
            raise
        return found

    def after_commit(self, act: Callable[[], object]) -> None:
        if self._session is None:
            # A Connection says when it is about to commit, not when it has.
            return
        event: Any = sys.modules["sqlalchemy"].event
        self._session.info.setdefault(_PENDING, []).append((self._connection, act))
        for name, listener in (("after_commit", _committed), ("after_rollback", _rolled_back)):
            if not event.contains(self._session, name, listener):
                event.listen(self._session, name, listener)


def _committed(session: Any) -> None:
    # Told of a savepoint's end, too.
    if session.in_nested_transaction():
        return
    for connection, act in session.info.pop(_PENDING, []):
        # A Session may be a guest itself, in a transaction that goes on after its commit.
        if not connection.in_transaction():
            act()


def _rolled_back(session: Any) -> None:
    # Of a savepoint alone, perhaps: a sweep finds those that are left.
    session.info.pop(_PENDING, None)


def of(given: Any, database: Database) -> Callers:
    """Raises ConfigError for what is no connection, or has no transaction to write in."""
    if isinstance(given, psycopg.Connection):
        return _Psycopg(database, given)
    alchemy: Any = sys.modules.get("sqlalchemy")
    if alchemy is not None and isinstance(given, alchemy.engine.Connection):
        return _SqlAlchemy(database, given)
    orm: Any = sys.modules.get("sqlalchemy.orm")
    if orm is not None and isinstance(given, orm.scoped_session):
        given = given()
    if orm is not None and isinstance(given, orm.Session):
        return _SqlAlchemy(database, given.connection(), given)
    hint = ""
    if type(given).__name__.startswith("Async"):
        hint = "; with SQLAlchemy: await session.run_sync(lambda session: client.enqueue(…, connection=session))"
    raise ConfigError(f"connection= takes {_KINDS}, not {type(given).__name__}{hint}")
