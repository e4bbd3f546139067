"""A fleet behind PgBouncer in transaction mode: few server connections do, and its restart costs nothing.

``make test-pgbouncer`` runs every other test through one.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from agentq.storage.database import Database
from tests.faults.conftest import FleetOn
from tests.faults.fleet import SupervisedFleet
from tests.servers import PgBouncer, Server
from tests.services import Services

pytestmark = pytest.mark.crash

POOL_SIZE = 3


@pytest.fixture
def pgbouncer(
    service_urls: Services, database: Database, folder: Callable[[], Path], run_server: Callable[[Server], None]
) -> PgBouncer:
    run_server(server := PgBouncer(folder(), target=str(service_urls.postgres.url), pool_size=POOL_SIZE))
    return server


@pytest.fixture
def fleet(pgbouncer: PgBouncer, database: Database, redis_url: str, fleet_on: FleetOn) -> Iterator[SupervisedFleet]:
    direct = database.url
    pooled = Database(pgbouncer.url_of(direct))
    fleet = fleet_on(pooled, redis_url)
    fleet.both(concurrency=6)
    yield fleet
    pooled.dispose()


def test_a_fleet_works_on_three_server_connections(fleet: SupervisedFleet, pgbouncer: PgBouncer) -> None:
    handles = [*fleet.enqueue("trio"), *fleet.enqueue("walk", 4), *fleet.enqueue("thinker"), *fleet.enqueue("short", 6)]
    most = 0

    def all_ended() -> bool:
        nonlocal most
        most = max(most, server_connections(pgbouncer, str(fleet.database.name)))
        return len(fleet.client.runs(status="completed")) == len(handles)

    fleet.until(all_ended, within=40)
    fleet.complete(handles, within=5)
    assert 0 < most <= POOL_SIZE


def server_connections(pgbouncer: PgBouncer, database: str) -> int:
    """How many the pooler holds to a database, by its own count."""
    url = pgbouncer.url_of("postgresql://pgbouncer@127.0.0.1/pgbouncer")
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        cursor = psycopg.ClientCursor(connection)
        return len([row for row in cursor.execute("show servers") if database in row])


@pytest.mark.parametrize("secs", [0, pytest.param(5, marks=pytest.mark.long)], ids=lambda secs: f"{secs}s")
def test_pgbouncer_is_restarted(fleet: SupervisedFleet, pgbouncer: PgBouncer, secs: float) -> None:
    handles = [*fleet.enqueue("trio"), *fleet.enqueue("walk", 4)]
    fleet.begun(handles[0], 3)
    pgbouncer.kill()
    back = time.monotonic() + secs
    fleet.until(lambda: time.monotonic() >= back, within=secs + 5)
    pgbouncer.start()
    fleet.complete(handles, within=30)
    assert not fleet.deaths
