"""One crew for all cells that a process runs."""

from collections.abc import Iterator
from secrets import token_hex

import pytest

from agentq.storage.database import Database
from tests import services
from tests.crash.crew import EMPTY, Crew
from tests.services import Services
from tests.workers.fleet import Fleet


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Most cells run only when they are asked for, whatever else is selected."""
    if "matrix" in config.option.markexpr:
        return
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("matrix")])
    items[:] = [item for item in items if not item.get_closest_marker("matrix")]


@pytest.fixture(scope="module")
def crew(
    tmp_path_factory: pytest.TempPathFactory,
    migrated_database: Database,
    redis_database: str,
    service_urls: Services,
) -> Iterator[Crew]:
    services.flush_url(redis_database)
    with migrated_database.transaction() as connection:
        connection.execute(EMPTY)
    queue = f"agentq_test_{service_urls.token}_{token_hex(4)}"
    fleet = Fleet(tmp_path_factory.mktemp("crash"), migrated_database, redis_database, queue, app="tests.crash.worker")
    yield Crew(fleet)
    fleet.stop()
    services.flush_url(redis_database)
