"""A run for later: a row with a due time, and nothing else, until then; by the database's clock."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from agentq import Agent, ConfigError, Handle, LimitExceededError
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Scripted
from agentq.storage.database import Database
from tests.engine.drain import Drain

TEST = Agent("test", model=Scripted(["done"]))


@pytest.fixture
def drain(database: Database) -> Drain:
    return Drain(database, TEST)


def now(database: Database) -> datetime:
    with database.autocommit() as connection:
        found: datetime = connection.execute("SELECT now()").scalar()
    return found


def later(drain: Drain, handle: Handle, seconds: float) -> None:
    """Let time pass for a run, with the time its limit counts from."""
    drain.age(seconds)
    shift = "{0} = {0} - make_interval(secs => %(secs)s)"
    with drain.database.autocommit() as connection:
        names = ("created_at", "start_at", "deadline_at")
        connection.execute(
            f"UPDATE agentq.runs SET {', '.join(map(shift.format, names))} WHERE id = %(id)s",
            {"secs": seconds, "id": handle.id},
        )


def test_a_delayed_run_is_not_announced_before_its_time_and_begins_then(drain: Drain) -> None:
    handle = drain.enqueue(TEST, delay_secs=600)
    assert (drain.sweep(), drain.sent) == (0, [])
    later(drain, handle, 590)
    assert (drain.sweep(), drain.sent, handle.status()) == (0, [], "queued")
    later(drain, handle, 11)
    assert drain.sweep() == 1
    drain.work()
    assert handle.status() == "completed"


def test_a_message_that_comes_early_begins_nothing(drain: Drain) -> None:
    other = drain.enqueue(TEST)
    handle = drain.enqueue(TEST, delay_secs=600)
    (wake_up,) = drain.wake_ups
    drain.engine.run_step(handle.id, 0)
    assert (handle.status(), wake_up) == ("queued", drain.sent[0])
    drain.work()
    assert (other.status(), handle.status()) == ("completed", "queued")


def test_a_run_is_due_at_the_moment_that_was_given_whatever_its_time_zone(drain: Drain, database: Database) -> None:
    moment = (now(database) + timedelta(hours=2)).astimezone(timezone(timedelta(hours=-7)))
    handle = drain.enqueue(TEST, due_at=moment)
    run = handle.run()
    assert run.due_at == run.start_at == moment
    later(drain, handle, 7201)
    drain.sweep()
    drain.work()
    assert handle.status() == "completed"


@pytest.mark.parametrize("given", [{"due_at": datetime(2001, 1, 1, tzinfo=UTC)}, {"delay_secs": 0}])
def test_a_time_that_is_over_means_now(drain: Drain, given: dict[str, Any]) -> None:
    handle = drain.enqueue(TEST, **given)
    drain.sweep()
    drain.work()
    assert (handle.status(), handle.run().start_at) == ("completed", None)


def test_a_run_that_is_not_due_yet_can_be_cancelled(drain: Drain) -> None:
    handle = drain.enqueue(TEST, delay_secs=600)
    assert handle.cancel() == "cancelled"
    later(drain, handle, 700)
    assert (drain.sweep(), drain.sent) == (0, [])


def test_the_time_limit_of_a_run_begins_with_its_time(database: Database) -> None:
    heard: list[float] = []

    def reply(request: ModelRequest) -> str:
        heard.append(request.timeout_secs)
        return "done"

    test = Agent("test", model=Scripted([reply]), limits={"run_secs": 60})
    drain = Drain(database, test)
    handle = drain.enqueue(test, delay_secs=600)
    later(drain, handle, 640)
    drain.sweep()
    drain.work()
    assert handle.status() == "completed"
    assert 15 <= heard[0] <= 20


def test_a_run_whose_time_limit_is_over_after_its_time_fails(database: Database) -> None:
    test = Agent("test", model=Scripted(["done"]), limits={"run_secs": 60})
    drain = Drain(database, test)
    handle = drain.enqueue(test, delay_secs=600)
    later(drain, handle, 650)
    assert handle.status() == "queued"
    later(drain, handle, 20)
    drain.sweep()
    with pytest.raises(LimitExceededError, match="limit of 60 seconds"):
        handle.result()


def test_many_runs_for_later_are_announced_then(drain: Drain) -> None:
    handles = drain.client.enqueue_many("test", ["a", "b", "c"], delay_secs=60, priority="high")
    assert (drain.sweep(), drain.sent) == (0, [])
    drain.age(61)
    drain.sweep()
    drain.work()
    assert {handle.status() for handle in handles} == {"completed"}


def test_the_same_key_gives_the_run_that_is_not_due_yet(drain: Drain) -> None:
    first = drain.enqueue(TEST, delay_secs=600, idempotency_key="k")
    second = drain.enqueue(TEST, idempotency_key="k")
    assert (second.id, first.is_new, second.is_new, drain.sent) == (first.id, True, False, [])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"due_at": datetime(2030, 1, 1)}, "needs a time zone"),
        ({"due_at": "2030-01-01"}, "a datetime with a time zone"),
        ({"due_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))}, "out of range"),
        ({"delay_secs": -1}, "between 0 and"),
        ({"delay_secs": float("nan")}, "number of seconds"),
        ({"delay_secs": float("inf")}, "number of seconds"),
        ({"delay_secs": 1e10}, "between 0 and"),
        ({"delay_secs": True}, "number of seconds"),
        ({"delay_secs": "5"}, "number of seconds"),
        ({"delay_secs": timedelta(seconds=5)}, "total_seconds"),
        ({"delay_secs": 5, "due_at": datetime(2030, 1, 1, tzinfo=UTC)}, "not both"),
        ({"priority": "urgent"}, "one of high, normal, low"),
        ({"priority": 1}, "one of high, normal, low"),
        ({"concurrency_key": "k"}, "go together"),
        ({"concurrency_limit": 1}, "go together"),
        ({"concurrency_key": "k", "concurrency_limit": 0}, "from 1 to"),
        ({"concurrency_key": "k", "concurrency_limit": True}, "from 1 to"),
        ({"concurrency_key": "", "concurrency_limit": 1}, "1 to 200 characters"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_stored(drain: Drain, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        drain.enqueue(TEST, **given)
    with pytest.raises(ConfigError, match=says):
        drain.client.enqueue_many("test", ["a"], **given)
    assert drain.client.runs() == []
