"""Servers of a test's own, which it may stop, kill and start again: Redis, RabbitMQ, Postgres, PgBouncer.

Each listens on 127.0.0.1 at a port that stays the same over restarts, and ends with ``stop`` or ``kill``.
"""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import kombu
import psycopg
import psycopg.conninfo
import pytest
import redis

from agentq.embedded.account import Account, server_account
from agentq.embedded.places import programs
from tests.waiting import eventually

# What each package calls its programs where they are not on the path.
_ALSO = "/usr/local/sbin:/usr/sbin:/sbin:/usr/lib/rabbitmq/bin"


def program(name: str) -> str:
    """The path of an installed program. Without it the test is skipped, but CI must have it."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_ALSO}")
    if found is None:
        reason = f"{name} is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI=true leaves nothing out, but {reason}")
        pytest.skip(reason)
    return found


# By port, a UDP socket of the same number: as long as this process lives, no other test process takes the port, also
# while its server is down.
_given: dict[int, socket.socket] = {}


def free_port() -> int:
    """A port that nobody listens on; below those the system gives away, so that no connection takes it meanwhile."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _given[port] = claim
        return port
    raise RuntimeError("no free port")


@dataclass
class Server:
    """A process that is started, asked until it answers, and ended; ``folder`` has its data and its log."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        return {}

    def account(self) -> Account:
        return Account()

    def start(self) -> None:
        """Returns when it answers."""
        self.launch()
        eventually(self.is_up, within=60, what=f"{type(self).__name__} answers: {self.folder / 'log'}")

    def launch(self) -> None:
        account = self.account()
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                env=os.environ | self.environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=account.uid,
                group=account.gid,
                extra_groups=None if account.uid is None else [],
            )

    def is_up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"it ended: {(self.folder / 'log').read_text(errors='replace')[-2000:]}")
        return self.answers()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(number)
            self.process.wait(timeout=60)

    def kill(self) -> None:
        """kill -9 of it and its children."""
        if self.process is not None:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def end(self) -> None:
        """Nothing of it is left."""
        self.kill()

    def restart(self) -> None:
        self.stop()
        self.start()


class Redis(Server):
    """Keeps nothing on disk: what it had is gone with it."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        words = "--bind 127.0.0.1 --appendonly no --dir"
        return [program("redis-server"), "--port", str(self.port), "--save", "", *words.split(), str(self.folder)]

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, socket_connect_timeout=2, socket_timeout=5)

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


@dataclass
class RabbitMQ(Server):
    """A node with a name mapper (epmd) of its own, which runs as whoever runs the tests."""

    dist_port: int = field(default_factory=free_port)
    epmd_port: int = field(default_factory=free_port)
    epmd: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def command(self) -> list[str]:
        # The script in the path switches to a system user whose folders are elsewhere.
        own = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        return [str(own) if own.exists() else program("rabbitmq-server")]

    def environment(self) -> Mapping[str, str]:
        folders = ("MNESIA_BASE", "LOG_BASE", "ENABLED_PLUGINS_FILE", "PID_FILE", "CONFIG_FILE", "CONF_ENV_FILE")
        own = {f"RABBITMQ_{name}": str(self.folder / name.lower()) for name in folders}
        return own | {
            "HOME": str(self.folder),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.folder / "conf"),
            "RABBITMQ_NODENAME": f"agentq{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def launch(self) -> None:
        if self.epmd is None:
            # Ours, so that it ends with us: one that RabbitMQ starts would stay for ever.
            self.epmd = subprocess.Popen(
                [program("epmd"), "-port", str(self.epmd_port)], env=os.environ | self.environment()
            )
        super().launch()

    def answers(self) -> bool:
        try:
            with kombu.Connection(self.url, connect_timeout=2) as connection:
                connection.connect()
        except (OSError, *kombu.Connection(self.url).connection_errors):
            return False
        return True

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """By its own pid: the process that was started is a shell around it, which would not pass the signal on."""
        if self.process is not None and self.process.poll() is None:
            os.kill(int((self.folder / "pid_file").read_text()), number)
        super().stop(signal.SIGCONT)

    def end(self) -> None:
        super().end()
        if self.epmd is not None:
            self.epmd.kill()
            self.epmd.wait()


