"""Real workers with the agents of these cases."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentq.storage.database import Database
from tests.workers.fleet import Fleet

AGENTS = Path(__file__).parent / "agents_for_cases.py"


@pytest.fixture
def workers(tmp_path: Path, database: Database, redis_url: str, queue_prefix: str) -> Iterator[Fleet]:
    """No worker yet, on Redis."""
    found = Fleet(tmp_path, database, redis_url, queue_prefix, agents=AGENTS)
    yield found
    found.stop()
