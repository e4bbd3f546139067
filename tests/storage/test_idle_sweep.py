"""The sweep costs next to nothing while there is nothing to do, however many runs are in the table."""

from collections.abc import Iterator

import pytest

from agentq.storage import leases, migrate
from agentq.storage.database import Database
from tests.chaos import idle
from tests.conftest import url_of
from tests.engine.counting import counted
from tests.engine.drain import Drain
from tests.services import Services, new_database

INDEXES = {
    *("runs_lease_look_at", "runs_sweep_look_at", "runs_deadline_at"),
    *("tool_calls_lease_until", "tool_calls_sweep_at"),
    "approvals_expires_at",
}
# An empty index is its first page and its root; two looks at each is the most it may cost.
BUFFERS = 16


@pytest.fixture(scope="module")
def full(service_urls: Services) -> Iterator[Database]:
    """A database full of runs that ended, or wait for a person."""
    url_of(service_urls.postgres)
    with new_database(service_urls) as url:
        database = Database(url)
        migrate.upgrade(database)
        idle.fill(database)
        yield database
        database.dispose()


@pytest.mark.slow
def test_with_110_000_runs_and_nothing_to_do_the_sweep_reads_a_few_pages_of_six_short_indexes(full: Database) -> None:
    plan = idle.plan(full)
    assert {kind for kind, _ in plan.scans if kind.startswith("Seq")} == set()
    assert {index for _, index in plan.scans if index} == INDEXES
    assert plan.buffers <= BUFFERS
    with full.transaction() as connection:
        connection.execute(
            "UPDATE agentq.runs SET sweep_at = now(), sweep_look_at = now()"
            " WHERE id IN (SELECT 'waiting' || n FROM generate_series(1, 90) n)"
        )
    # The same also when there is something to find.
    assert {index for _, index in idle.plan(full).scans if index} == INDEXES
    with full.autocommit() as connection:
        assert len(leases.due(connection)) == 90
        connection.execute("UPDATE agentq.runs SET sweep_at = NULL, sweep_look_at = NULL WHERE sweep_at IS NOT NULL")


@pytest.mark.slow
def test_with_110_000_runs_and_nothing_to_do_a_round_of_the_sweep_is_one_statement(full: Database) -> None:
    drain = Drain(full)
    with counted(full) as counts:
        assert drain.sweep() == 0
    assert dict(counts) == {"claims": 1}
