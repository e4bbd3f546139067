"""Statements as they are written here, and the connection that executes them: psycopg's own, at its own cost."""

import re
import select
import time
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol
from uuid import UUID

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import namedtuple_row

# A row: its columns are its attributes.
Row = Any

_COMMENT = re.compile(r"--[^\n]*")
_SPACE = re.compile(r"\s+")
_NAMED = re.compile(r"(?<![:\w]):([a-z]\w*)")
_PLACE = re.compile(rb"%\((\w+)\)s")


def text(sql: str) -> bytes:
    """A statement with ``:named`` values, as psycopg takes it: short enough for it to keep what it has parsed.

    No literal in it may hold two spaces, ``--``, or a colon before a letter.
    """
    short = _SPACE.sub(" ", _COMMENT.sub("", sql)).strip()
    has_values = _NAMED.search(short)
    return (_NAMED.sub(r"%(\1)s", short.replace("%", "%%")) if has_values else short).encode()


@cache
def _numbered(statement: bytes) -> tuple[bytes, tuple[str, ...]]:
    """A statement of ``text`` as the server takes it, with ``$1``, and the names of its values in order."""
    names = tuple(dict.fromkeys(name.decode() for name in _PLACE.findall(statement)))
    place = {name.encode(): b"$%d" % number for number, name in enumerate(names, 1)}
    return _PLACE.sub(lambda found: place[found[1]], statement).replace(b"%%", b"%"), names


@cache
def named(statement: bytes) -> tuple[str, tuple[str, ...]]:
    """A statement of ``text`` with ``:name`` for its values, as SQLAlchemy takes it, and their names."""
    names = tuple(dict.fromkeys(name.decode() for name in _PLACE.findall(statement)))
    return _PLACE.sub(rb":\1", statement).replace(b"%%", b"%").decode(), names


class _Sent(dict[type, Callable[[Any], bytes | None]]):
    """By its type, how a value is made the text whose type is the server's to tell."""

    def __missing__(self, kind: type) -> Callable[[Any], bytes | None]:
        if not issubclass(kind, str | int | float | UUID):
            raise TypeError(f"a value of type {kind.__name__} is for execute")
        self[kind] = lambda value: str(value).encode()
        return self[kind]


# Two dozen values a statement: functions of C, where there are some.
_SENT = _Sent(
    {
        type(None): {None: None}.__getitem__,
        bool: {True: b"t", False: b"f"}.__getitem__,
        str: str.encode,
        int: b"%d".__mod__,
    }
)


class Found(Protocol):
    """The rows that a statement brought; their columns are their attributes."""

    def first(self) -> Row | None: ...
    def scalar(self) -> Any: ...
    def all(self) -> Sequence[Row]: ...


class Writer(Protocol):
    """A connection, be it ours or the caller's."""

    def execute(self, statement: bytes, values: Mapping[str, Any], /) -> Found: ...
    def first(self, statement: bytes, values: Mapping[str, Any], /) -> Row | None: ...


class Rows(psycopg.Cursor[Row]):
    """What a statement brought."""

    def first(self) -> Row | None:
        return self.fetchone()

    def one(self) -> Row:
        """The row, of which there must be one."""
        (row,) = self.fetchall()
        return row

    def all(self) -> list[Row]:
        return self.fetchall()

    def scalar(self) -> Any:
        """The first value of the first row; None where there is no row."""
        row = self.fetchone()
        return None if row is None else row[0]

    def scalars(self) -> list[Any]:
        """The first value of each row."""
        return [row[0] for row in self.fetchall()]


class Connection(psycopg.Connection[Row]):
    """A connection on which each statement is a transaction of its own, unless ``transaction()`` is around it.

    ``opened_at`` is the monotonic time of its opening; ``keeps_plans`` says that what is prepared on it stays.
    """

    keeps_plans = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.opened_at = time.monotonic()
        self._quick_transformer = Transformer(self)
        self._quick_poll = select.poll()
        self._quick_poll.register(self.pgconn.socket, select.POLLIN)
        self._quick_names: dict[bytes, bytes] = {}
        self._quick_makers: dict[bytes, Callable[[Sequence[Any]], Row]] = {}

    def execute(self, query: Any, params: Any = None, **options: Any) -> Rows:
        return Rows(self, row_factory=namedtuple_row).execute(query, params, **options)

    def first(self, statement: bytes, values: Mapping[str, Any]) -> Row | None:
        """The first row of ``fetch``; None where there is none."""
        rows = self.fetch(statement, values)
        return rows[0] if rows else None

    def fetch(self, statement: bytes, values: Mapping[str, Any]) -> list[Row]:
        """``execute(statement, values).all()`` at half the time, for the statements of steps: without a cursor.

        Values are texts, numbers, booleans, UUIDs or None; the server tells their types by their places, so that some
        need a CAST.
        """
        query, names = _numbered(statement)
        sent: Any = [_SENT[type(value)](value) for value in map(values.__getitem__, names)]
        if self.keeps_plans:
            self.pgconn.send_query_prepared(self._name_of(statement, query), sent)
        else:
            self.pgconn.send_query_params(query, sent)
        result = self._quick_result()
        if result.status != ExecStatus.TUPLES_OK:
            raise self._quick_fault(result)
        if not result.ntuples:
            return []
        make_row = self._quick_makers.get(statement)
        if make_row is None:
            make_row = self._quick_makers[statement] = _row_maker(result)
        self._quick_transformer.set_pgresult(result)
        return self._quick_transformer.load_rows(0, result.ntuples, make_row)

    def _name_of(self, statement: bytes, query: bytes) -> bytes:
        """Its name on the server."""
        name = self._quick_names.get(statement)
        if name is None:
            name = b"agentq_%d" % len(self._quick_names)
            self.pgconn.send_prepare(name, query)
            result = self._quick_result()
            if result.status != ExecStatus.COMMAND_OK:
                raise self._quick_fault(result)
            self._quick_names[statement] = name
        return name

    def _quick_result(self) -> PGresult:
        """Of what was sent. The waiting is Python's own, in which a signal is heard."""
        pgconn = self.pgconn
        if pgconn.flush():
            either = select.poll()
            either.register(pgconn.socket, select.POLLIN | select.POLLOUT)
            while pgconn.flush():
                either.poll()
                pgconn.consume_input()
        while pgconn.is_busy():
            self._quick_poll.poll()
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            raise psycopg.OperationalError("the server gave no answer")
        while pgconn.get_result() is not None:
            pass
        return result

    def _quick_fault(self, result: PGresult) -> psycopg.Error:
        """What psycopg would raise."""
        if self.closed:
            return psycopg.OperationalError(result.get_error_message())
        return psycopg.errors.error_from_result(result)


def _row_maker(result: PGresult) -> Callable[[Sequence[Any]], Row]:
    columns = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
    row: Any = namedtuple("Row", columns)  # type: ignore[misc]
    make: Callable[[Sequence[Any]], Row] = row._make
    return make
