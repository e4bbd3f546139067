"""Tools that hang in every way there is: each comes back as a timeout, and the pool works on."""

import pytest

from agentq import Handle
from tests.cases.stored import assert_over, codes
from tests.workers.fleet import Fleet

pytestmark = pytest.mark.crash

# Ten seconds after its limit a process that does not let go is killed.
ENDED_SECS = 90


def done(fleet: Fleet, handle: Handle) -> list[str | None]:
    assert handle.wait(ENDED_SECS).text == "done"
    assert_over(fleet.database, handle)
    return codes(handle)


def pool_heals(fleet: Fleet, concurrency: int) -> None:
    handles = [fleet.client.enqueue("quick", "go") for _ in range(2 * concurrency)]
    assert [handle.wait(60).text for handle in handles] == ["done"] * len(handles)


@pytest.mark.long
def test_eight_at_once_in_all_lanes_are_killed_and_the_ninth_call_runs(workers: Fleet) -> None:
    workers.both(concurrency=8)
    handle = workers.client.enqueue("eight_hung", "go", thread="t")
    assert done(workers, handle) == ["timeout"] * 8 + [None]
    assert len(workers.calls("hang")) == 8
    assert [call["name"] for call in workers.calls("note")] == ["ninth"]
    assert workers.client.enqueue("eight_hung", "again", thread="t").wait(60).text == "still here"
    pool_heals(workers, 8)


@pytest.mark.long
def test_whichever_way_a_tool_swallows_its_time_limit_it_is_a_timeout(workers: Fleet) -> None:
    workers.both(concurrency=4)
    agents = ["swallows", "swallows_async", "blocks_the_loop", "hangs_in_c"]
    handles = {agent: workers.client.enqueue(agent, "go", thread=agent) for agent in agents}
    assert {agent: done(workers, handle) for agent, handle in handles.items()} == {
        agent: ["timeout"] for agent in agents
    }
    assert len(workers.calls("hang")) == len(agents)
    for agent in agents:
        assert workers.client.enqueue(agent, "again", thread=agent).wait(60).text == "still here"
    pool_heals(workers, 4)


def test_a_tool_that_holds_the_interpreter_for_ever_is_given_up_and_its_process_killed(workers: Fleet) -> None:
    workers.both(concurrency=1)
    handle = workers.client.enqueue("holds_the_interpreter", "go", thread="t")
    assert done(workers, handle) in (["timeout"], ["interrupted"])
    assert len(workers.calls("hang")) == 1
    pool_heals(workers, 1)
    assert workers.client.enqueue("holds_the_interpreter", "again", thread="t").wait(60).text == "still here"