@dataclass
class Postgres(Server):
    """A Postgres on a TCP port, with options of the test's own: ``binaries``, or the embedded one's programs."""

    options: Sequence[str] = ()
    binaries: Path | None = None

    @property
    def url(self) -> str:
        return f"postgresql://agentq@127.0.0.1:{self.port}/postgres"

    def account(self) -> Account:
        return server_account()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def launch(self) -> None:
        if not self.data.exists():
            self.data.mkdir()
            self.account().own(self.data)
            words = "--username agentq --auth trust --encoding UTF8 --no-locale --no-sync --pgdata"
            self._run("initdb", *words.split(), str(self.data))
        super().launch()

    def _run(self, name: str, *arguments: str) -> None:
        account = self.account()
        subprocess.run(
            [self.program(name), *arguments],
            cwd=self.data,
            user=account.uid,
            group=account.gid,
            extra_groups=None if account.uid is None else [],
            check=True,
            capture_output=True,
        )

    def program(self, name: str) -> str:
        return str((self.binaries or programs(self.account())) / name)

    def command(self) -> list[str]:
        fixed = ["listen_addresses=127.0.0.1", f"unix_socket_directories={self.data}", "fsync=off"]
        options = [word for option in [*fixed, *self.options] for word in ("-c", option)]
        return [self.program("postgres"), "-D", str(self.data), "-p", str(self.port), *options]

    def answers(self) -> bool:
        try:
            with psycopg.connect(self.url, connect_timeout=2):
                return True
        except psycopg.OperationalError:
            return False

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is the fast shutdown, which ends every connection; SIGQUIT the immediate one, as a crash."""
        super().stop(number)

    def end(self) -> None:
        # Unlike after kill -9, no process of it is left that still writes.
        self.stop(signal.SIGQUIT)


@dataclass
class PgBouncer(Server):
    """A pooler in transaction mode before the server of ``target``: as its user, into any of its databases."""

    target: str = ""
    pool_size: int = 10

    def account(self) -> Account:
        # It refuses to be root, as Postgres does.
        return server_account()

    def launch(self) -> None:
        file, account = self.folder / "pgbouncer.ini", self.account()
        file.write_text(self._configuration())
        file.chmod(0o600)  # there is a password in it
        account.own(file)
        super().launch()

    def _configuration(self) -> str:
        given = psycopg.conninfo.conninfo_to_dict(self.target)
        server = [f"{name}='{given[name]}'" for name in ("host", "port", "user", "password") if given.get(name)]
        return "\n".join(
            [
                "[databases]",
                f"* = {' '.join(server)}",
                "[pgbouncer]",
                "listen_addr = 127.0.0.1",
                f"listen_port = {self.port}",
                "unix_socket_dir =",
                "auth_type = any",
                "pool_mode = transaction",
                "max_client_conn = 1000",
                f"default_pool_size = {self.pool_size}",
                "server_idle_timeout = 5",
            ]
        )

    def command(self) -> list[str]:
        return [program("pgbouncer"), str(self.folder / "pgbouncer.ini")]

    def url_of(self, database_url: str) -> str:
        """The way through the pooler to a database of the server behind it."""
        parts = urlsplit(database_url)
        user = f"{parts.username}@" if parts.username else ""
        return parts._replace(netloc=f"{user}127.0.0.1:{self.port}", query="").geturl()

    def answers(self) -> bool:
        try:
            with psycopg.connect(self.url_of(self.target), connect_timeout=2, prepare_threshold=None):
                return True
        except psycopg.OperationalError:
            return False


AnyServer = TypeVar("AnyServer", bound=Server)


@contextmanager
def running(server: AnyServer) -> Iterator[AnyServer]:
    """Started, and gone at the end whatever became of it."""
    try:
        server.start()
        yield server
    finally:
        server.end()
