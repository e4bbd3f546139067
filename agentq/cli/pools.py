"""The processes of a worker: a Celery worker with threads for steps and one with processes for tools."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Literal

from agentq.config import Settings
from agentq_workers.lifeline import VARIABLE

# A process that ran this long is not failing at its start: its next failure counts as the first.
STEADY_SECS = 60.0
MAX_PAUSE_SECS = 30.0

Kind = Literal["steps", "tools"]


@dataclass(frozen=True)
class Pool:
    """One Celery worker: what it does, where its messages come from, how many at once."""

    kind: Kind
    queues: tuple[str, ...]
    concurrency: int

    def command(self, node: str, settings: Settings) -> list[str]:
        """The command line of this pool; what is secret goes by the environment."""
        celery = [sys.executable, "-m", "celery", "--quiet", "--app", "agentq_workers.main", "worker"]
        options = {
            "--pool": "threads" if self.kind == "steps" else "prefork",
            "--concurrency": str(self.concurrency),
            "--queues": ",".join(self.queues),
            "--hostname": f"{self.kind}-{node}@%h",
            "--prefetch-multiplier": "1",
            "--loglevel": settings.log_level,
        }
        without = [f"--without-{what}" for what in ("gossip", "mingle", "heartbeat")]
        return celery + [word for option in options.items() for word in option] + without


class Lifeline:
    """A pipe that nobody writes to: it ends with this process, however that ends, and its children see that."""

    def __init__(self) -> None:
        self.read, self._write = os.pipe()

    def close(self) -> None:
        os.close(self.read)
        os.close(self._write)


class Child:
    """One pool's process and its pool's, in a process group of their own; started again when it dies."""

    def __init__(
        self,
        pool: Pool,
        node: str,
        settings: Settings,
        lifeline: Lifeline,
        *,
        output: IO[bytes] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.pool = pool
        self._command = pool.command(node, settings)
        self._environment = environment(settings) | {VARIABLE: str(lifeline.read)} | dict(variables or {})
        self._lifeline = lifeline
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._failures = 0

    def start(self) -> None:
        # A group of its own: Ctrl-C at the terminal is for the supervisor, who tells its children once.
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=(self._lifeline.read,),
            process_group=0,
        )
        self._started = time.monotonic()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def bury(self) -> tuple[int, float] | None:
        """After its death, once: the exit code and how long to wait before the next start; None while it lives."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self.kill()
        self._process = None
        self._failures = 1 if time.monotonic() - self._started > STEADY_SECS else self._failures + 1
        return code, min(2.0 ** (self._failures - 1), MAX_PAUSE_SECS)

    def signal(self, number: signal.Signals) -> None:
        """Tell the Celery process, which tells its pool."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9 of the whole group: nothing is told, nothing is saved."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int | None:
        return self._process.wait(timeout) if self._process is not None else None


def environment(settings: Settings) -> dict[str, str]:
    """The variables of a child: ours, with every setting as it is here."""
    return dict(os.environ) | settings.environment()
