"""Worker processes and what starts them again: as systemd or a container engine does, a second after they end."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from agentq.config import Settings
from tests.chaos.place import Place
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
AGENTS = Path(__file__).parent / "agents.py"
QUEUE = "agentq_chaos"
PAUSE_SECS = 1.0
# What systemd and Kubernetes give a service that is told to stop, more or less.
STOP_SECS = 30.0
LOOK_SECS = 0.1


def settings(place: Place, lease_secs: float | None = None) -> Settings:
    return Settings(
        database_url=place.server.url,
        broker_url=place.broker.url,
        agents=str(AGENTS),
        queue=QUEUE,
        home=place.folder / "home",
        lease_secs=Settings().lease_secs if lease_secs is None else lease_secs,
        # A run thinks most of its time: threads that wait cost nothing, and a backlog would hide what a crash costs.
        concurrency=100,
        tool_concurrency=6,
    )


class Slot:
    """A place for one worker: ``agentq worker --only steps`` or ``… tools``, in a process group of its own."""

    def __init__(self, kind: str, number: int, environment: dict[str, str], folder: Path) -> None:
        self.kind = kind
        self.log = folder / f"{kind}-{number}.log"
        self.starts = 0
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._due = 0.0
        self._kill_at = float("inf")
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The worker's process, None while there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def look(self) -> None:
        """Start what has ended, and kill what does not end."""
        with self._lock:
            if self.pid is not None:
                if time.monotonic() > self._kill_at:
                    self._signal_group(signal.SIGKILL)
                return
            if self._process is not None:
                # Its pool's processes end with it.
                self._signal_group(signal.SIGKILL)
                self._process, self._due = None, time.monotonic() + PAUSE_SECS
            if time.monotonic() >= self._due:
                self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "agentq", "worker", "--only", self.kind]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        self.starts += 1
        self._kill_at = float("inf")

    def send(self, number: signal.Signals) -> None:
        """To the whole group: worker and pool."""
        with self._lock:
            self._signal_group(number)

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """SIGTERM to the worker alone, and SIGKILL to all when that takes too long."""
        with self._lock:
            if self._process is not None:
                self._kill_at = time.monotonic() + STOP_SECS
                self._process.terminate()

    def children(self) -> list[int]:
        """The processes of the worker's pool."""
        try:
            return [child.pid for child in psutil.Process(self.pid).children()] if self.pid else []
        except psutil.Error:
            return []


class Fleet:
    """Two workers a pool, kept running by a thread until the end."""

    def __init__(self, place: Place, *, lease_secs: float | None = None) -> None:
        self.place = place
        self.settings = settings(place, lease_secs)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AGENTQ_")}
        environment |= self.settings.environment()
        environment |= {"AGENTQ_TEST_LOG": str(place.folder), "TMPDIR": str(place.folder)}
        self.slots = [
            Slot(kind, number, environment, place.folder) for kind in ("steps", "tools") for number in range(2)
        ]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def of(self, kind: str) -> list[Slot]:
        return [slot for slot in self.slots if slot.kind == kind]

    def __enter__(self) -> "Fleet":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        for slot in self.slots:
            slot.send(signal.SIGKILL)

    def _keep(self) -> None:
        while not self._end.wait(LOOK_SECS):
            for slot in self.slots:
                slot.look()

    def wait_until_ready(self) -> None:
        """Until every worker has said that it is there; some may have been killed before they could."""
        eventually(self._are_ready, within=90, what="all workers are ready")

    def _are_ready(self) -> bool:
        alive = {name for (name,) in self.place.server.ask("SELECT id FROM agentq.workers")}
        return all(any(name.endswith(f":{slot.pid}") for name in alive) for slot in self.slots)

    def starts(self) -> int:
        return sum(slot.starts for slot in self.slots)
