"""Calls whose worker was lost in them, and calls that were handed to the outside."""

import time

from agentq import Agent, Deferred, RunContext, tool
from agentq.providers.scripted import Call
from tests.scenarios.scenario import scenario
from tests.scenarios.scene import Scene
from tests.scenarios.stage import Played, act, ask, at, fetch, look, pay, probed

ask_alone = Agent("ask_alone", model=Played([Call("ask", {"n": 1}), "done"], "ask_alone"), tools=[ask])
ask_beside = Agent(
    "ask_beside",
    model=Played([[Call("ask", {"n": 1}), Call("look", {"n": 2}), Call("fetch", {"n": 3})], "done"], "ask_beside"),
    tools=[ask, look, fetch],
)
mixed = Agent(
    "mixed",
    model=Played(
        [[Call(name, {"n": n}) for n in range(3) for name in ("pay", "look", "fetch", "probed")], "done"], "mixed"
    ),
    tools=[pay, look, fetch, probed],
)


@tool(timeout=30, idempotent=True)
def order(n: int, ctx: RunContext) -> str:
    """Order something, of which the outside will tell."""
    act(ctx, "order")
    raise Deferred("ordered", deadline_secs=600)


@tool(timeout=30, idempotent=True)
def slow_order(n: int, ctx: RunContext) -> str:
    """One whose answer may come before it has returned."""
    with at("ordered", run=ctx.run_id, agent=ctx.agent):
        time.sleep(0.6)
    raise Deferred("ordered")


outside = Agent(
    "outside", model=Played([[Call("order", {"n": 1}), Call("look", {"n": 1})], "done"], "outside"), tools=[order, look]
)
outside_alone = Agent("outside_alone", model=Played([Call("order", {"n": 1}), "done"], "outside_alone"), tools=[order])
early = Agent("early", model=Played([Call("slow_order", {"n": 1}), "done"], "early"), tools=[slow_order])


@scenario(in_tool=1)
def person_says_what_became_of_it(scene: Scene) -> None:
    """The person looks at the destination, and says what is there."""
    handle = scene.enqueue(ask_alone)
    scene.until(lambda: handle.status() in ("waiting", "completed"), "asked, or done")
    if handle.status() == "waiting":
        (waiting,) = scene.asked(handle)
        assert (waiting.kind, waiting.tool) == ("outcome", "ask")
        happened = any(each["key"] == waiting.idempotency_key for each in scene.marked("effect"))
        handle.settle(waiting.call_id, happened=happened, result="ask settled" if happened else None)
        scene.decided()
    scene.done(handle)
    scene.came_back(handle, ("ask", None, "ask "))
    assert scene.effects("ask") == 1


@scenario(in_tool=1)
def person_does_not_know_what_became_of_it(scene: Scene) -> None:
    handle = scene.enqueue(ask_beside)
    scene.until(lambda: handle.status() in ("waiting", "completed"), "asked, or done")
    if handle.status() == "waiting":
        (waiting,) = scene.asked(handle)
        scene.cli("approvals", "settle", handle.id, waiting.call_id, "--happened", "unknown", "--reason", "bank closed")
        scene.decided()
        scene.ended(handle)
        assert "bank closed" in scene.results(handle)[0][2]
    scene.done(handle)
    scene.came_back(handle, ("ask", None, None), ("look", None, "look 2"), ("fetch", None, "fetch 3"))


@scenario(in_tool=8)
def each_tool_follows_its_own_rule(scene: Scene) -> None:
    handle = scene.enqueue(mixed)
    scene.done(handle)
    expected = [(name, None, None) for n in range(3) for name in ("pay", "look", "fetch", "probed")]
    scene.came_back(handle, *expected)
    assert all(code is None for name, code, _ in scene.results(handle) if name != "pay")
    assert scene.effects("probed") == 3


@scenario(model=2, tool=2, decided=1)
def completed_from_outside(scene: Scene) -> None:
    handle = scene.enqueue(outside)
    waiting = scene.until(handle.approvals, "the call is out")[0]
    assert waiting.kind == "deferred"
    handle.complete(waiting.call_id, {"receipt": 7})
    scene.decided()
    scene.done(handle)
    scene.came_back(handle, ("order", None, "7"), ("look", None, "look 1"))


@scenario(model=2, tool=1, decided=1)
def failed_from_outside(scene: Scene) -> None:
    handle = scene.enqueue(outside_alone)
    (waiting,) = scene.asked(handle)
    scene.cli("approvals", "complete", handle.id, waiting.call_id, "--failed", "the bank is closed")
    scene.decided()
    scene.done(handle)
    scene.came_back(handle, ("order", "tool_error", "the bank is closed"))


@scenario(model=2, ordered=1)
def completed_before_it_was_handed_over(scene: Scene) -> None:
    handle = scene.enqueue(early)
    scene.until(lambda: scene.marked("ordered"), "the tool has begun")
    handle.complete("call_0_0", "here already", timeout=30)
    scene.decided()
    scene.done(handle)
    scene.came_back(handle, ("slow_order", None, "here already"))
