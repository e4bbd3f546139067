"""Real Celery workers on a real broker, started and killed by a test."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from agentq import Client
from agentq.config import Settings, load
from agentq.storage import queries
from agentq.storage.database import Database
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
AGENTS = Path(__file__).parent / "agents_under_test.py"
CELERY = [
    "--without-gossip",
    "--without-mingle",
    "--without-heartbeat",
    "--loglevel",
    "INFO",
    "--prefetch-multiplier",
    "1",
]


@dataclass
class Worker:
    """One worker process with its children, in a process group of its own."""

    kind: str
    process: "subprocess.Popen[bytes]"
    log: Path
    concurrency: int = 1
    queues: str | None = None

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """kill -9, children included: what a machine that goes down does."""
        if self.is_alive:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def terminate(self, *, within: float = 30) -> int:
        self.process.terminate()
        return self.process.wait(timeout=within)

    def text(self) -> str:
        return self.log.read_text(errors="replace")


@dataclass
class Fleet:
    """The workers of one test; ``lease_secs`` is short so that recovery is quick."""

    folder: Path
    database: Database
    broker_url: str
    queue: str
    lease_secs: float = 2.0
    stop_secs: float = 25.0
    app: str = "agentq_workers.main"
    agents: Path = AGENTS
    db_pool_size: int = 5
    # As the environment says: everything here holds with local steps, and by messages.
    local_steps: int = field(default_factory=lambda: load().local_steps)
    workers: list[Worker] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        return Settings(
            database_url=self.database.url,
            broker_url=self.broker_url,
            agents=str(self.agents),
            queue=self.queue,
            lease_secs=self.lease_secs,
            stop_secs=self.stop_secs,
            db_pool_size=self.db_pool_size,
            local_steps=self.local_steps,
        )

    @cached_property
    def client(self) -> Client:
        return Client(settings=self.settings)

    def start(self, kind: str, *, concurrency: int = 8, queues: str | None = None) -> Worker:
        """A steps worker (threads) or a tools worker (prefork), ready to work when this returns."""
        worker = self.spawn(kind, concurrency=concurrency, queues=queues)
        self.await_ready(worker)
        return worker

    def spawn(self, kind: str, *, concurrency: int = 8, queues: str | None = None) -> Worker:
        """The same, but it is still starting."""
        pool, default = ("threads", self.queue) if kind == "steps" else ("prefork", f"{self.queue}.tools")
        number = len(self.workers)
        log = self.folder / f"worker-{number}.log"
        command = [sys.executable, "-m", "celery", "-A", self.app, "worker", *CELERY]
        command += ["-P", pool, "-c", str(concurrency), "-Q", queues or default, "-n", f"{kind}{number}@{self.queue}"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AGENTQ_")}
        environment |= self.settings.environment() | {"AGENTQ_TEST_LOG": str(self.folder), "TMPDIR": str(self.folder)}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        worker = Worker(kind, process, log, concurrency, queues)
        self.workers.append(worker)
        return worker

    def await_ready(self, worker: Worker) -> None:
        eventually(lambda: self._is_ready(worker), within=40, what=f"{worker.kind} worker ready: {worker.log}")

    def _is_ready(self, worker: Worker) -> bool:
        if not worker.is_alive:
            raise AssertionError(f"the worker ended with {worker.process.returncode}:\n{worker.text()}")
        with self.database.autocommit() as connection:
            alive = {found.id for found in queries.workers(connection)}
        return any(found.endswith(f":{worker.process.pid}") for found in alive) and " ready." in worker.text()

    def both(self, *, concurrency: int = 8) -> tuple[Worker, Worker]:
        return self.start("steps", concurrency=concurrency), self.start("tools", concurrency=concurrency)

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
        if "client" in self.__dict__:
            self.client.close()

    def calls(self, kind: str) -> list[dict[str, Any]]:
        """What the agents' tools and models wrote down, of one kind."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if call["kind"] == kind]

    def began(self, count: int = 1) -> list[dict[str, Any]]:
        return eventually(lambda: len(found := self.calls("begin")) >= count and found, what=f"{count} calls begun")


def most_at_once(begins: list[dict[str, Any]], ends: list[dict[str, Any]]) -> int:
    """How many calls ran at the same moment, by their own clock."""
    changes = sorted([(call["at"], 1) for call in begins] + [(call["at"], -1) for call in ends])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def seconds_since(start: float) -> float:
    return time.monotonic() - start
