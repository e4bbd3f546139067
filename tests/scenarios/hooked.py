"""Hooks at each moment: they change what passes, end the run, fail, hang, guard, and hear of the end."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentq import (
    Agent,
    AssistantMessage,
    EndRun,
    Hooks,
    ModelView,
    RunContext,
    ToolCall,
    ToolResult,
    UserMessage,
)
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Answer, Call
from tests.scenarios.scenario import scenario
from tests.scenarios.scene import LOST, Scene
from tests.scenarios.stage import HOOK_SECS, Played, at, look, mark, pay

ON_END_SECS = 100.0


class Slow(Hooks):
    """Each moment takes a while, in which a worker can be killed."""

    def before_model(self, ctx: RunContext, view: ModelView) -> ModelView | None:
        self._at("before_model", ctx)
        return None

    def after_model(self, ctx: RunContext, reply: AssistantMessage) -> AssistantMessage | None:
        self._at("after_model", ctx)
        return None

    def before_tool(self, ctx: RunContext, call: ToolCall) -> Mapping[str, Any] | ToolResult | None:
        self._at("before_tool", ctx)
        return None

    def after_tool(self, ctx: RunContext, result: ToolResult) -> ToolResult | None:
        self._at("after_tool", ctx)
        return None

    def _at(self, moment: str, ctx: RunContext) -> None:
        with at("hook", run=ctx.run_id, moment=moment):
            time.sleep(HOOK_SECS)


class Changes(Slow):
    """What each moment lets it change."""

    def before_model(self, ctx: RunContext, view: ModelView) -> ModelView | None:
        super().before_model(ctx, view)
        return replace(view, instructions="changed", tools=("pay",))

    def after_model(self, ctx: RunContext, reply: AssistantMessage) -> AssistantMessage | None:
        super().after_model(ctx, reply)
        return reply if reply.calls else reply.model_copy(update={"text": reply.text.upper()})

    def before_tool(self, ctx: RunContext, call: ToolCall) -> Mapping[str, Any] | ToolResult | None:
        super().before_tool(ctx, call)
        return {"n": 42}

    def after_tool(self, ctx: RunContext, result: ToolResult) -> ToolResult | None:
        super().after_tool(ctx, result)
        return result.model_copy(update={"text": f"[{result.text}]"})


def sees(request: ModelRequest) -> Answer:
    """Done, if what the hook has made of the view is what is seen."""
    names = [tool.name for tool in request.tools]
    return "done" if (request.instructions, names) == ("changed", ["pay"]) else f"saw {request.instructions} {names}"


class Denies(Slow):
    def before_tool(self, ctx: RunContext, call: ToolCall) -> Mapping[str, Any] | ToolResult | None:
        super().before_tool(ctx, call)
        return ToolResult.error(call, "denied", "Ask for the date of birth first.") if call.name == "pay" else None


class Fewer(Slow):
    def after_model(self, ctx: RunContext, reply: AssistantMessage) -> AssistantMessage | None:
        super().after_model(ctx, reply)
        return reply.model_copy(update={"calls": reply.calls[:1]})


class Ends(Slow):
    def after_tool(self, ctx: RunContext, result: ToolResult) -> ToolResult | None:
        super().after_tool(ctx, result)
        raise EndRun({"ended": result.name})


class Raises(Slow):
    def before_model(self, ctx: RunContext, view: ModelView) -> ModelView | None:
        super().before_model(ctx, view)
        raise RuntimeError("the hook is broken")

    def after_tool(self, ctx: RunContext, result: ToolResult) -> ToolResult | None:
        super().after_tool(ctx, result)
        raise RuntimeError("the hook is broken")


class Hangs(Slow):
    def after_tool(self, ctx: RunContext, result: ToolResult) -> ToolResult | None:
        super().after_tool(ctx, result)
        time.sleep(5)
        return result.model_copy(update={"text": "too late"})


class Guard(Raises):
    required = True

    def before_model(self, ctx: RunContext, view: ModelView) -> ModelView | None:
        return None


class Hears(Hooks):
    def on_end(self, ctx: RunContext, status: str) -> None:
        with at("ending", run=ctx.run_id, status=status):
            time.sleep(0.5)
        mark("heard", run=ctx.run_id, status=status)


class Facts:
    """A memory that takes its time, too."""

    def recall(self, ctx: RunContext, text: str) -> list[str]:
        with at("hook", run=ctx.run_id, moment="recall"):
            time.sleep(HOOK_SECS)
        return ["The customer prefers tea."]


def remembers(request: ModelRequest) -> Answer:
    said = request.instructions + "".join(m.text for m in request.messages if isinstance(m, UserMessage))
    return "done" if "prefers tea" in said else "forgot"


def hooked(name: str, hook: Hooks, *turns: Any, **options: Any) -> Agent:
    turns = turns or ([Call("pay", {"n": 1}), Call("look", {"n": 2})], "done")
    return Agent(name, model=Played(turns, name), tools=[pay, look], hooks=[hook], **options)


changes = hooked("changes", Changes(), [Call("pay", {"n": 1})], sees)
denies = hooked("denies", Denies())
fewer = hooked("fewer", Fewer())
ends = hooked("ends", Ends(), Call("pay", {"n": 1}), "never")
raises = hooked("raises", Raises())
hangs = hooked("hangs", Hangs(), Call("pay", {"n": 1}), "done", hook_timeout_secs=0.7)
guarded = hooked("guarded", Guard(), Call("pay", {"n": 1}), "never")
heard = hooked("heard", Hears(), Call("look", {"n": 1}), "done")
recalled = hooked("recalled", Slow(), Call("pay", {"n": 1}), remembers, memory=Facts())


@scenario(in_hook=6, after_hook=6, tool=1)
def hooks_change_what_passes(scene: Scene) -> None:
    handle = scene.enqueue(changes)
    scene.done(handle, "DONE")
    (found,) = scene.results(handle)
    assert found[1] == "interrupted" or found[2] == "[pay 42]", found
    assert any("changed_by" in event.data for event in handle.events(follow=False))


@scenario(in_hook=5, model=2)
def hook_stands_in_for_a_tool(scene: Scene) -> None:
    handle = scene.enqueue(denies)
    scene.done(handle)
    # A worker that is lost before the hook has answered for the tool is lost in the tool.
    (name, code, _), other = scene.results(handle)
    assert name == "pay"
    assert code == "denied" or (code == "interrupted" and scene.killer.kills)
    assert other == ("look", None, "look 2")
    assert scene.effects("pay") == 0


@scenario(in_hook=4, model=2)
def hook_takes_calls_out_of_a_reply(scene: Scene) -> None:
    handle = scene.enqueue(fewer)
    scene.done(handle)
    scene.came_back(handle, ("pay", None, "pay 1"))


@scenario(in_hook=4, model=1)
def hook_ends_the_run(scene: Scene) -> None:
    handle = scene.enqueue(ends)
    scene.ended(handle)
    result = handle.result()
    if LOST in [code for _, code, _ in scene.results(handle)]:
        # Lost in the tool or in its hooks: there was no result to end the run with.
        assert (result.stop_reason, bool(scene.killer.kills)) == ("final_answer", True)
        return
    assert (result.stop_reason, result.output) == ("hook_end", {"ended": "pay"})


@scenario(in_hook=4, after_hook=4)
def hook_that_raises_changes_nothing(scene: Scene) -> None:
    handle = scene.enqueue(raises)
    scene.done(handle)
    scene.came_back(handle, ("pay", None, "pay 1"), ("look", None, "look 2"))
    assert any(event.data.get("faults") for event in handle.events(follow=False))


@scenario(in_hook=4, tool=1)
def hook_that_hangs_is_left_behind(scene: Scene) -> None:
    handle = scene.enqueue(hangs)
    scene.done(handle)
    scene.came_back(handle, ("pay", None, "pay 1"))


@scenario(in_hook=2, in_model=1)
def guard_that_fails_ends_the_run(scene: Scene) -> None:
    handle = scene.enqueue(guarded)
    scene.ended(handle, None)
    if LOST in [code for _, code, _ in scene.results(handle)]:
        # Lost in the tool or in its hooks: there is no result that the guard could look at.
        assert scene.killer.kills
        return
    scene.failed(handle, "hook_failed")
    assert not [text for _, _, text in scene.results(handle) if text.startswith("pay")]


@scenario(in_ending=1)
def end_is_heard_though_its_teller_dies(scene: Scene) -> None:
    handle = scene.enqueue(heard)
    scene.done(handle)
    scene.until(lambda: scene.killer.kills or scene.marked("heard"), "somebody has told, or died of it")

    def is_heard() -> None:
        said = scene.until_late(lambda: scene.marked("heard", run=handle.id), ON_END_SECS, "the hooks have heard")
        assert {each["status"] for each in said} == {"completed"}
        assert len(said) <= 2

    scene.later.append(is_heard)


@scenario(in_hook=6, model=2, tool=1)
def facts_are_recalled(scene: Scene) -> None:
    handle = scene.enqueue(recalled)
    scene.done(handle)
    scene.came_back(handle, ("pay", None, "pay 1"))
