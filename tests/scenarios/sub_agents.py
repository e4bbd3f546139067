"""Agents that call agents: answers, failures, what is left of tokens, cancel, depth."""

from agentq import Agent
from agentq.messages import Usage
from agentq.providers.base import ModelReply, ModelRequest
from agentq.providers.scripted import Call, Fault
from tests.scenarios.scenario import scenario
from tests.scenarios.scene import Scene
from tests.scenarios.stage import Played, look, pay


class Metered(Played):
    """Each reply costs ten tokens in and one out."""

    def complete(self, request: ModelRequest) -> ModelReply:
        return ModelReply(super().complete(request).message, Usage(input_tokens=10, output_tokens=1))


def called(name: str, *agents: Agent, **options: object) -> Agent:
    asked = [Call(agent.name, {"input": f"{name} asks"}) for agent in agents]
    tools = [agent.as_tool() for agent in agents]
    return Agent(name, model=Metered([asked, "done"], name), tools=tools, **options)  # type: ignore[arg-type]


helper = Agent("helper", model=Metered([Call("pay", {"n": 1}), "helped"], "helper"), tools=[pay])
boss = called("boss", helper)
broken = Agent(
    "broken",
    model=Metered([Call("look", {"n": 1}), Fault("quota_exceeded", times=None), "never"], "broken"),
    tools=[look],
)
boss_of_broken = called("boss_of_broken", broken)
left = Agent("left", model=Metered([Call("look", {"n": 1}), "left"], "left"), tools=[look])
right = Agent("right", model=Metered([Call("pay", {"n": 2}), "right"], "right"), tools=[pay])
boss_of_two = called("boss_of_two", left, right)
spender = Agent(
    "spender", model=Metered([*[Call("look", {"n": n}) for n in range(9)], "spent"], "spender"), tools=[look]
)
accountant = called("accountant", spender, limits={"tokens": 60})
endless = Agent("endless", model=Metered([Call("look", {"n": n}) for n in range(20)], "endless"), tools=[look])
stopped_middle = called("stopped_middle", endless)
stopped = called("stopped", stopped_middle)


def deep(request: ModelRequest) -> Call:
    return Call("mirror", {"input": "deeper"})


mirror = Agent("mirror", model=Metered([deep, "done"], "mirror", secs=0.05))
mirror.tools["mirror"] = mirror.as_tool()


@scenario(model=4, tool=1)
def sub_agent_answers(scene: Scene) -> None:
    handle = scene.enqueue(boss)
    result = scene.done(handle)
    scene.came_back(handle, ("helper", None, "helped"))
    assert result.usage == Usage(input_tokens=40, output_tokens=4)
    scene.came_back(scene.below(handle, "helper"), ("pay", None, "pay 1"))


@scenario(model=3, tool=1)
def sub_agent_fails(scene: Scene) -> None:
    handle = scene.enqueue(boss_of_broken)
    result = scene.done(handle)
    ((name, code, _),) = scene.results(handle)
    assert name == "broken"
    assert code is not None
    assert scene.below(handle, "broken").status() == "failed"
    assert result.usage == Usage(input_tokens=30, output_tokens=3)


@scenario(model=6, tool=2)
def two_sub_agents_at_once(scene: Scene) -> None:
    handle = scene.enqueue(boss_of_two)
    result = scene.done(handle)
    scene.came_back(handle, ("left", None, "left"), ("right", None, "right"))
    assert result.usage == Usage(input_tokens=60, output_tokens=6)


@scenario(model=5, tool=4)
def sub_agent_gets_what_is_left(scene: Scene) -> None:
    handle = scene.enqueue(accountant)
    error = scene.failed(handle, "limit_exceeded")
    assert error.details["limit"] == "tokens"
    below = scene.below(handle, "spender").run()
    assert below.error is not None
    # Of sixty, eleven were used before; it stops with the reply that passes the rest.
    assert below.error.details == {"limit": "tokens", "value": 49}
    assert below.model_calls == 5


@scenario(model=4, tool=1)
def cancel_goes_down(scene: Scene) -> None:
    handle = scene.enqueue(stopped)
    scene.until(lambda: len(scene.marked("tool")) >= 1 + scene.chance.randint(0, 2), "the lowest is at work")
    handle.cancel()
    scene.ended(handle, "cancelled")
    for agent in ("stopped_middle", "endless"):
        scene.ended(scene.below(handle, agent), "cancelled")


@scenario(model=9)
def eight_levels_and_no_more(scene: Scene) -> None:
    handle = scene.enqueue(mirror)
    scene.done(handle)
    runs = [run for run in scene.runs() if run.agent == "mirror"]
    assert len(runs) == 9
    deepest = next(run for run in runs if not any(each.parent_run_id == run.id for each in runs))
    ((_, code, _),) = scene.results(scene.client.handle(deepest.id))
    assert code is not None
