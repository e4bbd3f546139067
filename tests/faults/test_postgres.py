"""Postgres restarts, refuses, ends connections or has none free: what was done is saved when it is back, once."""

import contextlib
import signal
import time
from collections.abc import Iterator

import psycopg
import pytest

from agentq.config import Settings
from agentq.storage.database import Database
from tests.faults.conftest import FleetOn
from tests.faults.fleet import SupervisedFleet
from tests.servers import Postgres
from tests.waiting import eventually

pytestmark = pytest.mark.crash


@pytest.fixture
def fleet(
    request: pytest.FixtureRequest, own_postgres: Postgres, redis_url: str, fleet_on: FleetOn
) -> Iterator[SupervisedFleet]:
    """Its parameter is the lease."""
    database = Database(own_postgres.url)
    fleet = fleet_on(database, redis_url)
    fleet.lease_secs = getattr(request, "param", fleet.lease_secs)
    fleet.both(concurrency=4)
    yield fleet
    database.dispose()


APPLICATIONS = "from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"


def terminate_all(url: str) -> int:
    """How many connections were ended."""
    with psycopg.connect(url, autocommit=True) as connection:
        return len(connection.execute(f"select pg_terminate_backend(pid) {APPLICATIONS}").fetchall())


def test_postgres_is_restarted(fleet: SupervisedFleet, own_postgres: Postgres) -> None:
    handles = [*fleet.enqueue("trio"), *fleet.enqueue("walk", 3)]
    fleet.begun(handles[0], 3)
    own_postgres.restart()
    fleet.complete(handles, within=30)
    assert not fleet.deaths


@pytest.mark.long
def test_postgres_ends_as_in_a_crash(fleet: SupervisedFleet, own_postgres: Postgres) -> None:
    handles = [*fleet.enqueue("trio"), *fleet.enqueue("walk", 3)]
    fleet.begun(handles[0], 3)
    own_postgres.stop(signal.SIGQUIT)
    own_postgres.start()
    # A crash may undo claims of the last moment, so what was to be called then is not called for sure.
    fleet.complete(handles, within=40, may_interrupt=True)
    assert not fleet.deaths


@pytest.mark.long
def test_every_connection_is_ended_again_and_again(fleet: SupervisedFleet, own_postgres: Postgres) -> None:
    handles = [*fleet.enqueue("trio"), *fleet.enqueue("walk", 3)]
    ended = 0
    until = time.monotonic() + 4

    def end_them() -> bool:
        nonlocal ended
        ended += terminate_all(own_postgres.url)
        return time.monotonic() > until

    fleet.until(end_them, within=20)
    assert ended > 10
    fleet.complete(handles, within=30)
    assert not fleet.deaths


def test_connections_end_during_a_model_call_and_its_reply_is_saved_once(
    fleet: SupervisedFleet, own_postgres: Postgres
) -> None:
    (handle,) = fleet.enqueue("thinker")
    fleet.until(lambda: fleet.calls("asked"), within=10)
    with psycopg.connect(own_postgres.url, autocommit=True) as connection:
        in_transaction = connection.execute(f"select count(*) {APPLICATIONS} and xact_start is not null").fetchone()
    assert in_transaction == (0,)
    terminate_all(own_postgres.url)
    fleet.complete([handle], within=20)
    assert len(fleet.calls("asked")) == 1
    steps = [event.data["phase"] for event in handle.events(follow=False) if event.type == "step"]
    assert steps == ["model", "tools", "model"]


@pytest.mark.parametrize(
    "secs", [4, pytest.param(30, marks=[pytest.mark.long, pytest.mark.timeout(180)])], ids=lambda secs: f"{secs}s"
)
def test_postgres_is_away_for_longer_than_a_lease(fleet: SupervisedFleet, own_postgres: Postgres, secs: float) -> None:
    handles = [*fleet.enqueue("trio"), *fleet.enqueue("walk", 3)]
    fleet.begun(handles[0], 3)
    own_postgres.stop()
    back = time.monotonic() + secs
    fleet.until(lambda: time.monotonic() >= back, within=secs + 5)
    own_postgres.start()
    fleet.complete(handles, within=30)
    assert not fleet.deaths


# A sweep that has a connection cannot know that others have none: what counts is then the lease.
@pytest.mark.long
@pytest.mark.parametrize("fleet", [Settings().lease_secs], indirect=True)
def test_all_connections_are_taken_by_somebody_else(fleet: SupervisedFleet, own_postgres: Postgres) -> None:
    handles = [*fleet.enqueue("trio"), *fleet.enqueue("walk", 3)]
    fleet.begun(handles[0], 3)
    hoard: list[psycopg.Connection] = []
    # Ours are ended, and somebody is quicker to take the free places.
    terminate_all(own_postgres.url)
    _take_all(own_postgres.url, hoard)
    until = time.monotonic() + 10

    def nothing_is_left() -> bool:
        _take_all(own_postgres.url, hoard)
        return time.monotonic() > until

    eventually(nothing_is_left, within=20)
    assert len(hoard) > 50, "the server was full"
    for connection in hoard:
        connection.close()
    fleet.complete(handles, within=40)
    assert not fleet.deaths


def _take_all(url: str, hoard: list[psycopg.Connection]) -> None:
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            hoard.append(psycopg.connect(url, connect_timeout=2))
