"""Limits end a run where they are reached, and count exactly what was done, whoever dies."""

from agentq import Agent, LimitExceededError
from agentq.providers.scripted import Call
from tests.scenarios.scenario import scenario
from tests.scenarios.scene import Scene
from tests.scenarios.stage import look, pay
from tests.scenarios.sub_agents import Metered

turns = [Call("pay", {"n": n}) for n in range(9)]
few_calls = Agent("few_calls", model=Metered(turns, "few_calls"), tools=[pay], limits={"model_calls": 3})
few_tools = Agent(
    "few_tools",
    model=Metered(
        [[Call("pay", {"n": n}) for n in range(2)], [Call("look", {"n": n}) for n in range(3)], "done"], "few_tools"
    ),
    tools=[pay, look],
    limits={"tool_calls": 3},
)
few_tokens = Agent("few_tokens", model=Metered(turns, "few_tokens"), tools=[pay], limits={"tokens": 30})
short = Agent("short", model=Metered(turns * 3, "short"), tools=[pay], limits={"run_secs": 3})


def _reached(scene: Scene, agent: Agent, limit: str) -> object:
    handle = scene.enqueue(agent)
    error = scene.failed(handle, "limit_exceeded")
    assert isinstance(error, LimitExceededError)
    assert error.details["limit"] == limit, error.details
    return handle.run()


@scenario(model=3, tool=2)
def so_many_model_calls(scene: Scene) -> None:
    run = _reached(scene, few_calls, "model_calls")
    assert run.model_calls == 3  # type: ignore[attr-defined]


@scenario(model=2, tool=2)
def so_many_tool_calls(scene: Scene) -> None:
    run = _reached(scene, few_tools, "tool_calls")
    assert run.tool_calls <= 3, run  # type: ignore[attr-defined]
    assert len(scene.marked("effect")) <= 3 + len(scene.marked("tool", attempt=2))


@scenario(model=3, tool=2)
def so_many_tokens(scene: Scene) -> None:
    run = _reached(scene, few_tokens, "tokens")
    assert run.usage.total == 33  # type: ignore[attr-defined]


@scenario(model=3, tool=2)
def so_many_seconds(scene: Scene) -> None:
    _reached(scene, short, "run_secs")
