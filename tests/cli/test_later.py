"""Runs for later, by priority and with a concurrency key, from the command line, and what it says of them."""

import pytest

from agentq.storage.database import Database
from tests.cli.program import Program, one_line
from tests.engine import situations
from tests.engine.situations import Stage


@pytest.fixture
def stage(database: Database) -> Stage:
    return Stage(database)


def enqueue(installation: Program, *words: str) -> str:
    done = installation("run", "plain", "hi", "--no-wait", *words)
    assert done.code == 0, done.err
    return done.out.strip()


def test_what_a_run_is_given_is_stored_and_shown(installation: Program) -> None:
    run_id = enqueue(installation, "--delay", "3600", "--priority", "high", "--key", "mail-1", "--tag", "a=b")
    assert enqueue(installation, "--key", "mail-1") == run_id
    out = installation("runs", "show", run_id).out
    assert "due at    20" in out
    assert "priority  high" in out
    listed = installation("runs", "ls", "--tag", "a=b").out
    assert "due at 20" in listed
    assert "(due at 20" in installation("why", run_id).out
    assert "is cancelled" in installation("runs", "cancel", run_id).out
    assert "due at" not in installation("runs", "ls").out


def test_a_moment_with_its_zone_is_taken_and_one_without_refused(installation: Program) -> None:
    run_id = enqueue(installation, "--due-at", "2099-03-01T09:00+01:00")
    assert installation("runs", "show", run_id, "--json").json["start_at"].startswith("2099-03-01T08:00")
    assert "needs a time zone" in one_line(installation("run", "plain", "hi", "--due-at", "2099-03-01T09:00"), 2)
    assert "is no time" in installation("run", "plain", "hi", "--due-at", "tomorrow").err


def test_a_run_in_the_line_of_its_key_says_so(installation: Program) -> None:
    place = ("--concurrency-key", "tenant-7", "--concurrency-limit", "1")
    first, second = enqueue(installation, *place), enqueue(installation, *place)
    assert "key       tenant-7, 1 at a time, at work" in installation("runs", "show", first).out
    assert "key       tenant-7, 1 at a time, in line" in installation("runs", "show", second).out
    assert "in line of tenant-7" in installation("runs", "ls").out
    assert "waits for its turn of key 'tenant-7' (1 at work), since 20" in installation("why", second).out
    doctor = installation("doctor", "--stuck")
    assert "OK    in line     1 run in the line of 1 concurrency key" in doctor.out
    assert doctor.code == 0


def test_the_doctor_says_when_the_first_of_those_for_later_is_due(installation: Program, stage: Stage) -> None:
    situations.for_later(stage)
    assert "OK    later       1 run for later, the first due at 20" in installation("doctor", "--stuck").out
    waiting = installation("doctor", "--stuck", "--json").json["waiting"]
    assert (waiting["later"], waiting["in_line"]) == (1, 0)
