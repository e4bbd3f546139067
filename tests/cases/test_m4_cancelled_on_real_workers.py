"""M4 on real workers: runs cancelled in the middle of what they do end once, and leave no message behind."""

import threading
from collections.abc import Iterable

import pytest
import redis

from agentq import Handle
from tests.cases.stored import assert_over, codes
from tests.waiting import eventually
from tests.workers.fleet import Fleet

pytestmark = pytest.mark.crash

# Each agent, and what its calls have come to when it was cancelled in the middle of them.
CANCELLED = {
    "sync_tool": [None],
    "sync_tools": [None, "interrupted", None],
    "async_tool": ["cancelled"],
    "deaf_tool": ["cancelled"],
    "slow_model": [],
}


def waits_in_broker(fleet: Fleet) -> list[str]:
    """What is in the queues, or with a worker and not acknowledged."""
    with redis.Redis.from_url(fleet.broker_url) as client:
        queues = client.keys(f"{fleet.queue}*")
        return queues + [name for name in ("unacked", "unacked_index") if client.exists(name)]


def ended(fleet: Fleet, handles: Iterable[Handle]) -> None:
    for handle in handles:
        eventually(lambda handle=handle: handle.run().is_terminal, within=60, what=f"{handle.run()}")  # type: ignore[misc]
        assert handle.status() == "cancelled"
        eventually(lambda handle=handle: heard(fleet, handle), what="on_end")  # type: ignore[misc]


def heard(fleet: Fleet, handle: Handle) -> list[str]:
    return [end["status"] for end in fleet.calls("end") if end["run"] == handle.id]


def test_in_the_middle_of_tools_and_of_a_model_call_by_two_people(workers: Fleet) -> None:
    workers.both(concurrency=8)
    client = workers.client
    handles = {agent: client.enqueue(agent, "go", thread=agent) for agent in CANCELLED}
    # A run of sync tools is cancelled once one of its calls has come back.
    names = {"model", "slow", "slow 0", "slow 1", "x"}
    eventually(lambda: {call["name"] for call in workers.calls("note")} >= names, within=60)
    eventually(lambda: len(workers.calls("note")) >= 7 and codes(handles["sync_tools"]) == [None], within=60)
    people = [threading.Thread(target=handle.cancel) for handle in handles.values() for _ in range(2)]
    for person in people:
        person.start()
    for person in people:
        person.join(30)
    ended(workers, handles.values())
    for agent, handle in handles.items():
        found = codes(handle)
        # Of two calls that run when a run is cancelled the first to come back is kept.
        assert sorted(map(str, found)) == sorted(map(str, CANCELLED[agent])), agent
        assert_over(workers.database, handle)
    eventually(lambda: not waits_in_broker(workers), within=60, what=f"{waits_in_broker(workers)}")
    for agent, handle in handles.items():
        assert client.enqueue(agent, "again", thread=agent).wait(60).text == "still here"
        assert heard(workers, handle) == ["cancelled"]
        assert_over(workers.database, handle)


def test_of_twelve_async_calls_those_that_run_are_told_and_the_others_never_begin(workers: Fleet) -> None:
    workers.both(concurrency=8)
    handle = workers.client.enqueue("async_tools", "go", thread="t")
    eventually(lambda: len(workers.calls("note")) == 8, within=60, what="eight lanes")
    handle.cancel()
    ended(workers, [handle])
    assert sorted(map(str, codes(handle))) == ["cancelled"] * 5 + ["interrupted"] * 7
    eventually(lambda: len(workers.calls("told")) == 8, within=60, what="every tool that ran is told")
    eventually(lambda: not waits_in_broker(workers), within=60)
    assert len(workers.calls("note")) == 8
    assert_over(workers.database, handle)
    assert workers.client.enqueue("async_tools", "again", thread="t").wait(60).text == "still here"


def test_of_a_parent_its_running_sub_agent_ends_too(workers: Fleet) -> None:
    workers.both(concurrency=9)
    client = workers.client
    handle = client.enqueue("asks_helper", "go", thread="t")
    eventually(lambda: len(workers.calls("note")) == 9 and len(codes(handle)) == 1, within=60)
    assert handle.cancel() == "cancelled"
    (child,) = client.runs(agent="async_tools")
    ended(workers, [client.handle(child.id)])
    assert codes(handle) == ["cancelled", None]
    eventually(lambda: len(workers.calls("told")) == 8, within=60, what="every tool that ran is told")
    eventually(lambda: not waits_in_broker(workers), within=60)
    for each in (handle, client.handle(child.id)):
        assert_over(workers.database, each)
    assert client.enqueue("asks_helper", "again", thread="t").wait(60).text == "still here"


def test_whose_worker_is_dead(workers: Fleet) -> None:
    workers.start("steps", concurrency=2)
    tools = workers.start("tools", concurrency=2)
    handle = workers.client.enqueue("lost_tool", "go", thread="t")
    eventually(lambda: workers.calls("note"), within=60)
    tools.kill()
    assert handle.cancel() == "running"
    ended(workers, [handle])
    assert codes(handle) == ["interrupted"]
    assert_over(workers.database, handle)
    assert workers.client.enqueue("lost_tool", "again", thread="t").wait(60).text == "still here"
    assert heard(workers, handle) == ["cancelled"]
