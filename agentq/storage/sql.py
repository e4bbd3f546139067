"""Statements as they are written here, and the connection that executes them: psycopg's own, at its own cost."""

import re
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

# A row: its columns are its attributes.
Row = Any

_COMMENT = re.compile(r"--[^\n]*")
_SPACE = re.compile(r"\s+")
_NAMED = re.compile(r"(?<![:\w]):([a-z]\w*)")


def text(sql: str) -> bytes:
    """A statement with ``:named`` values, as psycopg takes it: short enough for it to keep what it has parsed.

    No literal in it may hold two spaces, ``--``, or a colon before a letter.
    """
    short = _SPACE.sub(" ", _COMMENT.sub("", sql)).strip()
    has_values = _NAMED.search(short)
    return (_NAMED.sub(r"%(\1)s", short.replace("%", "%%")) if has_values else short).encode()


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
    """A connection on which each statement is a transaction of its own, unless ``transaction()`` is around it."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Rows:
        return Rows(self, row_factory=namedtuple_row).execute(query, params, **options)
