"""What a run's model calls cost: counted up the tree, shown, and an end to the run where it is too much. L2."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from agentq import Agent, ConfigError, LimitExceededError, RunFailedError, set_prices, tool
from agentq.messages import Usage
from agentq.providers.base import ModelReply, ModelRequest
from agentq.providers.openai_chat import OpenAIChat
from agentq.providers.scripted import Call, Scripted, Step
from agentq.storage.database import Database
from agentq.values import replace
from tests.engine.drain import Drain
from tests.providers.fake_server import response, serve


@pytest.fixture(autouse=True)
def own_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dollar for each thousand tokens, in or out, of the models of these tests."""
    monkeypatch.setattr("agentq.prices._given", {})
    set_prices({"paid:*": {"input": 1000, "output": 1000}})


class Paid:
    """A script that uses a thousand tokens a call: a dollar."""

    name = "paid"

    def __init__(self, steps: Sequence[Step], model: str = "m", usage: Usage | None = None) -> None:
        self.model = model
        self._script = Scripted(steps)
        self._usage = usage or Usage(input_tokens=600, output_tokens=400)

    def complete(self, request: ModelRequest) -> ModelReply:
        return replace(self._script.complete(request), usage=self._usage)


@tool
def act() -> str:
    """Act."""
    return "acted"


LOOP = [Call("act")] * 20


def test_the_cost_of_a_run_is_on_its_record(database: Database) -> None:
    drain = Drain(database, agent := Agent("test", model=Paid([Call("act"), "done"]), tools=[act]))
    handle = drain.enqueue(agent)
    drain.work()
    assert handle.result().usage.cost == handle.run().cost == Decimal(2)
    steps = [event.data for event in handle.events(follow=False) if event.type == "step"]
    assert [Decimal(step["cost"]) for step in steps if step["phase"] == "model"] == [1, 1]


@pytest.mark.parametrize(("usd", "calls"), [(0.5, 1), ("1", 1), (2.5, 3)])
def test_a_run_ends_when_it_has_cost_what_it_may(database: Database, usd: Any, calls: int) -> None:
    drain = Drain(database, agent := Agent("test", model=Paid(LOOP), tools=[act], limits={"usd": usd}))
    handle = drain.enqueue(agent)
    drain.work()
    with pytest.raises(LimitExceededError) as caught:
        handle.result()
    assert (caught.value.details["limit"], caught.value.details["value"]) == ("usd", float(usd))
    assert (handle.run().model_calls, handle.run().cost) == (calls, calls)
    with pytest.raises(Exception, match="US dollars; give it more"):
        handle.retry()
    handle.retry(limits={"usd": 4})
    drain.work()
    assert handle.run().cost == 4


def test_a_run_may_have_a_limit_of_its_own_if_its_models_have_prices(database: Database) -> None:
    paid, unpaid = Agent("paid", model=Paid(LOOP), tools=[act]), Agent("unpaid", model=Scripted(LOOP), tools=[act])
    drain = Drain(database, paid, unpaid)
    handle = drain.enqueue(paid, limits={"usd": "1.5"})
    with pytest.raises(ConfigError, match="no price is known for scripted:scripted"):
        drain.enqueue(unpaid, limits={"usd": "1.5"})
    # A producer that does not have the agent cannot tell.
    del drain.client.agents["unpaid"]
    blind = drain.client.enqueue("unpaid", "go", limits={"usd": "1.5"}, allow_unknown=True)
    drain.work()
    assert handle.run().model_calls == 2
    with pytest.raises(RunFailedError, match="no price is known for scripted:scripted") as caught:
        blind.result()
    assert (caught.value.code, blind.run().model_calls) == ("config_invalid", 0)


