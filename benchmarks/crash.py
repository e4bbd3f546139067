"""kill -9 of half of the workers in the middle of many runs, and nobody starts them again."""

import time
from contextlib import closing
from functools import partial

from psycopg import connect

from benchmarks.measure import twice
from benchmarks.modes import Mode
from benchmarks.notes import Notes
from benchmarks.place import Place
from benchmarks.results import Measured
from benchmarks.scripts import SCRIPTS
from benchmarks.subjects import Agentq, Pools
from tests.waiting import eventually

RUNS = 50
# Two of each kind: one of each is killed.
POOLS = Pools(steps=2, threads=64, tools=2, children=4)


def recovery(mode: Mode, place: Place, share: float) -> Measured:
    """Seconds from the kill to the end of the last run; what was called twice."""
    runs = max(4, round(RUNS * share))
    with place.fresh_folder() as folder, closing(Notes(folder)) as notes:
        subject = Agentq(place, SCRIPTS["crash"], folder, notes, pools=POOLS, mode=mode)
        with subject.running():
            began = time.monotonic()
            subject.submit_all([f"run-{number}" for number in range(runs)])
            half = runs * subject.script.model_calls // 2
            eventually(partial(_has_made, notes, half), within=60, what="half of the model calls")
            killed = time.monotonic()
            for kind in ("steps", "tools"):
                next(process for process in subject.processes if process.kind == kind).kill()
            url = str(subject.settings.database_url)
            eventually(lambda: _open_runs(url) == 0, within=120, what="every run has ended")
            ended = time.monotonic()
            completed, interrupted = _outcome(url)
        calls = list(notes.calls())
    return Measured(
        {
            "recovery": ended - killed,
            "to_kill": killed - began,
            "lost": runs - completed,
            "interrupted": interrupted,
            "twice_model": twice(calls, "model"),
            "twice_unsafe": twice(calls, "tool"),
        }
    )


def _has_made(notes: Notes, count: int) -> bool:
    return sum(call.kind == "model" for call in notes.calls()) >= count


def _open_runs(url: str) -> int:
    return _count(url, "SELECT count(*) FROM agentq.runs WHERE finished_at IS NULL")


def _outcome(url: str) -> tuple[int, int]:
    completed = _count(url, "SELECT count(*) FROM agentq.runs WHERE status = 'completed'")
    return completed, _count(
        url, "SELECT count(*) FROM agentq.messages WHERE CAST(payload AS json) #>> '{result,code}' = 'interrupted'"
    )


def _count(url: str, query: str) -> int:
    with connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])
