"""Statements are prepared where the connection is the server's own, and never behind a pooler."""

import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from agentq.storage.database import Database
from agentq.storage.sql import Connection, text
from tests import services
from tests.services import Services

OFTEN = 5


def prepared(database: Database, statement: str) -> int:
    """How many plans the session has for a statement that was executed often."""
    with database.autocommit() as connection:
        for number in range(OFTEN):
            assert connection.first(text(statement), {"n": number})[0] == number
        known = text("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE :some")
        return int(connection.execute(known, {"some": "%one_of_ours%"}).scalar())


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with database.autocommit() as lent:
        yield lent


def test_a_plan_outlives_a_transaction_that_was_rolled_back(connection: Connection) -> None:
    for number in range(OFTEN):
        with suppress(ZeroDivisionError), connection.transaction():
            assert connection.first(text("SELECT CAST(:n AS integer)"), {"n": number})[0] == number
            raise ZeroDivisionError


def test_values_and_columns_are_those_of_execute(connection: Connection) -> None:
    given: dict[str, Any] = {"t": "a 'text' % ü", "i": -7, "f": 0.25, "b": True, "u": uuid4(), "none": None}
    statement = text("""
        SELECT CAST(:t AS text) AS t, CAST(:i AS bigint) AS i, CAST(:f AS float) AS f, CAST(:b AS boolean) AS b,
            CAST(:u AS uuid) AS u, CAST(:none AS integer) AS none, CAST(:i AS integer) + 1 AS more, '50 %' AS percent
    """)
    quick, usual = connection.first(statement, given), connection.execute(statement, given).first()
    assert quick is not None
    assert quick._asdict() == usual._asdict() == given | {"more": -6, "percent": "50 %"}
    with pytest.raises(TypeError, match="list is for execute"):
        connection.first(text("SELECT :some"), {"some": [1]})


def test_a_value_of_megabytes_comes_and_goes(connection: Connection) -> None:
    long = "x" * 8_000_000
    assert connection.first(text("SELECT CAST(:long AS text)"), {"long": long})[0] == long


def test_a_fault_is_psycopgs_and_a_later_statement_is_not_harmed(connection: Connection) -> None:
    statement = text("SELECT 1 / CAST(:n AS integer) AS found")
    for _ in range(2):
        with pytest.raises(psycopg.errors.DivisionByZero, match="division by zero"):
            connection.first(statement, {"n": 0})
        with pytest.raises(psycopg.errors.UndefinedColumn):
            connection.first(text("SELECT nothing FROM (SELECT 1) one"), {})
        assert connection.first(statement, {"n": 1}).found == 1
    assert connection.first(text("SELECT 1 WHERE CAST(:n AS integer) = 2"), {"n": 1}) is None


def test_a_session_that_was_ended_is_an_operational_error_and_closed(
    connection: Connection, database: Database, service_urls: Services
) -> None:
    if service_urls.pooled:
        pytest.skip("a pooler does not tell which of its sessions is ours")
    with database.autocommit() as other:
        other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": connection.info.backend_pid})
    for _ in range(2):
        with pytest.raises(psycopg.OperationalError):
            connection.first(text("SELECT 1"), {})
        assert connection.closed


def test_ctrl_c_ends_the_wait_for_a_statement(connection: Connection, database: Database) -> None:
    sleeping = text("""
        SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'
    """)

    def interrupt() -> None:
        with database.autocommit() as other:
            while not other.execute(sleeping).scalar():
                pass
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        connection.first(text("SELECT pg_sleep(60)"), {})


def test_what_is_executed_often_is_planned_once(service_urls: Services, database: Database) -> None:
    if service_urls.pooled:
        pytest.skip("behind a pooler nothing is prepared")
    assert prepared(database, "SELECT CAST(:n AS integer) AS one_of_ours") == 1


def test_behind_a_pooler_nothing_is_prepared(service_urls: Services) -> None:
    with services.through_pgbouncer(service_urls) as pooled, services.new_database(pooled) as url:
        database = Database(url)
        try:
            assert prepared(database, "SELECT CAST(:n AS integer) AS one_of_ours") == 0
        finally:
            database.dispose()
