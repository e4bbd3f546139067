"""Installations for the command line's tests."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from agentq.storage import migrate
from agentq.storage.database import Database
from tests import services
from tests.cli.program import AGENTS, Program, Started, settings
from tests.services import Services


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For an embedded server: its socket has a short name there, and root's server may get to its data."""
    folder = Path(tempfile.mkdtemp(prefix="aqd-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Nothing configured."""
    found = Program(tmp_path)
    yield found
    found.stop()


@pytest.fixture
def installation(program: Program, database: Database, embedded_broker_url: str, queue_prefix: str) -> Program:
    """A migrated, empty database, a broker and agents; no worker."""
    program.settings = settings(
        database_url=database.url,
        broker_url=embedded_broker_url,
        queue=queue_prefix,
        agents=str(AGENTS),
        concurrency=4,
        tool_concurrency=1,
    )
    return program


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, service_urls: Services) -> Iterator[Program]:
    """An installation with a running worker, for all tests of a module: they share its database."""
    if service_urls.postgres.url is None:
        pytest.skip(f"{service_urls.postgres}")
    folder = tmp_path_factory.mktemp("served")
    with services.new_database(service_urls) as url:
        database = Database(url)
        migrate.upgrade(database)
        database.dispose()
        found = Program(
            folder,
            settings(
                database_url=url,
                broker_url=f"agentq+file://{folder}/broker",
                queue=f"agentq_test_{service_urls.token}_{token_hex(4)}",
                agents=str(AGENTS),
                concurrency=4,
                tool_concurrency=2,
                lease_secs=2,
            ),
        )
        try:
            ready(found.start("worker"))
            yield found
        finally:
            found.stop()


def ready(worker: Started) -> Started:
    """A worker whose two pools take work."""
    worker.says("ready.", "ready.")
    return worker
