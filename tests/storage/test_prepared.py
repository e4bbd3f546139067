"""Statements are prepared where the connection is the server's own, and never behind a pooler."""

import pytest

from agentq.storage.database import PREPARE_THRESHOLD, Database
from agentq.storage.sql import text
from tests import services
from tests.services import Services

OFTEN = PREPARE_THRESHOLD + 2


def prepared(database: Database, statement: str) -> int:
    """How many plans the session has for a statement that was executed often."""
    with database.autocommit() as connection:
        for number in range(OFTEN):
            assert connection.execute(text(statement), {"n": number}).scalar() == number
        known = text("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE :some")
        return int(connection.execute(known, {"some": "%one of ours%"}).scalar())


def test_what_is_executed_often_is_planned_once(service_urls: Services, database: Database) -> None:
    if service_urls.pooled:
        pytest.skip("behind a pooler nothing is prepared")
    assert prepared(database, 'SELECT CAST(:n AS integer) AS "one of ours"') == 1


def test_behind_a_pooler_nothing_is_prepared(service_urls: Services) -> None:
    with services.through_pgbouncer(service_urls) as pooled, services.new_database(pooled) as url:
        database = Database(url)
        try:
            assert prepared(database, 'SELECT CAST(:n AS integer) AS "one of ours"') == 0
        finally:
            database.dispose()
