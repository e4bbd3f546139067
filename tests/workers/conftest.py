"""A fleet for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentq.storage.database import Database
from tests.workers.fleet import Fleet


@pytest.fixture
def fleet(tmp_path: Path, database: Database, broker_url: str, queue_prefix: str) -> Iterator[Fleet]:
    """No worker yet, on each broker in turn."""
    found = Fleet(tmp_path, database, broker_url, queue_prefix)
    yield found
    found.stop()


@pytest.fixture
def redis_fleet(tmp_path: Path, database: Database, redis_url: str, queue_prefix: str) -> Iterator[Fleet]:
    """No worker yet, on Redis."""
    found = Fleet(tmp_path, database, redis_url, queue_prefix)
    yield found
    found.stop()
