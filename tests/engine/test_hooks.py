"""Hooks in the loop: what they change is what the model sees, what runs and what is stored; faults undo nothing."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from agentq import (
    Agent,
    AssistantMessage,
    EndRun,
    Handle,
    Hooks,
    ModelView,
    RunContext,
    RunFailedError,
    ToolCall,
    ToolResult,
    UserMessage,
    tool,
)
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Fault, Scripted
from agentq.storage.database import Database
from tests.cases.stored import assert_over, results
from tests.engine.drain import Died, Drain
from tests.engine.moments import Does

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@tool(idempotent=True)
def pay(amount: int) -> str:
    """Pay."""
    ran.append(amount)
    return f"paid {amount}"


@tool
def refund(amount: int) -> str:
    """Refund."""
    ran.append(-amount)
    return f"refunded {amount}"


def done(database: Database, agent: Agent, **options: Any) -> Handle:
    drain = Drain(database, agent)
    handle = drain.enqueue(agent, **options)
    drain.work()
    assert_over(database, handle)
    return handle


def agent(*script: Any, hooks: list[Hooks], **more: Any) -> Agent:
    return Agent("test", model=Scripted([*script]), tools=[pay, refund], hooks=hooks, **more)


def noted(handle: Handle, what: str) -> list[str]:
    return [name for event in handle.events(follow=False) for name in event.data.get(what, ())]


# ---------------------------------------------------------------------------------------------- before_model


class Narrows(Hooks):
    """Shows the model the last message only, other instructions, and no refund."""

    def before_model(self, ctx: RunContext, view: ModelView) -> ModelView:
        messages = tuple(message for message in view.messages if isinstance(message, UserMessage))
        tools = tuple(name for name in view.tools if name != "refund")
        return replace(view, instructions=f"{view.instructions} Now.", messages=messages, tools=tools)


def test_the_model_sees_the_view_and_the_transcript_stays_as_it_is(database: Database) -> None:
    seen: list[ModelRequest] = []

    def reply(request: ModelRequest) -> Any:
        seen.append(request)
        return Call("pay", {"amount": 1}) if len(seen) == 1 else "done"

    handle = done(database, agent(reply, hooks=[Narrows()], instructions="Be kind."))
    assert handle.result().text == "done"
    assert [message.role for message in handle.messages()] == ["user", "assistant", "tool", "assistant"]
    for request in seen:
        assert request.instructions == "Be kind. Now."
        assert [spec.name for spec in request.tools] == ["pay"]
        assert [message.role for message in request.messages] == ["user"]
    assert noted(handle, "changed_by") == ["Narrows", "Narrows"]


def test_a_tool_that_was_not_offered_is_not_run(database: Database) -> None:
    handle = done(database, agent(Call("refund", {"amount": 1}), lambda _: "never", hooks=[Refuses()]))
    assert ran == []
    assert [result.code for result in results(handle)] == ["unknown_tool"]
    assert results(handle)[0].text == "There is no tool 'refund'. The tools are: pay."


class Refuses(Hooks):
    def before_model(self, ctx: RunContext, view: ModelView) -> ModelView:
        return replace(view, tools=("pay",))


def test_the_view_is_asked_for_again_with_each_try(database: Database) -> None:
    models: list[str] = []

    class Watches(Hooks):
        def before_model(self, ctx: RunContext, view: ModelView) -> None:
            models.append(view.model)

    test = agent(Fault("overloaded"), "done", hooks=[Watches()])
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    drain.work()
    drain.age(60)
    drain.sweep()
    drain.work()
    assert handle.result().text == "done"
    assert len(models) == 2
    assert handle.run().model_calls == 1


def test_an_agent_with_hooks_before_its_model_has_no_step_more(database: Database) -> None:
    handle = done(database, agent("done", hooks=[Narrows()]))
    assert [event.data["phase"] for event in handle.events(follow=False) if event.type == "step"] == ["model"]


# ---------------------------------------------------------------------------------------------- after_model


def test_a_changed_reply_is_stored_and_followed(database: Database) -> None:
    class Halves(Hooks):
        def after_model(self, ctx: RunContext, reply: AssistantMessage) -> AssistantMessage | None:
            if not reply.calls:
                return reply.model_copy(update={"text": "redacted"})
            first = reply.calls[0].model_copy(update={"arguments": '{"amount": 50}'})
            return reply.model_copy(update={"calls": (first,)})

    script = [Call("pay", {"amount": 100}), Call("refund", {"amount": 100})]
    handle = done(database, agent(script, "my secret", hooks=[Halves()]))
    assert ran == [50]
    assert handle.result().text == "redacted"
    stored = [message for message in handle.messages() if isinstance(message, AssistantMessage)]
    assert [[call.arguments for call in message.calls] for message in stored] == [['{"amount": 50}'], []]
    steps = [event.data for event in handle.events(follow=False) if event.data.get("phase") == "model"]
    assert steps[0]["calls"] == ["pay"]
    assert steps[0]["changed_by"] == ["Halves"]


def test_changed_arguments_of_a_reply_are_checked_as_the_models_own(database: Database) -> None:
    class Breaks(Hooks):
        def after_model(self, ctx: RunContext, reply: AssistantMessage) -> AssistantMessage | None:
            broken = tuple(call.model_copy(update={"arguments": "{"}) for call in reply.calls)
            return reply.model_copy(update={"calls": broken})

    handle = done(database, agent(Call("pay", {"amount": 1}), "done", hooks=[Breaks()]))
    assert (ran, [result.code for result in results(handle)]) == ([], ["invalid_arguments"])


# ---------------------------------------------------------------------------------------------- before and after a tool


class Caps(Hooks):
    def before_tool(self, ctx: RunContext, call: ToolCall) -> Mapping[str, Any] | ToolResult | None:
        if call.name == "refund":
            return ToolResult.error(call, "denied", "No refunds today.")
        return {"amount": 5}

    def after_tool(self, ctx: RunContext, result: ToolResult) -> ToolResult:
        return result.model_copy(update={"text": f"{result.text}!"})


@pytest.mark.parametrize("calls", [1, 2])
def test_what_hooks_make_of_a_call_is_what_runs_and_what_is_stored(database: Database, calls: int) -> None:
    script = [Call("pay", {"amount": 100}), Call("refund", {"amount": 100})][:calls]
    handle = done(database, agent(script, "done", hooks=[Caps()]))
    assert ran == [5]
    found = [(result.code, result.text) for result in results(handle)]
    assert found == [(None, "paid 5!"), ("denied", "No refunds today.!")][:calls]
    # The reply says what the model asked for.
    reply = next(message for message in handle.messages() if isinstance(message, AssistantMessage))
    assert reply.calls[0].arguments == '{"amount": 100}'
    assert noted(handle, "changed_by") == ["Caps", "Caps"] * calls


def test_what_a_person_has_approved_is_what_runs_or_nothing(database: Database) -> None:
    test = agent(Call("pay", {"amount": 100}), "done", hooks=[Caps()], approve=["pay"])
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    drain.work()
    (approval,) = handle.result().approvals
    handle.approve(approval.call_id)
    drain.work()
    assert (ran, [result.code for result in results(handle)]) == ([], ["invalid_arguments"])
    assert handle.result().text == "done"


def test_what_a_person_has_written_is_what_runs_or_nothing(database: Database) -> None:
    test = agent(Call("pay", {"amount": 100}), "done", hooks=[Caps()], approve=["pay"])
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    drain.work()
    (approval,) = handle.result().approvals
    handle.approve(approval.call_id, arguments={"amount": 7})
    drain.work()
    # Nobody is asked once more: it is not what the person wrote that does not fit.
    assert (ran, [result.code for result in results(handle)]) == ([], ["invalid_arguments"])
    assert handle.result().text == "done"


# ---------------------------------------------------------------------------------------------- guards


def leaks() -> None:
    raise RuntimeError("secret")


class Guard(Does):
    required = True


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("where", ["before_model", "after_model", "before_tool", "after_tool"])
def test_a_guard_that_fails_ends_the_run_and_nothing_passes_it(database: Database, where: str, calls: int) -> None:
    script = [Call("pay", {"amount": n + 1}) for n in range(calls)]
    handle = done(database, agent(script, "never", hooks=[Guard(where, leaks)]))
    with pytest.raises(RunFailedError) as caught:
        handle.result()
    assert caught.value.code == "hook_failed"
    assert caught.value.details == {"hook": "Guard", "moment": where}
    assert ran == ([1] if where == "after_tool" else [])
    assert handle.run().model_calls == (0 if where == "before_model" else 1)
    told = {result.code for result in results(handle)}
    assert (
        told
        == {
            "before_model": set(),
            # Its reply is not kept.
            "after_model": set(),
            "before_tool": {"cancelled"},
            # That the tool came back is on record, what it said is not.
            "after_tool": {"hook_failed"} if calls == 1 else {"hook_failed", "cancelled"},
        }[where]
    )
    # What the tokens of a withheld reply were is known all the same.
    assert (handle.run().usage.output_tokens is None) == (where == "before_model")


@pytest.mark.parametrize("calls", [1, 2])
def test_a_tool_that_came_back_before_its_hook_failed_is_not_run_again(database: Database, calls: int) -> None:
    """Also one that may run again: nothing was lost."""

    class Fails(Hooks):
        def after_tool(self, ctx: RunContext, result: ToolResult) -> None:
            raise SystemExit("not even this ends the process")

    script = [Call("pay", {"amount": n}) for n in range(calls)]
    handle = done(database, agent(script, "done", hooks=[Fails()]))
    assert sorted(ran) == list(range(calls))
    assert [result.text for result in results(handle)] == [f"paid {n}" for n in range(calls)]
    assert noted(handle, "faults") == ["Fails: RuntimeError"] * calls


def test_a_call_that_may_have_run_before_is_not_said_not_to_have_run(database: Database) -> None:
    """A hook ends the run in the second attempt of a call whose first one was lost."""

    class EndsLater(Hooks):
        def before_tool(self, ctx: RunContext, call: ToolCall) -> None:
            if ctx.attempt > 1:
                raise EndRun("over")

    def probe(point: str, what: str) -> None:
        if (point, what) == ("effect", "tools") and len(ran) == 1:
            ran.append("lost")
            raise Died

    test = agent(Call("pay", {"amount": 1}), "never", hooks=[EndsLater()])
    drain = Drain(database, test, probe=probe)
    handle = drain.enqueue(test)
    with pytest.raises(Died):
        drain.work()
    drain.age(20)
    drain.sweep()
    drain.work()
    assert handle.result().output == "over"
    assert [result.code for result in results(handle)] == ["interrupted"]
    assert ran == [1, "lost"]


# ---------------------------------------------------------------------------------------------- crashes


class ChangesAll(Caps):
    def before_model(self, ctx: RunContext, view: ModelView) -> ModelView:
        return replace(view, instructions="changed")

    def after_model(self, ctx: RunContext, reply: AssistantMessage) -> AssistantMessage:
        return reply.model_copy(update={"text": f"{reply.text}?"})


def says_its_instructions(request: ModelRequest) -> str:
    return request.instructions


@pytest.mark.parametrize("local_steps", [0, 64])
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("phase", ["model", "tools", "call"])
@pytest.mark.parametrize("point", ["claimed", "effect", "committed", "announced"])
def test_what_hooks_changed_is_the_same_after_a_crash_anywhere(
    database: Database, point: str, phase: str, calls: int, local_steps: int
) -> None:
    died: list[str] = []

    def probe(where: str, what: str) -> None:
        if (where, what) == (point, phase) and not died:
            died.append(where)
            raise Died

    script = [Call("pay", {"amount": 100 + n}) for n in range(calls)]
    test = agent(script, says_its_instructions, hooks=[ChangesAll()])
    drain = Drain(database, test, probe=probe, local_steps=local_steps)
    handle = drain.enqueue(test)
    while not handle.run().is_terminal:
        with suppress(Died):
            drain.work()
        drain.age(20)
        drain.sweep()
    assert handle.result().text == "changed?"
    assert [result.text for result in results(handle)] == ["paid 5!"] * calls
    repeated = died and point == "effect" and phase == ("tools" if calls == 1 else "call")
    assert ran == [5] * (calls + bool(repeated))
    assert_over(database, handle)
