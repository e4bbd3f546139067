"""A database clock that stands still until it is told: what happens then depends on no machine's speed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

# In front of Postgres' own functions, for every unqualified now(). No commit waits for the disk either: what is tested
# is who writes what.
OPTIONS = "-csearch_path=clock,pg_catalog,public -csynchronous_commit=off"

# Each look is a microsecond later than the one before, so that no two rows are due at the same time.
_MAKE = """
    drop schema if exists clock cascade;
    create schema clock;
    create sequence clock.looks;
    create table clock.started as select pg_catalog.now() as at;
    create function clock.now() returns timestamptz language sql stable as
        'select at + nextval(''clock.looks'') * interval ''1 microsecond'' from clock.started';
"""


@contextmanager
def standing_still(connection: psycopg.Connection[Any]) -> Iterator[None]:
    connection.execute(_MAKE)
    yield
    connection.execute("drop schema clock cascade")


def seconds(connection: psycopg.Connection[Any]) -> float:
    """What the clock says, without a look at it."""
    (found,) = connection.execute("select extract(epoch from at)::float from clock.started").fetchone() or (0.0,)
    return float(found)


def go_on(connection: psycopg.Connection[Any], secs: float) -> None:
    connection.execute("update clock.started set at = at + make_interval(secs => %s)", [secs])
