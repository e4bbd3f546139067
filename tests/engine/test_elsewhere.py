"""A worker that does not have the agent of a run leaves it to those that have it: at once, then soon, then seldom."""

import logging

import pytest

from agentq import Agent, Handle, tool
from agentq.elsewhere import AT_ONCE, NOBODY_SECS
from agentq.providers.scripted import Call, Scripted
from agentq.storage import leases
from agentq.storage.database import Database
from agentq.wire import CallMessage
from tests.engine.drain import Drain


@tool
def act(n: int) -> str:
    """Act."""
    return f"acted {n}"


def agent(name: str = "test") -> Agent:
    batch = [Call("act", {"n": n}) for n in range(3)]
    return Agent(name, model=Scripted([batch, "done"]), tools=[act])


def worker(database: Database, name: str, agents: list[str], *queues: str) -> None:
    with database.autocommit() as connection:
        leases.seen(connection, name, pool="thread", queues=queues or ("agentq", "agentq.tools"), agents=agents)


@pytest.fixture
def drain(database: Database) -> Drain:
    return Drain(database, agent())


@pytest.fixture
def stranger(database: Database) -> Drain:
    worker(database, "drain", ["other"])
    return Drain(database, agent("other"))


def due_in(database: Database, handle: Handle) -> float:
    with database.autocommit() as connection:
        due = "SELECT extract(epoch FROM due_at - now()) FROM agentq.runs WHERE id = %s"
        return float(connection.execute(due, [handle.id]).scalar())


def records(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_a_run_for_others_is_announced_again_at_once_and_soon_when_they_are_busy(
    drain: Drain, stranger: Drain, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    worker(database, "right", ["test"])
    handle = drain.enqueue(agent())
    wake_up = drain.wake_ups.pop()
    with caplog.at_level(logging.INFO):
        for _ in range(AT_ONCE):
            stranger.do(wake_up)
            assert stranger.wake_ups.pop() == wake_up
        stranger.do(wake_up)
    assert stranger.wake_ups == []
    assert 0 < due_in(database, handle) < 2
    assert records(caplog, logging.ERROR) == []
    assert len([line for line in records(caplog, logging.INFO) if "left to workers" in line]) == 1
    drain.age(5)
    drain.sweep()
    drain.work()
    assert handle.result().text == "done"
    assert handle.run().attempt <= 1


def test_a_run_that_nobody_alive_can_do_waits_for_seconds_and_is_an_error_once_however_many_there_are(
    drain: Drain, stranger: Drain, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    # It has the agent, but takes no steps.
    worker(database, "tools", ["test"], "agentq.tools")
    handles = [drain.enqueue(agent()) for _ in range(3)]
    for wake_up in drain.wake_ups:
        stranger.do(wake_up)
    assert stranger.wake_ups == []
    assert all(NOBODY_SECS - 2 < due_in(database, handle) <= NOBODY_SECS for handle in handles)
    (error,) = records(caplog, logging.ERROR)
    assert "'test'" in error
    assert "other (AGENTQ_AGENTS)" in error
    # As soon as one comes: nobody remembers that there was none.
    worker(database, "right", ["test"])
    drain.age(10)
    drain.wake_ups.clear()
    drain.sweep()
    stranger.do(drain.wake_ups[0])
    assert stranger.wake_ups == drain.wake_ups[:1]


def test_a_call_of_a_batch_for_others_is_announced_again_at_once_and_soon_when_they_are_busy(
    drain: Drain, stranger: Drain, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    worker(database, "right", ["test"])
    handle = drain.enqueue(agent())
    while not isinstance(drain.wake_ups[0], CallMessage):
        drain.do(drain.wake_ups.pop(0))
    wake_up = drain.wake_ups.pop(0)
    for _ in range(AT_ONCE):
        stranger.do(wake_up)
        assert stranger.wake_ups.pop() == wake_up
    stranger.do(wake_up)
    assert stranger.wake_ups == []
    drain.work()
    drain.age(2)
    drain.sweep()
    drain.work()
    assert handle.result().text == "done"
    assert records(caplog, logging.ERROR) == []


def test_why_names_the_worker_that_took_a_run_without_having_its_agent(
    drain: Drain, stranger: Drain, database: Database
) -> None:
    worker(database, "right", ["test"])
    handle = drain.enqueue(agent())
    for _ in range(AT_ONCE + 1):
        stranger.do(drain.wake_ups[0])
    (wait,) = handle.why().waiting_for
    assert wait.kind == "pickup"
    assert "worker drain, which does not have agent 'test', gave it back" in wait.what
    assert "of 1 on its queue that have it" in wait.moves
    drain.age(20)
    drain.sweep()
    while not isinstance(drain.wake_ups[0], CallMessage):
        drain.do(drain.wake_ups.pop(0))
    stranger.do(drain.wake_ups[0])
    (call, *others) = handle.why().waiting_for
    assert call.kind == "pickup"
    assert "worker drain, which does not have agent 'test', gave it back" in call.what
    assert not any("gave it back" in other.what for other in others)
