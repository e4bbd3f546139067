"""L1, L4: exactly the calls that a budget allows run, never more than eight at once; agents that call agents end."""

from collections import Counter
from typing import Any

import pytest

from agentq import Agent, AssistantMessage, LimitExceededError, ToolMessage, tool
from agentq.limits import MAX_CALLS_PER_REPLY, MAX_DEPTH, MAX_LANES
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.cases.stored import assert_over, results
from tests.engine.drain import Drain


def counting(replies: list[int]) -> tuple[Agent, list[int]]:
    """An agent that asks for so many calls in its replies, and which of them have run."""
    ran: list[int] = []

    @tool
    def act(n: int) -> str:
        """Count."""
        ran.append(n)
        return str(n)

    numbers = iter(range(1000))
    script = [[Call("act", {"n": next(numbers)}) for _ in range(count)] for count in replies]
    return Agent("test", model=Scripted([*script, "done"]), tools=[act]), ran


@pytest.mark.parametrize(
    ("replies", "limit", "runs"),
    [
        ([25] * 7 + [24, 1], 200, 200),
        # All of a reply's calls, or none.
        ([25] * 7 + [24, 8], 200, 199),
        ([8], 7, 0),
        ([40], 200, MAX_CALLS_PER_REPLY),
        ([200], 200, MAX_CALLS_PER_REPLY),
    ],
)
def test_l1_exactly_the_calls_run_that_the_limit_allows(
    database: Database, replies: list[int], limit: int, runs: int
) -> None:
    agent, ran = counting(replies)
    drain = Drain(database, agent)
    handle = drain.enqueue(agent, limits={"tool_calls": limit})
    drain.work()
    assert Counter(ran).total() == len(set(ran)) == runs
    is_over_limit = sum(min(count, MAX_CALLS_PER_REPLY) for count in replies) > limit
    if is_over_limit:
        with pytest.raises(LimitExceededError) as caught:
            handle.result()
        assert caught.value.details["limit"] == "tool_calls"
    else:
        assert handle.result().text == "done"
        assert handle.run().tool_calls == runs
    asked = [m for m in handle.messages() if isinstance(m, AssistantMessage) and m.calls]
    # The reply that the limit stopped is kept as well, with a result for each of its calls.
    assert len(results(handle)) == sum(len(message.calls) for message in asked)
    assert_over(database, handle)


def test_l1_never_more_than_eight_are_out_at_once_also_when_messages_come_twice(database: Database) -> None:
    agent, ran = counting([30])
    drain = Drain(database, agent)
    handle = drain.enqueue(agent)
    most = 0
    while drain.wake_ups:
        wake_up = drain.wake_ups.pop(0)
        for _ in range(2):
            drain.do(wake_up)
        with database.autocommit() as connection:
            out = "select count(*) from agentq.tool_calls where status in ('announced', 'running')"
            most = max(most, connection.execute(out).scalar())
    assert most == MAX_LANES
    assert sorted(ran) == list(range(30))
    assert_over(database, handle)


def test_l4_an_agent_that_always_calls_itself_ends_at_the_depth_there_is(database: Database) -> None:
    def answer(request: ModelRequest) -> Any:
        back = [message.result for message in request.messages if isinstance(message, ToolMessage)]
        return f"told: {back[0].text}" if back else Call("loop", {"input": "deeper"})

    agent = Agent("loop", model=Scripted([answer] * 2))
    agent.tools[agent.as_tool().name] = agent.as_tool()
    drain = Drain(database, agent)
    handle = drain.enqueue(agent)
    drain.work()
    assert handle.result().text is not None
    runs = drain.client.runs()
    assert len(runs) == MAX_DEPTH + 1
    assert {run.status for run in runs} == {"completed"}
    deepest = min(runs, key=lambda run: run.created_at, default=None), max(runs, key=lambda run: run.created_at)
    (refused,) = results(drain.client.handle(deepest[1].id))
    assert refused.status == "error"
    assert str(MAX_DEPTH) in refused.text
    assert_over(database, handle)


def test_l4_of_several_sub_agents_one_reaches_its_limit_one_fails_and_the_others_answer(database: Database) -> None:
    @tool
    def act() -> str:
        """Do something."""
        return "acted"

    well = Agent("well", model=Scripted(["well"]))
    limited = Agent("limited", model=Scripted([Call("act")] * 9), tools=[act], limits={"model_calls": 2})
    failing = Agent("failing", model=Scripted([]))
    children = [well, limited, failing]
    calls = [Call(child.name, {"input": "x"}) for child in children]
    top = Agent("top", model=Scripted([calls, "done"]), tools=[child.as_tool() for child in children])
    drain = Drain(database, top, *children)
    handle = drain.enqueue(top)
    drain.work()
    assert handle.result().text == "done"
    back = results(handle)
    assert [result.code for result in back] == [None, "limit_exceeded", "provider_request_rejected"]
    assert back[0].text == "well"
    # What each used is counted where it was asked for.
    used = [drain.client.handle(run.id).run().usage.total for run in drain.client.runs() if run.parent_run_id]
    own = sum(m.text is not None for m in handle.messages() if isinstance(m, AssistantMessage))
    assert own == 2
    assert handle.run().usage.total > sum(used)
    assert_over(database, handle)
