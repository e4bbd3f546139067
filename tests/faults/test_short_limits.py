"""Tools with a limit of a few seconds: what they have finished is theirs, however long it takes to save it."""

import time

import pytest

from agentq.storage.database import Database
from tests.faults.conftest import FleetOn
from tests.faults.fleet import SupervisedFleet
from tests.servers import Postgres
from tests.workers.test_kills import codes

pytestmark = pytest.mark.crash

# Longer than a tool's limit and the grace beyond it.
AWAY_SECS = 12.0


def of_agents(fleet: SupervisedFleet) -> SupervisedFleet:
    fleet.agents = fleet.agents.parents[1] / "workers" / "agents_under_test.py"
    return fleet


@pytest.mark.parametrize("agent", ["brief", "brief_batch"])
@pytest.mark.long
def test_what_a_tool_has_finished_is_saved_when_postgres_is_back_after_its_limit(
    own_postgres: Postgres, redis_url: str, fleet_on: FleetOn, agent: str
) -> None:
    database = Database(own_postgres.url)
    fleet = of_agents(fleet_on(database, redis_url))
    fleet.lease_secs = 15
    fleet.both(concurrency=3)
    handle = fleet.client.enqueue(agent, "go")
    fleet.began(1)
    own_postgres.stop()
    back = time.monotonic() + AWAY_SECS
    fleet.until(lambda: time.monotonic() > back, within=AWAY_SECS + 5)
    own_postgres.start()
    fleet.until(lambda: handle.status() == "completed", within=60, what=f"{handle.id} is done")
    assert set(codes(handle)) == {None}
    database.dispose()


def test_a_lost_call_that_is_looked_for_has_its_whole_limit_for_the_tool_too(
    database: Database, redis_url: str, fleet_on: FleetOn
) -> None:
    fleet = of_agents(fleet_on(database, redis_url))
    fleet.both(concurrency=2)
    handle = fleet.client.enqueue("payer", "go")
    assert handle.wait(60).text == "done"
    assert codes(handle) == [None]
    assert [call["attempt"] for call in fleet.calls("begin")] == [1, 2]
    assert len(fleet.calls("look")) == 1
