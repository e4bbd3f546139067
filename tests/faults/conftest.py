"""Servers and fleets of a test's own."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentq.storage import migrate
from agentq.storage.database import Database
from tests.faults.fleet import SupervisedFleet
from tests.servers import Postgres, RabbitMQ, Redis, Server, running


@pytest.fixture
def folder() -> Iterator[Callable[[], Path]]:
    """Makes folders that another account may enter: some servers refuse to run as root."""
    made: list[Path] = []

    def make() -> Path:
        made.append(Path(tempfile.mkdtemp(prefix="agentq-test-")))
        made[-1].chmod(0o711)
        return made[-1]

    yield make
    for one in made:
        shutil.rmtree(one)


@pytest.fixture
def run_server(folder: object) -> Iterator[Callable[[Server], None]]:
    """Starts servers, which are gone after the test."""
    with ExitStack() as servers:
        yield lambda server: servers.enter_context(running(server))


@pytest.fixture
def own_redis(folder: Callable[[], Path], run_server: Callable[[Server], None]) -> Redis:
    run_server(server := Redis(folder()))
    return server


@pytest.fixture
def own_rabbitmq(folder: Callable[[], Path], run_server: Callable[[Server], None]) -> RabbitMQ:
    run_server(server := RabbitMQ(folder()))
    return server


@pytest.fixture
def own_postgres(
    request: pytest.FixtureRequest, folder: Callable[[], Path], run_server: Callable[[Server], None]
) -> Postgres:
    """An empty schema of agentq in a server of this test's own; its parameter are the server's options."""
    run_server(server := Postgres(folder(), options=getattr(request, "param", ["max_connections=60"])))
    database = Database(server.url)
    migrate.upgrade(database)
    database.dispose()
    return server


@pytest.fixture
def fleet_on(tmp_path: Path, queue_prefix: str) -> Iterator[Callable[[Database, str], SupervisedFleet]]:
    """Makes the fleet of a test, with no worker yet, on a database and a broker."""
    made: list[SupervisedFleet] = []

    def make(database: Database, broker_url: str) -> SupervisedFleet:
        made.append(SupervisedFleet(tmp_path, database, broker_url, queue_prefix))
        return made[-1]

    yield make
    for fleet in made:
        fleet.stop()


FleetOn = Callable[[Database, str], SupervisedFleet]
