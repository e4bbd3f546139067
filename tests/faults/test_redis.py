"""Redis forgets everything, or is away: runs go on from what is saved in Postgres, and workers take work again."""

import contextlib
import logging
import time
from typing import Any

import kombu
import pytest

from agentq.storage.database import Database
from agentq_workers.connection import Connection
from tests.faults.conftest import FleetOn
from tests.faults.fleet import SupervisedFleet
from tests.servers import Redis

pytestmark = pytest.mark.crash


@pytest.fixture
def fleet(database: Database, own_redis: Redis, fleet_on: FleetOn) -> SupervisedFleet:
    """One worker of each kind, so that a run that ends shows that both take work."""
    fleet = fleet_on(database, own_redis.url)
    fleet.both(concurrency=4)
    return fleet


def test_redis_is_flushed_while_three_calls_run(fleet: SupervisedFleet, own_redis: Redis) -> None:
    handles = [*fleet.enqueue("trio"), *fleet.enqueue("walk", 2)]
    fleet.begun(handles[0], 3)
    own_redis.client().flushall()
    fleet.complete(handles, within=30)
    fleet.complete(fleet.enqueue("short", 4), within=30)
    assert not fleet.deaths


@pytest.mark.parametrize(
    ("secs", "within"),
    [
        pytest.param(0, 30, marks=pytest.mark.long),
        (8, 30),
        pytest.param(65, 80, marks=[pytest.mark.long, pytest.mark.timeout(240)]),
    ],
)
def test_redis_comes_back_empty(fleet: SupervisedFleet, own_redis: Redis, secs: float, within: float) -> None:
    handles = [*fleet.enqueue("trio"), *fleet.enqueue("walk", 4)]
    fleet.begun(handles[0], 3)
    own_redis.kill()
    back = time.monotonic() + secs
    # Stored at once, whatever becomes of the broker.
    handles += fleet.enqueue("short", 3)
    assert {handle.status() for handle in handles[-3:]} == {"queued"}
    fleet.until(lambda: time.monotonic() >= back, within=secs + 5)
    own_redis.start()
    fleet.complete(handles, within=within)
    # One worker of each kind: both take work again.
    fleet.complete(fleet.enqueue("short", 4), within=30)
    assert not fleet.deaths


@pytest.mark.long
def test_redis_is_restarted_again_and_again(fleet: SupervisedFleet, own_redis: Redis) -> None:
    handles = fleet.enqueue("walk", 6)
    for count in range(4):
        fleet.begun(handles[0], 1 + count)
        own_redis.restart()
    fleet.complete(handles, within=60)
    fleet.complete(fleet.enqueue("short", 4), within=30)
    assert not fleet.deaths


@pytest.mark.parametrize("is_back", [False, True])
def test_a_lost_connection_is_closed_and_its_messages_acknowledged_without_an_error(
    own_redis: Redis, is_back: bool
) -> None:
    """As Celery's consumer does it; what is raised there ends the worker."""
    connection = Connection(own_redis.url)
    received: list[Any] = []
    # Two channels that wait for messages, as a worker has: the second is in the way of closing the first.
    channels: list[Any] = [connection.default_channel, connection.channel()]
    for number, channel in enumerate(channels):
        kombu.Consumer(channel, [kombu.Queue(f"q{number}")], on_message=received.append).consume()
    connection.Producer(channels[0]).publish({}, routing_key="q0")
    while not received:
        connection.drain_events(timeout=5)
    with contextlib.suppress(TimeoutError):
        connection.drain_events(timeout=0.1)
    own_redis.kill()
    if is_back:
        own_redis.start()
    with contextlib.suppress(Exception):
        connection.collect(socket_timeout=1)
    connection.close()
    received[0].ack_log_error(logging.getLogger(__name__), connection.connection_errors)
    if is_back:
        assert own_redis.client().hlen("unacked") == 0
