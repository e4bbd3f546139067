"""Fixtures for tests of threads that are busy."""

from collections.abc import Iterator

import pytest
import sqlalchemy
from sqlalchemy import create_engine

from agentq.storage.database import Database
from tests.engine.desk import Desk
from tests.engine.mishaps import ObservedDatabase


@pytest.fixture
def engine(database: Database) -> Iterator[sqlalchemy.Engine]:
    engine = create_engine("postgresql+psycopg://" + database.url.split("://", 1)[1])
    yield engine
    engine.dispose()


@pytest.fixture
def desk(database: Database) -> Desk:
    return Desk(database)


@pytest.fixture
def observed(database: Database) -> Iterator[ObservedDatabase]:
    observed = ObservedDatabase(database.url)
    yield observed
    observed.dispose()
