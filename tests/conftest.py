"""Fixtures of every test: services with a place of one's own in each, and nothing left behind."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote

import pytest

import agentq.embedded.broker  # noqa: F401 - teaches kombu the URL
from agentq.storage import migrate
from agentq.storage.database import Database
from agentq.storage.schema import metadata
from tests import services
from tests.services import Service, Services

SERVICES = pytest.StashKey[Services]()
EMBEDDED = pytest.StashKey[services.EmbeddedPostgres]()
POOLER = pytest.StashKey[ExitStack]()
FORGOTTEN = pytest.StashKey[list[str]]()

# A key in the environment would let a test call a real model, and a setting would change what it tests.
PROVIDER_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")

# Some milliseconds for the few rows of a test; a TRUNCATE makes new files for every table and index.
EMPTY = "; ".join(f"delete from {table.fullname}" for table in reversed(metadata.sorted_tables))


# -- the session --


def pytest_configure(config: pytest.Config) -> None:
    for name in list(os.environ):
        ours = name.startswith("AGENTQ_") and not name.startswith("AGENTQ_TEST_")
        if ours or name in PROVIDER_KEYS:
            del os.environ[name]
    # A worker of pytest-xdist is told; everything else in the session asks for itself, once.
    if given := getattr(config, "workerinput", {}).get("agentq_services"):
        config.stash[SERVICES] = Services.load(given)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["agentq_services"] = found(node.config).dump()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    found(session.config)


def found(config: pytest.Config) -> Services:
    """The services of this session. With CI=true a missing one ends it before the first test."""
    if SERVICES not in config.stash:
        in_ci = os.environ.get("CI") == "true"
        config.stash[EMBEDDED] = services.EmbeddedPostgres()
        config.stash[SERVICES] = services.find(stand_in=None if in_ci else config.stash[EMBEDDED].start)
        if in_ci and (left_out := config.stash[SERVICES].left_out):
            raise pytest.UsageError(f"CI=true leaves nothing out, but there is no {'; no '.join(map(str, left_out))}")
        if os.environ.get(services.PGBOUNCER_VARIABLE) == "1":
            config.stash[POOLER] = ExitStack()
            config.stash[SERVICES] = config.stash[POOLER].enter_context(
                services.through_pgbouncer(config.stash[SERVICES])
            )
    return config.stash[SERVICES]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(item, "fixturenames", ())
        for name in ("redis", "rabbitmq"):
            if f"{name}_url" in names:
                item.add_marker(name)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in ("redis", "rabbitmq"):
        if item.get_closest_marker(name):
            url_of(getattr(found(item.config), name))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if EMBEDDED not in config.stash:
        return
    if POOLER in config.stash:
        config.stash[POOLER].close()
    if SERVICES in config.stash and config.stash[SERVICES].postgres.url:
        config.stash[FORGOTTEN] = services.drop_forgotten_databases(config.stash[SERVICES])
        if config.stash[FORGOTTEN] and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    config.stash[EMBEDDED].stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if SERVICES in config.stash:
        terminalreporter.write_line(config.stash[SERVICES].line())
    if forgotten := config.stash.get(FORGOTTEN, []):
        terminalreporter.write_line(f"ERROR: the tests left databases behind: {', '.join(forgotten)}", red=True)


# -- a place of one's own in each service --


def url_of(service: Service) -> str:
    """Where the service is; a test that needs it and cannot have it is skipped with the reason."""
    if service.url is None:
        pytest.skip(f"{service}")
    return service.url


@pytest.fixture(scope="session")
def service_urls(pytestconfig: pytest.Config) -> Services:
    """What this session found, for the few tests that need the servers themselves."""
    return found(pytestconfig)


@pytest.fixture(scope="session")
def database_url(service_urls: Services) -> Iterator[str]:
    """An empty database for all tests of this process, dropped at the end."""
    url_of(service_urls.postgres)
    with services.new_database(service_urls) as url:
        yield url


@pytest.fixture
def new_database_url(service_urls: Services) -> Iterator[Callable[[], str]]:
    """Makes empty databases for one test, which are dropped after it."""
    url_of(service_urls.postgres)
    with ExitStack() as databases:
        yield lambda: databases.enter_context(services.new_database(service_urls))


@pytest.fixture(scope="session")
def migrated_database(database_url: str) -> Iterator[Database]:
    """The schema, made once a process."""
    database = Database(database_url)
    migrate.upgrade(database)
    yield database
    database.dispose()


@pytest.fixture
def database(migrated_database: Database) -> Database:
    """The schema with empty tables."""
    with migrated_database.transaction() as connection:
        connection.execute(EMPTY)
    return migrated_database


@pytest.fixture(scope="session")
def redis_database(service_urls: Services) -> Iterator[str]:
    """A Redis database that nobody else tests in while this process lives; tests use redis_url."""
    url_of(service_urls.redis)
    with services.own_redis_database(service_urls) as url:
        yield url


@pytest.fixture
def redis_url(redis_database: str) -> Iterator[str]:
    """An empty Redis database."""
    services.flush_url(redis_database)
    yield redis_database
    services.flush_url(redis_database)


@pytest.fixture
def queue_prefix(service_urls: Services) -> str:
    """A name no other test's queues begin with; rabbitmq_url deletes the queues wire.py knows under it."""
    return f"agentq_test_{service_urls.token}_{token_hex(4)}"


@pytest.fixture
def extra_queues() -> list[str]:
    """Queues beside the usual ones that a test declares on RabbitMQ: it adds their full names to have them deleted."""
    return []


@pytest.fixture
def rabbitmq_url(service_urls: Services, queue_prefix: str, extra_queues: list[str]) -> Iterator[str]:
    """RabbitMQ, shared with other tests: declare queues under queue_prefix only."""
    url = url_of(service_urls.rabbitmq)
    yield url
    services.delete_queues(url, [queue_prefix, f"{queue_prefix}.tools", *extra_queues])


@pytest.fixture
def embedded_broker_url(tmp_path: Path) -> str:
    """The file system broker, in a folder of this test's own."""
    return f"agentq+file://{quote(str(tmp_path / 'broker'))}"


@pytest.fixture(
    params=[
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("rabbitmq", marks=pytest.mark.rabbitmq),
        "embedded",
    ]
)
def broker_url(request: pytest.FixtureRequest) -> str:
    """Each broker in turn."""
    fixtures = {"redis": "redis_url", "rabbitmq": "rabbitmq_url", "embedded": "embedded_broker_url"}
    return str(request.getfixturevalue(fixtures[request.param]))
