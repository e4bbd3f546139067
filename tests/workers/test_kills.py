"""kill -9 of real workers in the middle of a step: every run finishes, nobody does anything."""

import time

import pytest

from agentq import Handle, ToolMessage
from agentq.config import Settings
from tests.waiting import eventually
from tests.workers.fleet import Fleet, seconds_since

pytestmark = pytest.mark.crash

# A worker's own lease in these tests is 2 s, and the sweep looks each second.
RECOVERED_SECS = 20


def codes(handle: Handle) -> list[str | None]:
    return [message.result.code for message in handle.messages() if isinstance(message, ToolMessage)]


def recovered(handle: Handle, since: float) -> None:
    eventually(lambda: handle.status() == "completed", within=RECOVERED_SECS, what=f"{handle.run()}")
    assert seconds_since(since) < RECOVERED_SECS


def test_a_killed_model_call_is_made_again_by_the_other_worker(redis_fleet: Fleet) -> None:
    first = redis_fleet.start("steps")
    handle = redis_fleet.client.enqueue("slow_model", "go")
    redis_fleet.began()
    redis_fleet.start("steps")
    since = time.monotonic()
    first.kill()
    recovered(handle, since)
    assert handle.result().text == "done"
    assert len(redis_fleet.calls("begin")) == 2
    assert "step.recovered" in [event.type for event in handle.events(follow=False)]


def test_with_the_default_lease_a_killed_step_is_done_by_another_worker_within_twenty_seconds(
    redis_fleet: Fleet,
) -> None:
    redis_fleet.lease_secs = Settings().lease_secs
    first = redis_fleet.start("steps")
    handle = redis_fleet.client.enqueue("slow_model", "go")
    redis_fleet.began()
    redis_fleet.start("steps")
    since = time.monotonic()
    first.kill()
    recovered(handle, since)


def test_a_killed_unsafe_tool_is_reported_as_interrupted_and_not_run_again(redis_fleet: Fleet) -> None:
    redis_fleet.start("steps")
    tools = redis_fleet.start("tools")
    handle = redis_fleet.client.enqueue("slow_tool", "go")
    redis_fleet.began()
    since = time.monotonic()
    tools.kill()
    recovered(handle, since)
    assert codes(handle) == ["interrupted"]
    assert len(redis_fleet.calls("begin")) == 1


def test_a_killed_idempotent_tool_runs_again_with_the_same_key(redis_fleet: Fleet) -> None:
    redis_fleet.start("steps")
    tools = redis_fleet.start("tools")
    handle = redis_fleet.client.enqueue("slow_safe_tool", "go")
    redis_fleet.began()
    redis_fleet.start("tools")
    since = time.monotonic()
    tools.kill()
    recovered(handle, since)
    assert codes(handle) == [None]
    begins = redis_fleet.calls("begin")
    assert [call["attempt"] for call in begins] == [1, 2]
    assert len({call["key"] for call in begins}) == 1


def test_a_killed_batch_keeps_the_result_that_was_saved_and_repeats_only_the_rest(redis_fleet: Fleet) -> None:
    redis_fleet.start("steps")
    tools = redis_fleet.start("tools")
    handle = redis_fleet.client.enqueue("slow_batch", "go")
    eventually(lambda: len([event for event in handle.events(follow=False) if event.type == "call"]) == 1)
    redis_fleet.began(3)
    redis_fleet.start("tools")
    since = time.monotonic()
    tools.kill()
    recovered(handle, since)
    assert codes(handle) == [None, None, None]
    assert sorted(call["n"] for call in redis_fleet.calls("begin")) == [0, 1, 1, 2, 2]


def test_the_only_workers_are_killed_and_started_again(fleet: Fleet) -> None:
    steps, tools = fleet.both()
    client = fleet.client
    handles = [client.enqueue(agent, "go") for agent in ("slow_model", "slow_safe_tool", "quick", "slow_batch")]
    # Nothing is left to do by itself before the kill: the quick run has ended, the others hang in a model or a tool.
    eventually(lambda: handles[2].status() == "completed")
    fleet.began(1 + 1 + 1 + 3)
    steps.kill()
    tools.kill()
    fleet.both()
    since = time.monotonic()
    for handle in handles:
        recovered(handle, since)
        assert handle.result().text == "done"


@pytest.mark.long
def test_a_tool_that_kills_its_process_is_given_up_after_three_times_and_the_pool_heals(redis_fleet: Fleet) -> None:
    redis_fleet.both(concurrency=2)
    client = redis_fleet.client
    handle = client.enqueue("killer", "go")
    assert handle.wait(60).text == "done"
    assert codes(handle) == ["crashed", None]
    assert len([call for call in redis_fleet.calls("begin") if call["n"] == 0]) == 3
    assert client.enqueue("quick", "go").wait(30).text == "done"


@pytest.mark.parametrize("agent", ["hung", "hung_alone"])
def test_a_tool_that_swallows_its_time_limit_is_killed_and_reported(redis_fleet: Fleet, agent: str) -> None:
    redis_fleet.both(concurrency=2)
    handle = redis_fleet.client.enqueue(agent, "go")
    assert handle.wait(60).text == "done"
    assert codes(handle)[0] == "timeout"
    assert len([call for call in redis_fleet.calls("begin") if call["n"] == 0]) == 1


@pytest.mark.parametrize("agent", ["selfish_one", "selfish_two"])
def test_a_tool_that_never_lets_go_of_the_interpreter_is_not_taken_for_lost(redis_fleet: Fleet, agent: str) -> None:
    redis_fleet.both(concurrency=2)
    redis_fleet.start("steps")
    handle = redis_fleet.client.enqueue(agent, "go")
    assert handle.wait(40).text == "done"
    assert set(codes(handle)) == {None}
    assert redis_fleet.lease_secs < 8


def test_sigterm_lets_the_running_call_finish(redis_fleet: Fleet) -> None:
    redis_fleet.start("steps")
    tools = redis_fleet.start("tools", concurrency=2)
    handle = redis_fleet.client.enqueue("fan", "go")
    redis_fleet.began()
    tools.terminate()
    redis_fleet.start("tools", concurrency=8)
    assert handle.wait(60).text == "done"
    assert set(codes(handle)) == {None}
    assert len(redis_fleet.calls("begin")) == 32
