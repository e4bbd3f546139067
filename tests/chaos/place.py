"""Servers of our own to be killed: a Redis that forgets everything, and a Postgres cluster where we may have one."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import psycopg
import redis

from agentq import ConfigError, embedded
from agentq.storage import migrate
from agentq.storage.database import Database
from tests import services
from tests.services import Service, Services
from tests.waiting import eventually

NAME = "agentq-chaos"


class Broker:
    """A Redis without persistence on a port of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._folder = folder
        # One fault of the broker at a time.
        self.lock = threading.Lock()
        self.is_up = False
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_connect_timeout=2, socket_timeout=5)

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, start_new_session=True)
        eventually(self._answers, what="Redis answers")
        self.is_up = True

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def kill(self) -> None:
        self.is_up = False
        self._process.kill()
        self._process.wait()

    def send(self, number: signal.Signals) -> None:
        self.is_up = number == signal.SIGCONT
        self._process.send_signal(number)


class Server:
    """The database of one chaos, asked through connections that may be cut at any moment."""

    def __init__(self, url: str, *, is_ours: bool) -> None:
        self.url = url
        self.is_ours = is_ours

    def connect(self) -> "psycopg.Connection[tuple[Any, ...]]":
        return psycopg.connect(self.url, autocommit=True, connect_timeout=5, application_name=NAME)

    def ask(self, query: str, values: Sequence[Any] = (), *, within: float = 60.0) -> list[tuple[Any, ...]]:
        """The rows, asked again while the server refuses."""
        give_up = time.monotonic() + within
        while True:
            try:
                with self.connect() as connection:
                    return connection.execute(query, values).fetchall()
            except psycopg.OperationalError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)

    def crash(self) -> None:
        """kill -9 of one backend: the server takes its shared memory for broken and recovers as after a crash."""
        with self.connect() as connection:
            os.kill(connection.info.backend_pid, signal.SIGKILL)

    def cut(self, share: float) -> None:
        """End that share of the connections to our database."""
        self.ask(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < %s""",
            [share],
        )


@dataclass
class Place:
    """Everything one chaos runs on."""

    folder: Path
    broker: Broker
    server: Server
    services: Services

    @contextmanager
    def new_database(self) -> Iterator[Database]:
        """Another database with the schema, on the same server."""
        with services.new_database(self.services) as url:
            database = Database(url)
            migrate.upgrade(database)
            yield database
            database.dispose()


@contextmanager
def place() -> Iterator[Place]:
    """Servers, a database and a folder; all of it is gone afterwards."""
    with ExitStack() as exits:
        # Short, as a socket's path may have some hundred characters only.
        folder = Path(tempfile.mkdtemp(prefix="agentq-chaos-"))
        exits.callback(shutil.rmtree, folder, ignore_errors=True)
        found, is_ours = _postgres(folder, exits)
        url = exits.enter_context(services.new_database(found))
        database = Database(url)
        migrate.upgrade(database)
        database.dispose()
        broker = Broker(folder)
        exits.callback(broker.kill)
        yield Place(folder, broker, Server(url, is_ours=is_ours), found)


def _postgres(folder: Path, exits: ExitStack) -> tuple[Services, bool]:
    """The server that the environment names, else an embedded one, which is ours to crash, else what is found."""
    if not os.environ.get(services.DATABASE_VARIABLE):
        try:
            running = exits.enter_context(embedded.start(folder / "pg"))
        except ConfigError:
            pass
        else:
            none = Service("", None, "not used")
            found = Service("Postgres", running.database_url, "embedded")
            return Services(token_hex(4), found, none, none), True
    found_services = services.find(stand_in=None)
    if found_services.postgres.url is None:
        raise SystemExit(f"chaos needs Postgres; {found_services.postgres}")
    return found_services, False
