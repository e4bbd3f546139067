"""Workers as an operator starts them, ``agentq worker``, two of a kind, and the broker's own word on what it holds."""

import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field

import kombu
import psycopg
import redis

from agentq.config import Settings
from tests.scenarios.library import PLACES
from tests.waiting import eventually
from tests.workers.fleet import ROOT, Fleet, Worker

KINDS = ("steps", "tools")
EACH = 2


@dataclass
class Crew(Fleet):
    """What a scenario runs on; who is killed is started again at once, as by systemd."""

    starting: list[Worker] = field(default_factory=list)
    # The killer replaces whom it has killed, a scenario whom it has.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def settings(self) -> Settings:
        return super().settings.model_copy(update={"agents": ",".join(PLACES), "concurrency": 6, "tool_concurrency": 3})

    def spawn(self, kind: str, *, concurrency: int = 8, queues: str | None = None) -> Worker:
        log = self.folder / f"worker-{len(self.workers)}.log"
        command = [sys.executable, "-m", "agentq", "worker", "--only", kind]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        worker = Worker(kind, process, log)
        self.workers.append(worker)
        return worker

    def environment(self) -> dict[str, str]:
        """Of a worker, and of a command that an operator gives."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("AGENTQ_")}
        packages = [str(ROOT), str(ROOT / "workers")]
        kept |= self.settings.environment() | {"PYTHONPATH": os.pathsep.join(packages)}
        return kept | {"AGENTQ_TEST_LOG": str(self.folder), "TMPDIR": str(self.folder)}

    def man(self) -> None:
        """Two workers of each kind, ready to work."""
        self.replace()
        while self.starting:
            worker = self.starting.pop()
            # One that was killed since has its own successor among them.
            if worker.is_alive:
                self.await_ready(worker)

    def replace(self) -> None:
        """Start one for each that is dead; not waited for."""
        with self._lock:
            for kind in KINDS:
                there = sum(worker.kind == kind and worker.is_alive for worker in self.workers)
                self.starting += [self.spawn(kind) for _ in range(EACH - there)]

    def kill_all(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.starting.clear()

    def of(self, group: int) -> Worker | None:
        """The worker whose process group this is, if it lives."""
        return next((each for each in self.workers if each.process.pid == group and each.is_alive), None)

    def connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        """To look at rows beside the public API; the audit and the killer do."""
        return psycopg.connect(self.database.url, autocommit=True)

    def queued(self) -> dict[str, int]:
        """Messages that the broker has for somebody, by queue."""
        if self.broker_url.startswith("redis"):
            with redis.Redis.from_url(self.broker_url) as client:
                keys = [key.decode() for key in client.scan_iter(f"{self.queue}*")]
                return {key: found for key in keys if client.type(key) == b"list" and (found := client.llen(key))}
        with kombu.Connection(self.broker_url) as connection, connection.channel() as channel:
            names = (self.queue, f"{self.queue}.tools")
            counts = {name: channel.queue_declare(name, passive=True).message_count for name in names}  # type: ignore[attr-defined]
        return {name: count for name, count in counts.items() if count}

    def await_nothing_queued(self, *, within: float = 20.0) -> None:
        eventually(lambda: not self.queued(), within=within, what="no message is left on the broker")
