"""Messages that come twice, late, or not at all: what they are for is done once."""

import time
from collections.abc import Iterator

import pytest

from agentq.storage.database import Database
from agentq.wire import CallMessage, StepMessage, WakeUp
from tests.faults.conftest import FleetOn
from tests.faults.fleet import SupervisedFleet
from tests.servers import Redis
from tests.waiting import eventually

pytestmark = pytest.mark.crash

# Of tests.faults.impatient.
VISIBILITY_SECS = 6


def copies(fleet: SupervisedFleet, run_id: str) -> Iterator[WakeUp]:
    """Two of each message that a tool of the run was started with."""
    run = fleet.client.handle(run_id).run()
    tools = f"{fleet.queue}.tools"
    for _ in range(2):
        yield StepMessage(run_id, run.seq, tools, 60.0)
        for index in range(2):
            yield CallMessage(run_id, run.seq, index, tools, 60.0)


@pytest.mark.long
@pytest.mark.parametrize("agent", ["long", "long_batch"])
def test_a_tool_longer_than_the_visibility_timeout_runs_once(
    database: Database, own_redis: Redis, fleet_on: FleetOn, agent: str
) -> None:
    fleet = fleet_on(database, own_redis.url)
    fleet.app = "tests.faults.impatient"
    _, tools = fleet.both(concurrency=4)
    (handle,) = fleet.enqueue(agent)
    fleet.begun(handle, 2 if agent == "long_batch" else 1)
    begun = time.monotonic()
    for message in copies(fleet, handle.id):
        fleet.client.dispatcher.send(message)
    eventually(lambda: time.monotonic() > begun + VISIBILITY_SECS, within=VISIBILITY_SECS + 1)
    # Warm: the call in it goes on. Another takes what Redis gives back meanwhile.
    tools.process.terminate()
    fleet.start("tools", concurrency=4)
    eventually(lambda: own_redis.client().llen(f"{fleet.queue}.tools\x06\x163") == 0, what="all copies taken")
    assert tools.process.poll() is None, "the call was to run on"
    fleet.complete([handle], within=40)
    assert {call["pid"] for call in fleet.calls("begin")} == {call["pid"] for call in fleet.calls("end")}


def test_a_run_enqueued_while_the_broker_is_away_is_stored_and_announced_when_it_is_back(
    database: Database, own_redis: Redis, fleet_on: FleetOn
) -> None:
    fleet = fleet_on(database, own_redis.url)
    fleet.both(concurrency=4)
    own_redis.kill()
    handles = fleet.enqueue("short", 3)
    assert {handle.status() for handle in handles} == {"queued"}
    own_redis.start()
    fleet.complete(handles, within=20)
