"""RabbitMQ is restarted, or killed, while runs are on: they go on, and workers take work again by themselves."""

import signal
from typing import Literal

import pytest

from agentq.storage.database import Database
from tests.faults.conftest import FleetOn
from tests.servers import RabbitMQ

# A node needs ten seconds to start.
pytestmark = [pytest.mark.crash, pytest.mark.long]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_rabbitmq_is_restarted(
    database: Database, own_rabbitmq: RabbitMQ, fleet_on: FleetOn, end: Literal["stop", "kill"]
) -> None:
    fleet = fleet_on(database, own_rabbitmq.url)
    fleet.both(concurrency=4)
    handles = [*fleet.enqueue("trio"), *fleet.enqueue("walk", 4)]
    fleet.begun(handles[0], 3)
    own_rabbitmq.stop(signal.SIGTERM) if end == "stop" else own_rabbitmq.kill()
    handles += fleet.enqueue("short", 3)
    own_rabbitmq.start()
    fleet.complete(handles, within=45)
    fleet.complete(fleet.enqueue("short", 4), within=30)
    assert not fleet.deaths
