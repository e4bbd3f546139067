"""Workers on one broker, runs that wait for a person, and what is there while nobody does anything."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg

from agentq import Approve, Client
from agentq.config import Settings
from agentq.storage.database import Database
from benchmarks.meters import statements
from benchmarks.notes import Notes
from benchmarks.place import ROOT, Place, worker_environment
from benchmarks.waiting_agents import INLINE, POOLED
from tests.chaos import idle
from tests.servers import RabbitMQ
from tests.waiting import eventually

QUEUE = "bench"
# Enough that each connection of each pool has been opened.
WARM_UP = 300
PRODUCERS = 8
SETTLE_SECS = 600.0

_OPEN_WORK = """SELECT count(*) FROM agentq.runs WHERE lease_token IS NOT NULL OR sweep_at IS NOT NULL
    OR status IN ('queued', 'running')"""
_SIZES = """SELECT c.relname, pg_table_size(c.oid), pg_indexes_size(c.oid) FROM pg_class c
    WHERE c.relnamespace = 'agentq'::regnamespace AND c.relkind = 'r' ORDER BY 1"""


@dataclass(frozen=True)
class Idle:
    """What is there while nothing is to be done, and what that costs."""

    processes: int
    connections: int
    queued: int
    unacked: int | None
    statements_s: float
    cpu_ms_s: float
    sweep_buffers: int
    sweep_ms: float


@dataclass
class Crew:
    """``agentq worker`` on one broker; the runs are rows, and wait whichever it is."""

    found: Place
    folder: Path
    notes: Notes
    settings: Settings
    rabbitmq: RabbitMQ | None = None
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def broker(self) -> str:
        return "RabbitMQ" if self.rabbitmq else "Redis"

    @contextmanager
    def at_work(self) -> Iterator[Client]:
        """Both of its pools are ready; all of it is gone afterwards."""
        variables = worker_environment() | self.notes.variables() | self.settings.environment()
        with (self.folder / f"worker-{self.broker}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agentq", "worker"],
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        client = Client(settings=self.settings)
        try:
            for _ in ("steps", "tools"):
                assert self.notes.next(within=60)[0] == "ready"
            self._warm_up(client)
            yield client
        finally:
            client.close()
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=60)

    def _warm_up(self, client: Client) -> None:
        ids = self.have_waiting(client, WARM_UP, prefix=f"warm-{self.broker}-{time.time_ns()}")
        with ThreadPoolExecutor(PRODUCERS) as people:
            list(people.map(lambda run_id: client.handle(run_id).approve("call_0_0"), ids))
        for _ in ids:
            assert self.notes.next(within=60)[0] == "begun"
        self.settle()

    def have_waiting(self, client: Client, count: int, *, prefix: str) -> list[str]:
        """Enqueue so many runs, a thread each, and let the workers bring them to where a person is asked."""

        def enqueue(n: int) -> str:
            agent = (POOLED, INLINE)[n % 2]
            return client.enqueue(agent, "Order 77 arrived broken, please help.", thread=f"{prefix}-{n}").id

        with ThreadPoolExecutor(PRODUCERS) as producers:
            ids = list(producers.map(enqueue, range(count)))
        self.settle()
        return ids

    def settle(self) -> None:
        """Until nobody has anything to do, and no message is under way."""
        eventually(lambda: self.ask(_OPEN_WORK)[0][0] == 0, within=SETTLE_SECS, what="all runs wait or have ended")
        eventually(lambda: sum(self.queued()) == 0, within=60, what="no message is on the broker")

    def ask(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(str(self.settings.database_url), autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def queued(self) -> tuple[int, int]:
        """Messages that wait on the broker, and those that somebody has and has not acknowledged."""
        if self.rabbitmq:
            return _in_rabbitmq(self.rabbitmq)
        with self.found.redis.client() as client:
            keys = [key.decode() for key in client.scan_iter("*")]
            waiting = sum(client.llen(key) for key in keys if client.type(key) == b"list")
            return waiting, int(client.hlen("unacked"))  # what kombu would keep; agentq has it switched off

    def idle(self, secs: float) -> Idle:
        """Looked at for so many seconds, in which nobody asks for anything."""
        assert self.process is not None
        tree = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        before = _cpu(tree)
        with statements(self.found) as counted:
            began = time.monotonic()
            time.sleep(secs)
            passed = time.monotonic() - began
        cpu = _cpu(tree) - before
        queued, unacked = self.queued()
        database = Database(str(self.settings.database_url))
        plan = idle.plan(database)
        connections = self._connections() - 1  # the one that has just asked for the plan
        database.dispose()
        return Idle(
            processes=len(tree),
            connections=connections,
            queued=queued,
            unacked=unacked,
            statements_s=counted.all / passed,
            cpu_ms_s=cpu * 1000 / passed,
            sweep_buffers=plan.buffers,
            sweep_ms=plan.milliseconds,
        )

    def _connections(self) -> int:
        name = str(self.settings.database_url).rpartition("/")[2]
        with self.found.connect() as server:
            row = server.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = %s", [name]).fetchone()
        assert row is not None
        return int(row[0])

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Bytes of each table, and of its indexes."""
        return {str(name): (int(str(table)), int(str(indexes))) for name, table, indexes in self.ask(_SIZES)}

    def decide(self, client: Client, run_ids: Sequence[str]) -> list[float]:
        """Milliseconds from before each decision until the tool that it lets run has begun, one after the other."""
        took = []
        for run_id in run_ids:
            began = time.monotonic_ns()
            client.handle(run_id).decide({"call_0_0": Approve()})
            kind, run, at = self.notes.next(within=60)
            assert (kind, run) == ("begun", run_id)
            took.append((at - began) / 1e6)
        return took


def _cpu(tree: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in tree)


def _in_rabbitmq(server: RabbitMQ) -> tuple[int, int]:
    words = ["-q", "-n", f"agentq{server.port}@localhost", "list_queues", "messages_ready", "messages_unacknowledged"]
    shown = subprocess.run(
        ["/usr/lib/rabbitmq/bin/rabbitmqctl", *words, "--no-table-headers"],
        env=os.environ | dict(server.environment()),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    rows = [tuple(map(int, line.split())) for line in shown.splitlines() if line.strip()]
    return sum(row[0] for row in rows), sum(row[1] for row in rows)
