"""Where the demo plays: a Postgres, a broker and two workers of its own, of which nothing is left at the end."""

import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import TimeoutExpired

from agentq.cli.pools import Child, Lifeline
from agentq.cli.worker import make_pools
from agentq.client import Client
from agentq.config import Settings
from agentq.errors import UnavailableError
from agentq.registry import load_agents
from agentq.storage import queries

AGENTS = "agentq.demo"
WORKERS = ("A", "B")
# Short, so that a lost worker is noticed while somebody watches.
LEASE_SECS = 2.0
READY_SECS = 60.0
STOP_SECS = 10.0

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NODE = re.compile(r"(steps|tools)-(\w+)@")


class Stage:
    """The client and the workers, by name; each worker is two Celery processes and can do everything."""

    def __init__(self, client: Client, lifeline: Lifeline, folder: Path) -> None:
        self.client = client
        self._log = folder / "workers.log"
        self._output = self._log.open("ab")
        # A pool of processes keeps a folder there, which it leaves behind when it is killed.
        self._temporary = folder / "tmp"
        self._temporary.mkdir(exist_ok=True)
        self.workers = {name: self._make_worker(name, lifeline) for name in WORKERS}

    def _make_worker(self, name: str, lifeline: Lifeline) -> list[Child]:
        settings, variables = self.client.settings, {"TMPDIR": str(self._temporary)}
        return [
            Child(pool, name, settings, lifeline, output=self._output, variables=variables)
            for pool in make_pools(settings, load_agents(AGENTS))
        ]

    @property
    def _children(self) -> list[Child]:
        return [child for worker in self.workers.values() for child in worker]

    def start(self) -> None:
        """Start the workers and wait until all can take work. Raises UnavailableError with the end of their log."""
        for child in self._children:
            child.start()
        give_up = time.monotonic() + READY_SECS
        while len(self._alive()) < len(self._children):
            if time.monotonic() > give_up or not all(child.is_running for child in self._children):
                raise UnavailableError(f"the demo's workers did not start:\n{self.log_tail()}")
            time.sleep(0.05)

    def _alive(self) -> Sequence[queries.Worker]:
        with self.client.database.autocommit() as connection:
            return [worker for worker in queries.workers(connection) if name_of(worker.id) in WORKERS]

    def kill(self, name: str) -> list[int]:
        """kill -9 of a whole worker; the answer is its process ids."""
        pids = [child.pid for child in self.workers[name] if child.pid is not None]
        for child in self.workers[name]:
            child.kill()
        return pids

    def stop(self, *, gently: bool) -> None:
        """Stop every worker; gently takes Celery some seconds, which only matters where the database stays."""
        if gently:
            for child in self._children:
                child.signal(signal.SIGTERM)
        give_up = time.monotonic() + STOP_SECS
        for child in self._children:
            with suppress(TimeoutExpired):
                child.wait(max(give_up - time.monotonic(), 0) if gently else 0)
            child.kill()
            child.wait()
        self._output.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-2000:].strip()


def name_of(worker: str | None) -> str | None:
    """The demo's name for a worker that is called ``steps-A@host:1`` in leases and events."""
    found = _NODE.match(worker or "")
    return found[2] if found else None


@contextmanager
def stage(home: Path | None) -> Iterator[Stage]:
    """Everything started; at the end, or on whatever ends it, everything stopped and, without ``home``, removed."""
    stack = ExitStack()
    before = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
    try:
        yield _build(stack, home)
    finally:
        # A second Ctrl-C must not leave something behind.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        stack.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _build(stack: ExitStack, home: Path | None) -> Stage:
    folder = home or stack.enter_context(_temporary_home())
    settings = Settings(
        home=folder, agents=AGENTS, lease_secs=LEASE_SECS, db_pool_size=3, concurrency=4, tool_concurrency=2
    )
    client = stack.enter_context(Client(settings=settings))
    lifeline = Lifeline()
    stack.callback(lifeline.close)
    built = Stage(client, lifeline, folder)
    stack.callback(built.stop, gently=home is not None)
    built.start()
    return built


@contextmanager
def _temporary_home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="agentq-demo-"))
    # For root the server runs as another user, who has to get to its own folder in here.
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
