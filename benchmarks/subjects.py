"""What is measured: agentq and the lines beside it, each of which takes runs by name and tells when they have ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from agentq import Client
from agentq.cli.pools import Kind, Pool
from agentq.config import Settings
from agentq.storage import migrate
from agentq.storage.database import Database
from benchmarks import hops, plain, scripts
from benchmarks.looper import NAME, make_agent
from benchmarks.modes import Mode, variables
from benchmarks.notes import WAL, Notes
from benchmarks.place import ROOT, Place, worker_environment
from benchmarks.scripts import Script

READY_SECS = 60.0
QUEUE = "bench"


@dataclass(frozen=True)
class Pools:
    """The workers of a measurement: so many processes of so many threads for steps, of so many children for tools."""

    steps: int = 1
    threads: int = 8
    tools: int = 1
    children: int = 4

    def list(self) -> list[Pool]:
        steps = [Pool("steps", (QUEUE,), self.threads)] * self.steps
        return steps + [Pool("tools", (f"{QUEUE}.tools",), self.children)] * self.tools


@dataclass
class Process:
    """One worker of the subject, in a process group of its own."""

    kind: Kind
    popen: "subprocess.Popen[bytes]"

    def kill(self) -> None:
        """kill -9, children included."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


@dataclass
class Subject:
    """Something that carries runs; used inside ``with subject.running()``."""

    place: Place
    script: Script
    folder: Path
    notes: Notes
    processes: list[Process] = field(default_factory=list)
    # The names that runs have in the notes, where those are not the driver's.
    names: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Its workers are ready."""
        with self.prepared():
            self.start()
            for _ in self.processes:
                kind, *_ = self.notes.next(within=READY_SECS)
                assert kind == "ready", kind
            yield

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """What its workers need is there; they are killed at the end, since nothing they have is kept."""
        with ExitStack() as exits:
            self._prepare(exits)
            exits.callback(self.kill)
            yield

    def _prepare(self, exits: ExitStack) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Start the workers."""
        raise NotImplementedError

    def submit(self, name: str) -> None:
        raise NotImplementedError

    def submit_all(self, names: Sequence[str]) -> None:
        """All at once, by the fastest way there is."""
        for name in names:
            self.submit(name)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    @property
    def pids(self) -> list[int]:
        return [process.popen.pid for process in self.processes]

    def _spawn(self, kind: Kind, command: Sequence[str], own: Mapping[str, str]) -> Process:
        number = len(self.processes)
        variables = worker_environment() | self.notes.variables() | {scripts.VARIABLE: self.script.name} | dict(own)
        if self.script.name == "growth":
            variables[WAL] = self.place.postgres.url
        with (self.folder / f"{kind}-{number}.log").open("wb") as log:
            popen = subprocess.Popen(
                command,
                cwd=ROOT,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(Process(kind, popen))
        return self.processes[-1]


def settings(place: Place, database_url: str = "") -> Settings:
    """Of agentq's workers and producers: the defaults, on our servers."""
    return Settings(
        database_url=database_url or place.postgres.url,
        broker_url=place.redis.url,
        queue=QUEUE,
        agents="benchmarks.agents",
    )


@dataclass
class Agentq(Subject):
    """agentq itself: the driver is the producer, the workers have the command lines of ``agentq worker``."""

    pools: Pools = Pools()
    mode: Mode = "broker"
    settings: Settings = field(init=False)

    def _prepare(self, exits: ExitStack) -> None:
        self.settings = settings(self.place, exits.enter_context(self.place.database()))
        database = Database(str(self.settings.database_url))
        migrate.upgrade(database)
        database.dispose()
        exits.callback(self.client.close)

    @cached_property
    def client(self) -> Client:
        return Client(settings=self.settings, agents=[make_agent(self.script, self.mode)])

    def start(self) -> None:
        own = self.settings.environment() | variables(self.mode)
        for number, pool in enumerate(self.pools.list()):
            self._spawn(pool.kind, pool.command(str(number), self.settings), own)

    def submit(self, name: str) -> None:
        self.names[self.client.enqueue(NAME, name).id] = name

    def submit_all(self, names: Sequence[str]) -> None:
        handles = self.client.enqueue_many(NAME, names)
        self.names |= {handle.id: name for handle, name in zip(handles, names, strict=True)}


@dataclass
class Hops(Subject):
    """Celery alone, on the same pools with the same command lines; ``commits`` adds one to each task."""

    pools: Pools = Pools()
    commits: bool = False

    def _prepare(self, exits: ExitStack) -> None:
        database = exits.enter_context(self.place.database(hops.SCHEMA))
        self._database = database if self.commits else ""
        hops.app.conf.update(broker_url=self.place.redis.url)

    def start(self) -> None:
        own = {hops.BROKER: self.place.redis.url, hops.DATABASE: self._database, hops.QUEUES: ",".join(self._queues)}
        # At INFO Celery would write two lines a task.
        quiet = settings(self.place).model_copy(update={"log_level": "WARNING"})
        for number, pool in enumerate(self.pools.list()):
            command = pool.command(str(number), quiet)
            self._spawn(pool.kind, [word.replace("agentq_workers.main", "benchmarks.hops") for word in command], own)

    @property
    def _queues(self) -> list[str]:
        return list(dict.fromkeys(queue for pool in self.pools.list() for queue in pool.queues))

    def submit(self, name: str) -> None:
        hops.send(name, 0, self._queues)


@dataclass
class Plain(Subject):
    """Postgres alone: ``programs`` processes of ``plain``, which share so many connections."""

    programs: int = 2
    connections: int = 16

    def _prepare(self, exits: ExitStack) -> None:
        self._database = exits.enter_context(self.place.database(plain.SCHEMA))

    def start(self) -> None:
        own = {plain.DATABASE: self._database, plain.CONNECTIONS: str(self.connections // self.programs)}
        for _ in range(self.programs):
            self._spawn("steps", [sys.executable, "-m", "benchmarks.plain"], own)

    def submit(self, name: str) -> None:
        taker = self.processes[len(self.names) % self.programs].popen
        self.names[name] = name
        assert taker.stdin is not None
        taker.stdin.write(f"{name}\n".encode())
        taker.stdin.flush()
