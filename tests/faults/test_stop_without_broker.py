"""A worker is told to stop while Redis hangs: Postgres is there, so what it cannot finish is given back in time."""

import signal
import time

import pytest

from agentq.storage.database import Database
from tests.faults.conftest import FleetOn
from tests.faults.fleet import SupervisedFleet
from tests.servers import Redis
from tests.waiting import eventually

pytestmark = pytest.mark.crash

STOP_SECS = 2


@pytest.fixture
def fleet(database: Database, own_redis: Redis, fleet_on: FleetOn) -> SupervisedFleet:
    fleet = fleet_on(database, own_redis.url)
    fleet.lease_secs, fleet.stop_secs = 30, STOP_SECS
    fleet.agents = fleet.agents.parents[1] / "workers" / "agents_under_test.py"
    return fleet


def hang(redis: Redis) -> None:
    assert redis.process is not None
    redis.process.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize("kind", ["tools", "steps"])
@pytest.mark.long
def test_gently(fleet: SupervisedFleet, own_redis: Redis, kind: str) -> None:
    steps, tools = fleet.both(concurrency=2)
    handle = fleet.client.enqueue("slow_tool" if kind == "tools" else "slow_model", "go")
    fleet.began(1)
    hang(own_redis)
    worker = tools if kind == "tools" else steps
    worker.process.terminate()
    # Its lease would last for thirty seconds.
    eventually(lambda: handle.run().lease_until is None, within=STOP_SECS + 8)
    assert worker.process.wait(timeout=20) is not None


@pytest.mark.long
def test_at_once(fleet: SupervisedFleet, own_redis: Redis) -> None:
    _, tools = fleet.both(concurrency=4)
    handles = [fleet.client.enqueue("slow_tool", "go") for _ in range(4)]
    fleet.began(4)
    hang(own_redis)
    since = time.monotonic()
    tools.process.send_signal(signal.SIGQUIT)
    assert tools.process.wait(timeout=30) is not None
    assert [handle.run().lease_until for handle in handles] == [None] * 4
    assert time.monotonic() - since < 20
