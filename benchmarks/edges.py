"""What a producer and a deploy see: how fast runs are enqueued, how soon a worker works, what an import costs."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from statistics import median

import psycopg

from agentq import Client
from agentq.storage import migrate
from agentq.storage.database import Database
from benchmarks.looper import NAME, make_agent
from benchmarks.modes import Mode
from benchmarks.notes import Notes
from benchmarks.place import Place, worker_environment
from benchmarks.results import Measured
from benchmarks.scripts import SCRIPTS
from benchmarks.subjects import Agentq, Pools, settings

ONE_BY_ONE, BULK = 400, 20_000
_TABLE = "CREATE TABLE run (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, agent text, message text)"
_INSERT = "INSERT INTO run (agent, message) VALUES (%s, %s) RETURNING id"
_IMPORT = """
import json, sys, time
began = time.perf_counter()
import agentq
secs = time.perf_counter() - began
from agentq import Agent, Client, tool
print(json.dumps({"secs": secs, "names": time.perf_counter() - began, "celery": "celery" in sys.modules}))
"""


def plain_inserts(place: Place, share: float) -> Measured:
    """The line of a producer: one INSERT and its commit, the id comes back."""
    with place.database(_TABLE) as url, psycopg.connect(url, autocommit=True) as connection:

        def insert(text: str) -> None:
            connection.execute(_INSERT, (NAME, text)).fetchone()

        return _one_by_one(insert, share)


def enqueues(place: Place, share: float) -> Measured:
    """One run after another, its message to the broker included; no worker takes any."""
    with _producer(place) as client:
        return _one_by_one(partial(client.enqueue, NAME), share)


def bulk(place: Place, share: float) -> Measured:
    """Many runs in one call."""
    with _producer(place) as client:
        texts = [f"run-{number}" for number in range(round(BULK * share))]
        began = time.monotonic()
        client.enqueue_many(NAME, texts)
        return Measured({"per_sec": len(texts) / (time.monotonic() - began)})


def _one_by_one(enqueue: Callable[[str], object], share: float) -> Measured:
    took = []
    for number in range(max(50, round(ONE_BY_ONE * share))):
        began = time.monotonic()
        enqueue(f"run-{number}")
        took.append(time.monotonic() - began)
    return Measured({"per_sec": len(took) / sum(took), "p50": median(took) * 1000}, tuple(took))


@contextmanager
def _producer(place: Place) -> Iterator[Client]:
    """A client that has enqueued before: it is connected."""
    with place.database() as url:
        database = Database(url)
        migrate.upgrade(database)
        database.dispose()
        with Client(settings=settings(place, url), agents=[make_agent(SCRIPTS["loop"], "broker")]) as client:
            client.enqueue(NAME, "warm")
            yield client


def worker_start(mode: Mode, place: Place, _share: float) -> Measured:
    """Seconds from the command to the first model call and the first tool call of a run that waits for them."""
    with place.fresh_folder() as folder, closing(Notes(folder)) as notes:
        subject = Agentq(place, SCRIPTS["start"], folder, notes, pools=Pools(threads=16), mode=mode)
        with subject.prepared():
            subject.submit("run")
            began = time.monotonic_ns()
            subject.start()
            while notes.next(within=60)[0] != "completed":
                pass
        first = {call.kind: (call.at - began) / 1e9 for call in sorted(notes.calls(), key=lambda call: -call.at)}
    return Measured({"steps": first["model"], "tools": first["tool"]})


def imports(_place: Place, _share: float) -> Measured:
    """``import agentq`` in a fresh interpreter, then what every program of a user takes from it."""
    shown = subprocess.run(
        [sys.executable, "-c", _IMPORT], env=worker_environment(), check=True, capture_output=True, text=True
    ).stdout
    return Measured({key: float(value) for key, value in json.loads(shown).items()})
