"""Postgres stands still, or a worker is told to go at once: what lives is left alone, and what goes leaves nothing."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import psycopg
import pytest

from agentq.storage.database import Database
from tests.faults.conftest import FleetOn
from tests.servers import Postgres
from tests.waiting import eventually
from tests.workers.fleet import AGENTS, Worker
from tests.workers.test_kills import codes

pytestmark = [pytest.mark.crash, pytest.mark.long]


@contextmanager
def standing_still(server: Postgres) -> Iterator[None]:
    """Every process of it takes what is sent, and does nothing with it."""
    assert server.process is not None
    first = psutil.Process(server.process.pid)
    # First of all the one that would start others.
    first.suspend()
    processes = [first, *first.children(recursive=True)]
    try:
        for process in processes:
            process.suspend()
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


@pytest.fixture
def own_database(own_postgres: Postgres) -> Iterator[Database]:
    database = Database(own_postgres.url)
    yield database
    database.dispose()


def test_a_postgres_that_stood_still_for_longer_than_a_lease_costs_no_running_tool(
    own_postgres: Postgres, own_database: Database, redis_url: str, fleet_on: FleetOn
) -> None:
    fleet = fleet_on(own_database, redis_url)
    fleet.lease_secs = 6
    fleet.both(concurrency=6)
    # Another worker, which has nothing in hand and sweeps.
    fleet.start("tools", concurrency=1)
    handles = fleet.enqueue("long", 6)
    for handle in handles:
        fleet.begun(handle, 1)
    with standing_still(own_postgres):
        back = time.monotonic() + 9
        fleet.until(lambda: time.monotonic() >= back, within=15)
    fleet.complete(handles, within=60)
    assert not fleet.deaths


def test_a_worker_that_is_told_to_end_does_not_wait_for_a_postgres_that_stands_still(
    own_postgres: Postgres, own_database: Database, redis_url: str, fleet_on: FleetOn
) -> None:
    fleet = fleet_on(own_database, redis_url)
    fleet.agents, fleet.stop_secs, fleet.lease_secs = AGENTS, 1.0, 15.0
    worker = fleet.start("steps", concurrency=8)
    handles = [fleet.client.enqueue("patient", "go") for _ in range(8)]
    fleet.began(8)
    with own_database.transaction() as holder:
        # All want to save at once, and each needs a connection for it.
        holder.execute("lock table agentq.runs in exclusive mode")
        (fleet.folder / "go").touch()
        eventually(lambda: waiting_for_a_lock(own_postgres) >= 3, within=6)
    for handle in handles:
        assert handle.wait(20).text == "done"
    with standing_still(own_postgres):
        worker.terminate(within=20)


def waiting_for_a_lock(server: Postgres) -> int:
    with psycopg.connect(server.url, autocommit=True) as connection:
        found = connection.execute("select count(*) from pg_stat_activity where wait_event_type = 'Lock'").fetchone()
    assert found is not None
    return int(found[0])


def test_a_worker_that_is_told_to_go_at_once_begins_nothing_of_its_backlog_and_leaves_no_process(
    database: Database, redis_url: str, fleet_on: FleetOn
) -> None:
    fleet = fleet_on(database, redis_url)
    # So long that nothing here can be done by waiting for one.
    fleet.lease_secs = 30
    fleet.start("steps")
    worker = fleet.start("tools", concurrency=2)
    handles = fleet.enqueue("long", 8)
    fleet.began(2)
    pool = {process.pid for process in psutil.Process(worker.process.pid).children(recursive=True)}
    worker.process.send_signal(signal.SIGQUIT)
    worker.process.wait(timeout=30)
    eventually(lambda: not living(worker), within=5, what="no process is left")
    assert {call["pid"] for call in fleet.calls("begin")} <= pool
    # What it had begun is reported, and not done again; the rest waits for another worker.
    ended = eventually(
        lambda: len(found := [one for one in handles if one.run().is_terminal]) >= 2 and found, within=10
    )
    assert [codes(handle) for handle in ended] == [["interrupted"]] * 2
    assert not [handle for handle in handles if handle.run().lease_until]


def living(worker: Worker) -> list[int]:
    """The processes of a worker's group."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            is_ours = os.getpgid(process.pid) == worker.process.pid
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