def test_what_sub_agents_cost_is_counted_up_the_tree_and_they_have_no_more_than_is_left(database: Database) -> None:
    deep = Agent("deep", model=Paid(LOOP, "deep"), tools=[act])
    middle = Agent("middle", model=Paid([Call("deep", {"input": "x"}), "well"], "middle"), tools=[deep.as_tool()])
    top = Agent(
        "top",
        model=Paid([Call("middle", {"input": "x"}), "done"], "top"),
        tools=[middle.as_tool()],
        limits={"usd": 5},
    )
    drain = Drain(database, top, middle, deep)
    handle = drain.enqueue(top)
    drain.work()
    costs = {run.agent: run.cost for run in drain.client.runs()}
    # Five dollars, one of them spent by the top, one by the middle: three are left for the deepest.
    assert costs == {"deep": Decimal(3), "middle": Decimal(4), "top": Decimal(5)}
    with pytest.raises(LimitExceededError) as caught:
        handle.result()
    assert caught.value.details["limit"] == "usd"


def test_a_sub_agent_of_known_cost_does_not_make_that_of_its_caller_known(database: Database) -> None:
    helper = Agent("helper", model=Paid(["well"]))
    script = [Call("helper", {"input": "x"}), "done"]
    drain = Drain(database, top := Agent("top", model=Scripted(script), tools=[helper.as_tool()]), helper)
    usage = drain.run(top).usage
    assert (usage.cost, usage.known_cost, usage.unpriced) == (None, Decimal(1), True)


def test_one_sub_agent_of_unknown_cost_makes_the_sum_unknown_and_the_rest_still_counts(database: Database) -> None:
    helper = Agent("helper", model=Scripted(["well"]))
    script = [Call("helper", {"input": "x"}), "done"]
    drain = Drain(database, top := Agent("top", model=Paid(script), tools=[helper.as_tool()]), helper)
    handle = drain.enqueue(top)
    drain.work()
    usage = handle.result().usage
    assert (usage.cost, usage.known_cost, usage.unpriced) == (None, Decimal(2), True)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {"prompt_tokens": None, "completion_tokens": 3},
        {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": None},
        {"prompt_tokens": "12", "completion_tokens": 3},
        {"total_tokens": 9},
    ],
    ids=["absent", "null", "details null", "text", "total only"],
)
def test_l2_a_run_goes_on_without_its_usage_says_so_and_other_limits_hold(database: Database, usage: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "act", "arguments": "{}"}}
    reply = {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}], "usage": usage}
    set_prices({"openai:m": {"input": 1000, "output": 1000}})
    with serve(lambda _: response(reply)) as server:
        model = OpenAIChat("openai", base_url=server.url, api_key="sk-test-key", model="m")
        limits = {"usd": 1000, "tokens": 10_000, "model_calls": 4}
        drain = Drain(database, agent := Agent("test", model=model, tools=[act], limits=limits))
        handle = drain.enqueue(agent)
        drain.work()
    with pytest.raises(LimitExceededError) as caught:
        handle.result()
    assert caught.value.details["limit"] == "model_calls"
    is_known = usage is not None and usage.get("prompt_tokens") == 9
    found = handle.run().usage
    assert (found.cost is not None, bool(found.unpriced)) == (is_known, not is_known)
    assert found.input_tokens == (36 if is_known else None)


def test_openrouters_own_word_on_the_cost_is_taken(database: Database) -> None:
    said = {"prompt_tokens": 10, "completion_tokens": 3, "cost": 0.0003}
    own = said | {"is_byok": True, "cost_details": {"upstream_inference_cost": 0.002}}
    replies = iter([said, own, {"prompt_tokens": 10, "completion_tokens": 3}])
    message = {"choices": [{"message": {"content": "done"}, "finish_reason": "stop"}]}
    with serve(lambda _: response(message | {"usage": next(replies)})) as server:
        model = OpenAIChat("openrouter", base_url=server.url, api_key="sk-test-key", model="some/model")
        drain = Drain(database, agent := Agent("test", model=model, limits={"usd": 1}))
        costs = [drain.run(agent).usage.cost for _ in range(3)]
    assert costs == [Decimal("0.0003"), Decimal("0.0023"), None]
