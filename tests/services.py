"""Postgres, Redis and RabbitMQ for the tests: found once a session, shared out to its workers, left as they were.

Each is taken from its ``AGENTQ_TEST_…_URL``, else from the usual local address. Postgres alone has a stand-in where
there is none: the embedded one.
"""

import contextlib
import getpass
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote, urlsplit

import kombu
import psycopg
import redis
from amqp.exceptions import AMQPError
from psycopg import sql

from agentq import embedded
from tests.servers import PgBouncer, running

DATABASE_VARIABLE = "AGENTQ_TEST_DATABASE_URL"
REDIS_VARIABLE = "AGENTQ_TEST_REDIS_URL"
RABBITMQ_VARIABLE = "AGENTQ_TEST_RABBITMQ_URL"
# Set to 1, every test database is reached through a PgBouncer in transaction mode.
PGBOUNCER_VARIABLE = "AGENTQ_TEST_PGBOUNCER"

OLDEST_POSTGRES = 15
CONNECT_SECS = 2
NAMES = ("postgres", "redis", "rabbitmq")
# Database 0 is where a person's own data is.
REDIS_NUMBERS = range(1, 16)
# Says that a database may be flushed: no test ever ran in one without it that was not empty.
REDIS_MARK = "agentq:test:ours"


class Unusable(Exception):
    """A service that is not there, or cannot be tested with; the text says why in a few words."""


@dataclass(frozen=True)
class Service:
    """One service as found: ``url`` is None where it is left out, and ``note`` says where it came from or why not."""

    name: str
    url: str | None
    note: str

    def __str__(self) -> str:
        return f"{self.name}: {self.note}"


