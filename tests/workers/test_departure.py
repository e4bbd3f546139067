"""How workers and their processes go: what they have in hand is finished, or given back; nobody waits for a lease."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.waiting import eventually
from tests.workers.fleet import Fleet, Worker, seconds_since
from tests.workers.test_kills import codes

pytestmark = pytest.mark.crash

LEASE_SECS = 30.0


@pytest.fixture
def patient_fleet(redis_fleet: Fleet) -> Fleet:
    """Leases so long that nothing here can be done by waiting for one."""
    redis_fleet.lease_secs = LEASE_SECS
    return redis_fleet


def group(worker: Worker, number: signal.Signals) -> None:
    os.killpg(worker.process.pid, number)


def exits(worker: Worker) -> int:
    return worker.process.wait(timeout=20)


@pytest.mark.parametrize(("agent", "code"), [("slow_safe_tool", None), ("slow_tool", "interrupted")])
def test_a_killed_process_of_a_pool_is_noticed_at_once(patient_fleet: Fleet, agent: str, code: str | None) -> None:
    patient_fleet.both(concurrency=2)
    handle = patient_fleet.client.enqueue(agent, "go")
    os.kill(patient_fleet.began()[0]["pid"], signal.SIGKILL)
    since = time.monotonic()
    assert handle.wait(20).text == "done"
    assert seconds_since(since) < LEASE_SECS / 2
    assert codes(handle) == [code]


@pytest.mark.long
def test_the_lanes_of_a_killed_process_go_on_at_once(patient_fleet: Fleet) -> None:
    patient_fleet.both(concurrency=4)
    handle = patient_fleet.client.enqueue("slow_batch", "go")
    begun = patient_fleet.began(3)
    os.kill(next(call["pid"] for call in begun if call["n"] == 1), signal.SIGKILL)
    again = eventually(lambda: [call for call in patient_fleet.calls("begin") if call.get("attempt") == 2], within=15)
    assert [call["n"] for call in again] == [1]
    assert handle.wait(30).text == "done"
    assert codes(handle) == [None, None, None]


@pytest.mark.parametrize("to", ["the process", "the whole group"])
def test_a_tool_finishes_when_its_process_is_told_to_end(patient_fleet: Fleet, to: str) -> None:
    patient_fleet.start("steps")
    tools = patient_fleet.start("tools", concurrency=2)
    handle = patient_fleet.client.enqueue("short_tool", "go")
    pid = patient_fleet.began()[0]["pid"]
    if to == "the process":
        os.kill(pid, signal.SIGTERM)
    else:
        group(tools, signal.SIGTERM)
        assert exits(tools) == 0
    assert handle.wait(20).text == "done"
    assert codes(handle) == [None]
    assert len(patient_fleet.calls("end")) == 1
    # A process that was told to end has ended.
    eventually(lambda: not os.path.exists(f"/proc/{pid}") or to == "the whole group", within=20)


def sigterm(worker: Worker) -> None:
    worker.process.terminate()


def sigterm_to_all(worker: Worker) -> None:
    group(worker, signal.SIGTERM)


def sigquit(worker: Worker) -> None:
    worker.process.send_signal(signal.SIGQUIT)


@pytest.mark.parametrize("stop", [sigterm, sigterm_to_all, sigquit])
@pytest.mark.parametrize(
    ("agent", "kind", "code"),
    [("slow_safe_tool", "tools", None), ("slow_tool", "tools", "interrupted"), ("slow_model", "steps", "none")],
)
def test_what_a_worker_cannot_finish_in_time_is_given_back_at_once(
    patient_fleet: Fleet, agent: str, kind: str, code: str | None, stop: Callable[[Worker], None]
) -> None:
    patient_fleet.stop_secs = 0.5
    first = patient_fleet.start(kind)
    for other in ("steps", "tools"):
        if other != kind:
            patient_fleet.start(other)
    handle = patient_fleet.client.enqueue(agent, "go")
    patient_fleet.began()
    patient_fleet.start(kind)
    since = time.monotonic()
    stop(first)
    assert exits(first) == 0
    assert handle.wait(20).text == "done"
    assert seconds_since(since) < LEASE_SECS / 2
    assert codes(handle) == ([] if code == "none" else [code])
    assert len(patient_fleet.calls("begin")) == (1 if code == "interrupted" else 2)


@pytest.mark.long
def test_workers_that_are_replaced_one_after_the_other_under_load_fail_no_run_and_keep_none_waiting(
    patient_fleet: Fleet,
) -> None:
    fleet = patient_fleet
    workers = [*fleet.both(concurrency=4), *fleet.both(concurrency=4)]
    handles = [fleet.client.enqueue(agent, "go") for agent in ["loop", "quick", "fan"] * 6]
    started = time.monotonic()
    for old in workers:
        kind = "steps" if old.kind == "steps" else "tools"
        new = fleet.start(kind, concurrency=4)
        assert new.process.poll() is None
        assert old.terminate() == 0
        handles += [fleet.client.enqueue(agent, "go") for agent in ("loop", "quick")]
    for handle in handles:
        assert handle.wait(60).text == "done"
        assert set(codes(handle)) == {None}
        assert "step.recovered" not in [event.type for event in handle.events(follow=False)]
    keys = [call["key"] for call in fleet.calls("begin")]
    assert len(keys) == len(set(keys))
    longest = max((handle.run().finished_at - handle.run().created_at).total_seconds() for handle in handles)  # type: ignore[operator]
    assert longest < max(LEASE_SECS, seconds_since(started))


def test_a_lane_takes_no_further_call_in_a_worker_that_was_told_to_stop(redis_fleet: Fleet) -> None:
    redis_fleet.start("steps")
    leaving = redis_fleet.start("tools", concurrency=1)
    handle = redis_fleet.client.enqueue("fan", "go")
    redis_fleet.began(1)
    assert leaving.terminate() == 0
    # The call in hand, and what had been claimed or fetched when the word came.
    begun = len(redis_fleet.calls("begin"))
    assert begun <= 4
    redis_fleet.start("tools", concurrency=4)
    assert handle.wait(40).text == "done"
    assert codes(handle) == [None] * 32
    assert len(redis_fleet.calls("begin")) == 32
