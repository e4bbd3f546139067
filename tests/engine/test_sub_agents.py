"""Agents that call agents: what they may use, and what is counted up the tree."""

from typing import Any

import pytest

from agentq import Agent, AssistantMessage, LimitExceededError, ToolMessage, Usage, tool
from agentq.providers.base import ModelReply, ModelRequest
from agentq.providers.scripted import Call, Fault, Scripted
from agentq.storage.database import Database
from tests.engine.drain import Drain


class Metered(Scripted):
    """Each reply costs ten tokens in and one out."""

    def complete(self, request: ModelRequest) -> ModelReply:
        return ModelReply(super().complete(request).message, Usage(input_tokens=10, output_tokens=1))


def chain(*names: str, turns: int = 1, **limits: Any) -> list[Agent]:
    """Agents of which each calls the next one; the last one calls a tool so often."""
    act = tool(name="act")(lambda: "acted")
    agents: list[Agent] = []
    for name in reversed(names):
        below = agents[0] if agents else None
        asked = [Call("act")] * (turns - 1) if below is None else [Call(below.name, {"input": "x"})]
        tools = [act] if below is None else [below.as_tool()]
        agents.insert(0, Agent(name, model=Metered([*asked, "done"]), tools=tools, limits=limits.get(name, {})))
    return agents


def usage_of(drain: Drain) -> dict[str, tuple[int | None, int | None]]:
    return {run.agent: (run.usage.input_tokens, run.usage.output_tokens) for run in drain.client.runs()}


def test_what_sub_agents_use_is_used_by_all_above_them(database: Database) -> None:
    agents = chain("top", "middle", "bottom", turns=3)
    drain = Drain(database, *agents)
    assert drain.run(agents[0]).text == "done"
    assert usage_of(drain) == {"top": (70, 7), "middle": (50, 5), "bottom": (30, 3)}
    assert {run.agent: run.model_calls for run in drain.client.runs()} == {"top": 2, "middle": 2, "bottom": 3}


def test_several_sub_agents_in_one_turn_are_all_counted_also_one_that_fails(database: Database) -> None:
    good = Agent("good", model=Metered(["fine"]))
    bad = Agent("bad", model=Metered([Call("nothing"), Fault("quota_exceeded", times=None), "never"]))
    calls = [Call("good", {"input": "1"}), Call("bad", {"input": "2"}), Call("good", {"input": "3"})]
    top = Agent("top", model=Metered([calls, "done"]), tools=[good.as_tool(), bad.as_tool()])
    drain = Drain(database, top, good, bad)
    result = drain.run(top)
    assert result.text == "done"
    assert result.usage == Usage(input_tokens=50, output_tokens=5)


def test_a_sub_agent_gets_no_more_tokens_than_its_caller_has_left(database: Database) -> None:
    agents = chain("top", "middle", "bottom", turns=9, top={"tokens": 60})
    drain = Drain(database, *agents)
    with pytest.raises(LimitExceededError) as caught:
        drain.run(agents[0])
    assert caught.value.details["limit"] == "tokens"
    bottom = next(run for run in drain.client.runs() if run.agent == "bottom")
    assert bottom.error is not None
    # Of sixty tokens the two above it have used twenty-two, and it stops with the reply that passes the rest.
    assert bottom.error.details == {"limit": "tokens", "value": 38}
    assert bottom.model_calls == 4


def test_the_sub_agents_own_limit_counts_where_it_is_lower(database: Database) -> None:
    agents = chain("top", "bottom", turns=9, top={"tokens": 1000}, bottom={"tokens": 15})
    drain = Drain(database, *agents)
    assert drain.run(agents[0]).text == "done"
    bottom = next(run for run in drain.client.runs() if run.agent == "bottom")
    assert bottom.error is not None
    assert bottom.error.details == {"limit": "tokens", "value": 15}


def test_a_sub_agent_has_no_more_time_than_its_caller_has_left(database: Database) -> None:
    agents = chain("top", "bottom", top={"run_secs": 100})
    drain = Drain(database, *agents)
    handle = drain.enqueue(agents[0])
    while len(drain.client.runs()) < 2:
        drain.do(drain.wake_ups.pop(0))
    with database.transaction() as connection:
        left = "select extract(epoch from deadline_at - now())::float from agentq.runs where agent = 'bottom'"
        assert 90 < connection.execute(left).scalar() <= 100
    drain.work()
    assert handle.result().text == "done"


def test_one_sub_agents_limit_error_leaves_its_sibling_alone(database: Database) -> None:
    """L4: one child's limit error cancelled its siblings; agents called themselves without end."""
    small = Agent("small", model=Metered([Call("nothing")] * 9), limits={"model_calls": 2})
    large = Agent("large", model=Metered([Call("nothing"), Call("nothing"), "fine"]))
    calls = [Call("small", {"input": "1"}), Call("large", {"input": "2"})]
    top = Agent("top", model=Metered([calls, "done"]), tools=[small.as_tool(), large.as_tool()])
    drain = Drain(database, top, small, large)
    result = drain.run(top)
    back = [message.result for message in result.messages if isinstance(message, ToolMessage)]
    assert [(each.code, each.text) for each in back][1] == (None, "fine")
    assert back[0].code == "limit_exceeded"
    assert isinstance(result.messages[-1], AssistantMessage)


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_a_sub_agent_whose_caller_was_deleted_meanwhile_ends_by_itself(database: Database, status: str) -> None:
    """As one that was cancelled may be, while its sub-agent is still at work."""

    @tool
    def act() -> str:
        """Stay longer than the caller does."""
        if status == "cancelled":
            handle.cancel()
        with database.transaction() as connection:
            connection.execute(f"delete from agentq.runs where id = '{handle.id}'")
        return "acted"

    below = Agent("below", model=Scripted([Call("act"), "done"]), tools=[act])
    top = Agent("top", model=Scripted([Call("below", {"input": "x"}), "done"]), tools=[below.as_tool()])
    drain = Drain(database, top, below)
    handle = drain.enqueue(top)
    drain.work()
    (run,) = drain.client.runs()
    assert (run.agent, run.status) == ("below", status)
    drain.age(120)
    drain.sweep()
    drain.age(120)
    assert drain.sweep() == 0