@dataclass(frozen=True)
class Services:
    """What one session tests with; ``token`` is in the name of everything it makes."""

    token: str
    postgres: Service
    redis: Service
    rabbitmq: Service
    # The way to Postgres for the code under test where that is another: through PgBouncer.
    pooled: str | None = None

    @property
    def all(self) -> list[Service]:
        return [getattr(self, name) for name in NAMES]

    @property
    def left_out(self) -> list[Service]:
        return [service for service in self.all if service.url is None]

    def line(self) -> str:
        used = [str(service) for service in self.all if service.url]
        left_out = [str(service) for service in self.left_out]
        return f"services: {', '.join(used) or 'none'}; left out: {', '.join(left_out) or 'nothing'}"

    def dump(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def load(cls, data: dict[str, Any]) -> "Services":
        services = {name: Service(**data[name]) for name in NAMES}
        return cls(token=data["token"], pooled=data["pooled"], **services)


def find(*, stand_in: Callable[[], str] | None) -> Services:
    """Ask each service with a real connection; ``stand_in`` gives the URL of a Postgres where there is none."""
    return Services(
        token=token_hex(4),
        postgres=_find_postgres(stand_in),
        redis=_find("Redis", REDIS_VARIABLE, "redis://127.0.0.1:6379", _ask_redis),
        rabbitmq=_find("RabbitMQ", RABBITMQ_VARIABLE, "amqp://guest:guest@127.0.0.1:5672//", _ask_rabbitmq),
    )


def _find(name: str, variable: str, usual: str, ask: Callable[[str], None]) -> Service:
    url, origin = (os.environ[variable], f"from {variable}") if os.environ.get(variable) else (usual, _place(usual))
    try:
        ask(url)
    except Unusable as error:
        return Service(name, None, f"{error} ({origin})")
    return Service(name, url, origin)


def _find_postgres(stand_in: Callable[[], str] | None) -> Service:
    name = "Postgres"
    if configured := os.environ.get(DATABASE_VARIABLE):
        try:
            return Service(name, _ask_postgres(configured), f"from {DATABASE_VARIABLE}")
        except Unusable as error:
            return Service(name, None, f"{error} (from {DATABASE_VARIABLE})")
    reasons = []
    for conninfo, origin in _postgres_candidates():
        try:
            return Service(name, _ask_postgres(conninfo), origin)
        except Unusable as error:
            reasons.append(f"{error} ({origin})")
    if stand_in:
        try:
            return Service(name, stand_in(), "embedded")
        except Exception as error:  # whatever keeps it from starting is the note
            reasons.append(f"embedded does not start: {_first_line(error)}")
    return Service(name, None, ", ".join(dict.fromkeys(reasons)))


def _postgres_candidates() -> Iterator[tuple[str, str]]:
    if any(os.environ.get(name) for name in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGUSER", "PGSERVICE")):
        yield "", "from PG* variables"
    for user in ("postgres", getpass.getuser()):
        yield f"postgresql://{quote(user, safe='')}@127.0.0.1:5432/postgres", f"127.0.0.1:5432 as {user}"


def _ask_postgres(conninfo: str) -> str:
    """The URL that the connection really has, or why it is of no use for tests."""
    try:
        with psycopg.connect(conninfo, connect_timeout=CONNECT_SECS, autocommit=True) as connection:
            info = connection.info
            if info.server_version < OLDEST_POSTGRES * 10_000:
                raise Unusable(f"is older than {OLDEST_POSTGRES}")
            may_create = "select rolsuper or rolcreatedb from pg_roles where rolname = current_user"
            if connection.execute(may_create).fetchone() != (True,):
                raise Unusable(f"{info.user} may not create databases")
            return _postgres_url(info)
    except psycopg.Error as error:
        raise Unusable("not reachable") from error


def _postgres_url(info: psycopg.ConnectionInfo) -> str:
    login = quote(info.user, safe="") + (f":{quote(info.password, safe='')}" if info.password else "")
    if info.host.startswith("/"):
        return f"postgresql://{login}@/{quote(info.dbname)}?host={quote(info.host, safe='')}&port={info.port}"
    host = f"[{info.host}]" if ":" in info.host else info.host
    return f"postgresql://{login}@{host}:{info.port}/{quote(info.dbname)}"


def _ask_redis(url: str) -> None:
    try:
        with _redis_client(url, 0) as client:
            client.ping()
    except redis.RedisError as error:
        raise Unusable("not reachable") from error


def _ask_rabbitmq(url: str) -> None:
    try:
        with kombu.Connection(url, connect_timeout=CONNECT_SECS) as connection:
            connection.connect()
    except (OSError, AMQPError) as error:
        raise Unusable("not reachable") from error


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class EmbeddedPostgres:
    """One embedded server for all workers of a session: the first process starts it, and stops it at the end."""

    def __init__(self) -> None:
        self._running: embedded.Embedded | None = None
        self._root: str | None = None

    def start(self) -> str:
        # Short, as a socket's path may have some hundred characters only.
        self._root = tempfile.mkdtemp(prefix="agentq-test-")
        self._running = embedded.start(self._root)
        return self._running.database_url

    def stop(self) -> None:
        if self._running:
            self._running.close()
        if self._root:
            shutil.rmtree(self._root, ignore_errors=True)


@contextlib.contextmanager
def through_pgbouncer(services: Services) -> Iterator[Services]:
    """The same, with every new database behind a PgBouncer in transaction mode."""
    url = services.postgres.url
    assert url
    folder = tempfile.mkdtemp(prefix="agentq-test-")
    os.chmod(folder, 0o711)  # it refuses to run as root
    try:
        with running(PgBouncer(Path(folder), target=url, pool_size=20)) as pooler:
            found = replace(services.postgres, note=f"{services.postgres.note} through PgBouncer")
            yield replace(services, postgres=found, pooled=pooler.url_of(url))
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def new_database(services: Services) -> Iterator[str]:
    """The URL of an empty database that is dropped at the end, whoever is still connected."""
    assert services.postgres.url
    name = f"agentq_test_{services.token}_{token_hex(4)}"
    with _postgres(services) as connection:
        # template0 and C: the same everywhere, whatever the server was made with.
        create = sql.SQL("create database {} template template0 encoding 'UTF8' locale 'C'")
        connection.execute(create.format(sql.Identifier(name)))
    try:
        yield urlsplit(services.pooled or services.postgres.url)._replace(path=f"/{name}").geturl()
    finally:
        _drop(services, [name])


def drop_forgotten_databases(services: Services) -> list[str]:
    """Drop what is left of this session's databases, and name it."""
    with _postgres(services) as connection:
        ours = connection.execute(
            "select datname from pg_database where starts_with(datname, %s)", [f"agentq_test_{services.token}_"]
        )
        names = [name for (name,) in ours]
    _drop(services, names)
    return names


def _drop(services: Services, names: Sequence[str]) -> None:
    with _postgres(services) as connection:
        for name in names:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def _postgres(services: Services) -> psycopg.Connection[tuple[Any, ...]]:
    assert services.postgres.url
    return psycopg.connect(services.postgres.url, connect_timeout=CONNECT_SECS, autocommit=True)


@contextlib.contextmanager
def own_redis_database(services: Services, *, numbers: Sequence[int] = REDIS_NUMBERS) -> Iterator[str]:
    """The URL of a Redis database that no other process tests in, as long as this one lives.

    The claim is an open connection: it ends with the process, however that ends, and leaves nothing behind. A database
    that anybody else is connected to is not taken.
    """
    assert services.redis.url
    for _ in range(10):
        for number in numbers:
            client = _redis_client(services.redis.url, number)
            try:
                if not _claim(client, number):
                    continue
                flush(client)
                yield _redis_url(services.redis.url, number)
                client.flushdb()
                return
            finally:
                client.close()
        # Two that met on one number both stepped back.
        time.sleep(random.uniform(0.05, 0.2))
    raise Unusable("Redis has no database from 1 to 15 that is empty and that no other test session uses")


def _claim(client: redis.Redis, number: int) -> bool:
    # Connected first, counted second: of two at once, at least one sees both.
    alone = sum(int(other["db"]) == number for other in client.client_list()) == 1
    # What is not empty and not marked is somebody's data.
    return alone and (client.dbsize() == 0 or bool(client.exists(REDIS_MARK)))


def flush(client: redis.Redis) -> None:
    """Empty a database of ours, and mark it as ours again."""
    client.flushdb()
    client.set(REDIS_MARK, "1")


def flush_url(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        flush(client)


def _redis_client(url: str, number: int) -> redis.Redis:
    # One connection, for it is the claim.
    return redis.Redis.from_url(
        _redis_url(url, number),
        single_connection_client=True,
        client_name="agentq-tests",
        socket_connect_timeout=CONNECT_SECS,
        socket_timeout=10,
    )


def _redis_url(url: str, number: int) -> str:
    return urlsplit(url)._replace(path=f"/{number}").geturl()


def delete_queues(url: str, names: Sequence[str]) -> None:
    """Remove queues and the exchanges Celery names after them; those that do not exist are no error."""
    with kombu.Connection(url, connect_timeout=CONNECT_SECS) as connection, connection.channel() as opened:
        channel: Any = opened  # celery-types knows no methods of a channel
        for name in names:
            channel.queue_delete(queue=name)
            channel.exchange_delete(exchange=name)
