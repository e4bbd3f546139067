"""What the sweep's thread does now and then, beside the sweep."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest

from agentq import Agent, producer, retention
from agentq.agent import AgentSpec
from agentq.config import Settings
from agentq.providers.scripted import Scripted
from agentq.retention import Purged
from agentq.storage import outdated
from agentq.storage.database import Database
from agentq_workers import sweeper
from agentq_workers.runtime import Runtime
from agentq_workers.sweeper import Sweeper
from tests.engine.drain import Drain
from tests.waiting import eventually

DONE = Agent("done", model=Scripted(["done"]))


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEEN_SECS", "PURGE_SECS"):
        monkeypatch.setattr(sweeper, name, 0.01)
    monkeypatch.setattr(sweeper, "period_secs", lambda _: 0.02)


@contextmanager
def sweeping(database: Database, *agents: AgentSpec, **settings: Any) -> Iterator[Sweeper]:
    given = Settings(database_url=database.url, broker_url="redis://nowhere.invalid", **settings)
    runtime = Runtime(given, {agent.name: agent for agent in agents}, producer.make_app(given.broker_url, queue="q"))
    found = Sweeper(runtime, pool="threads", queues=["q"], children=set)
    found.start()
    try:
        yield found
    finally:
        found.stop()
        for purging in [thread for thread in threading.enumerate() if thread.name == "agentq-purge"]:
            purging.join(10)
        runtime.database.dispose()


def test_a_worker_deletes_what_has_been_kept_for_long_enough(database: Database) -> None:
    drain = Drain(database, DONE)
    for _ in range(2):
        drain.run(DONE)
    young, old = drain.client.runs()
    with database.autocommit() as connection:
        connection.execute(
            "update agentq.runs set created_at = now() - interval '8 days', finished_at = now() - interval '8 days'"
            " where id = %s",
            (old.id,),
        )
    with sweeping(database, DONE, keep_days=7):
        eventually(lambda: len(drain.client.runs()) == 1, within=10)
    assert [run.id for run in drain.client.runs()] == [young.id]


def test_a_purge_that_takes_long_is_not_joined_by_another(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ends, rounds = [], Event(), []

    def takes_long(*_: Any, **__: Any) -> Purged:
        begun.append(len(rounds))
        ends.wait(30)
        return Purged()

    monkeypatch.setattr(retention, "purge", takes_long)
    monkeypatch.setattr(sweeper.recovery, "let_in_all", rounds.append)
    with sweeping(database, DONE, keep_days=7):
        eventually(lambda: begun and len(rounds) > begun[0] + 5, within=10)
        at_once = len(begun)
        ends.set()
        assert at_once == 1
        eventually(lambda: len(begun) > 1, within=10)


def test_a_worker_that_is_leaving_wakes_no_runs_that_it_would_not_take(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (Agent("a", model=Scripted(["x"]), version=version, on_change="hold") for version in ("1", "2"))
    drain, rounds = Drain(database, old), []
    monkeypatch.setattr(sweeper.recovery, "let_in_all", rounds.append)
    with sweeping(database, old) as leaving:
        leaving.leave()
        handle = drain.enqueue(old)
        with database.autocommit() as connection:
            connection.execute("update agentq.runs set agent_version = '1'")
        Drain(database, new).do(drain.wake_ups.pop())
        assert handle.run().outdated_at is not None
        since = len(rounds)
        eventually(lambda: len(rounds) > since + 3, within=10)
        with database.autocommit() as connection:
            assert connection.execute("select sweep_at from agentq.runs").scalar() is None
            # Another one that has its version does.
            assert outdated.wake(connection, [old], is_new=False) == 1
