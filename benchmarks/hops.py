"""The limit line of Celery: each task is a step of a run and sends the next; with or without a commit."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from queue import LifoQueue
from typing import Any

import psycopg
from celery import Celery
from celery.signals import worker_ready
from psycopg.types.json import Jsonb

from benchmarks import notes, scripts

BROKER, DATABASE, QUEUES = "BENCH_BROKER", "BENCH_DATABASE", "BENCH_QUEUES"
SCHEMA = "CREATE TABLE step (run text, number int, result jsonb NOT NULL, PRIMARY KEY (run, number))"

app = Celery("hops", broker=os.environ.get(BROKER))
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
worker_ready.connect(lambda **_: notes.tell("ready", str(os.getpid())), weak=False)
# The connections of this process, opened as they are needed.
_pool: "LifoQueue[psycopg.Connection[tuple[Any, ...]] | None]" = LifoQueue()
for _ in range(16):
    _pool.put(None)


@app.task(name="hop")
def hop(run: str, number: int) -> None:
    """One step: what the script has for it, a commit if there is a database, and the next message."""
    script = scripts.current()
    result = _step(script, run, number)
    if os.environ.get(DATABASE):
        with _connection() as connection:
            connection.execute("INSERT INTO step VALUES (%s, %s, %s)", (run, number, Jsonb(result)))
    if number + 1 < script.steps:
        send(run, number + 1, os.environ[QUEUES].split(","))
    else:
        notes.tell("completed", run)


def send(run: str, number: int, queues: list[str]) -> None:
    """Even steps are the model's, odd ones the tool's: each goes where agentq's would go."""
    hop.apply_async((run, number), queue=queues[number % len(queues)])


def _step(script: scripts.Script, run: str, number: int) -> dict[str, Any]:
    turn, is_tool = divmod(number, 2)
    return scripts.call_tool(script, run, turn, 0) if is_tool else scripts.ask_model(script, run, turn)


@contextmanager
def _connection() -> "Iterator[psycopg.Connection[tuple[Any, ...]]]":
    connection = _pool.get() or psycopg.connect(os.environ[DATABASE], autocommit=True)
    try:
        yield connection
    finally:
        _pool.put(connection)
