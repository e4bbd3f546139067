"""A worker goes quickly when it is told to, comes back quickly after an outage, and its log is about the work."""

import os
import subprocess
import sys
import time

import kombu.utils.functional
import pytest

from agentq_workers.connection import Connection
from tests.workers.fleet import Fleet, seconds_since


def test_an_idle_worker_stops_within_seconds(fleet: Fleet) -> None:
    for worker in fleet.both(concurrency=2):
        started = time.monotonic()
        assert worker.terminate() == 0
        # Without us it is up to ten: the event loop sleeps until its next timer.
        assert seconds_since(started) < 5


def test_a_lost_broker_is_looked_for_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Enough(Exception):
        pass

    def note(_error: Exception, interval: float) -> None:
        waits.append(interval)
        if len(waits) == 6:
            raise Enough

    monkeypatch.setattr(kombu.utils.functional, "sleep", lambda _: None)
    with pytest.raises(Enough):
        Connection("redis://127.0.0.1:1").ensure_connection(note)
    assert waits == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_a_worker_without_agents_says_so() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AGENTQ_")}
    away = {"AGENTQ_DATABASE_URL": "postgresql://u@127.0.0.1:1/x", "AGENTQ_BROKER_URL": "redis://127.0.0.1:1"}
    command = [sys.executable, "-m", "celery", "-A", "agentq_workers.main", "worker", "-P", "threads"]
    done = subprocess.run(command, env=clean | away, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "this worker has no agents" in done.stderr
    # Nor does it say that containers should not run as root.
    assert "SecurityWarning" not in done.stderr
