"""The loop on a real Postgres: every way a call can come back, every way a run can end."""

import threading
from typing import Any

import pytest
from pydantic import BaseModel

from agentq import (
    Agent,
    AssistantMessage,
    ConfigError,
    EndRun,
    Hooks,
    LimitExceededError,
    RunCancelledError,
    RunContext,
    RunFailedError,
    ThreadBusyError,
    ToolError,
    ToolMessage,
    ToolResult,
    UnknownAgentError,
    UserMessage,
    tool,
)
from agentq.errors import ApprovalNotPendingError
from agentq.messages import Message
from agentq.providers.scripted import Call, Fault, Scripted, Step
from agentq.storage.database import Database
from agentq.wire import BatchMessage, CallMessage
from tests.engine.drain import Drain
from tests.engine.moments import Does


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def greet(name: str, ctx: RunContext) -> str:
    """Greet somebody."""
    return f"hello {name} of {ctx.context['tenant']} {ctx.idempotency_key.split(':', 1)[1]}"


@tool
def refuse() -> None:
    """Say no."""
    raise ToolError("the shop is closed")


@tool
def explode() -> None:
    """Raise something odd."""

    class Odd(Exception):
        def __init__(self, a: int, *, b: int) -> None:
            super().__init__(f"{a} and {b}")

    raise Odd(1, b=2)


@tool(timeout=0.05)
def hang() -> None:
    """Take too long."""
    threading.Event().wait()


def agent(*steps: Step | Fault, name: str = "test", **definition: Any) -> Agent:
    definition.setdefault("tools", [add, greet, refuse, explode, hang])
    return Agent(name, model=Scripted(steps), **definition)


def results(messages: tuple[Message, ...]) -> list[ToolResult]:
    return [message.result for message in messages if isinstance(message, ToolMessage)]


def test_an_answer_without_a_call_ends_the_run(database: Database) -> None:
    result = Drain(database).run(agent("hello"))
    assert (result.status, result.stop_reason, result.text) == ("completed", "final_answer", "hello")


def test_a_call_runs_and_its_result_goes_back_to_the_model(database: Database) -> None:
    seen: list[Any] = []
    drain = Drain(database, test := agent(Call("add", {"a": 1, "b": 2}), lambda request: seen.append(request) or "3"))
    result = drain.run(test, "what is 1 + 2?")
    assert result.text == "3"
    (call,) = results(seen[0].messages)
    assert (call.status, call.text) == ("success", "3")
    assert seen[0].messages[0] == UserMessage(text="what is 1 + 2?")


def test_an_async_tool_gets_the_context_and_a_stable_key(database: Database) -> None:
    drain = Drain(database, test := agent(Call("greet", {"name": "Ada"}), "done"))
    result = drain.run(test, context={"tenant": "t7"})
    assert results(result.messages)[0].text == "hello Ada of t7 1:0"


@pytest.mark.parametrize(
    ("call", "status", "code", "text"),
    [
        (Call("add", {"a": 1, "b": 2}), "success", None, "3"),
        (Call("add", {"a": 1}), "error", "invalid_arguments", "b: required"),
        (Call("add", '{"a": 1'), "error", "invalid_arguments", "not valid JSON"),
        (Call("serach", {}), "error", "unknown_tool", "add, greet, refuse, explode, hang"),
        (Call("refuse", {}), "error", "tool_error", "the shop is closed"),
        (Call("explode", {}), "error", "tool_failed", "Odd: 1 and 2"),
        (Call("hang", {}), "error", "timeout", "did not finish within 0.05 s"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.parametrize("beside", [0, 2], ids=["alone", "in a batch"])
def test_every_row_of_the_table_of_results(
    database: Database, call: Call, status: str, code: str | None, text: str, beside: int
) -> None:
    good = [Call("add", {"a": 10, "b": i}) for i in range(beside)]
    drain = Drain(database, test := agent([call, *good], "done"))
    result = drain.run(test)
    first, *others = results(result.messages)
    assert (first.status, first.code) == (status, code)
    assert text in first.text
    assert [other.text for other in others] == [str(10 + i) for i in range(beside)]
    assert result.text == "done"


def test_results_go_back_in_the_order_asked_whatever_order_they_came_in(database: Database) -> None:
    calls = [Call("add", {"a": i, "b": 0}) for i in range(12)]
    drain = Drain(database, test := agent(calls, "done"))
    handle = drain.enqueue(test)
    drain.work(order=lambda waiting: len(waiting) - 1)
    assert [result.text for result in results(handle.result().messages)] == [str(i) for i in range(12)]


def test_of_forty_calls_eight_lanes_take_thirty_two_and_the_rest_are_answered_as_skipped(database: Database) -> None:
    drain = Drain(database, test := agent([Call("add", {"a": i, "b": 0}) for i in range(40)], "done"))
    result = drain.run(test)
    answered = results(result.messages)
    assert len(answered) == 40
    assert [r.code for r in answered] == [None] * 32 + ["skipped"] * 8
    (batch,) = [sent for sent in drain.sent if isinstance(sent, BatchMessage)]
    assert len(batch.lanes) == 8
    assert len([sent for sent in drain.sent if isinstance(sent, CallMessage)]) == 24


def test_on_tool_exception_fail_ends_the_run(database: Database) -> None:
    drain = Drain(database, test := agent(Call("explode", {}), "never", on_tool_exception="fail"))
    with pytest.raises(RunFailedError, match="explode: Odd") as caught:
        drain.run(test)
    assert caught.value.code == "tool_failed"
    assert caught.value.details == {"tool": "explode"}


def test_on_tool_exception_fail_in_a_batch_closes_the_calls_that_had_not_come_back(database: Database) -> None:
    calls = [Call("add", {"a": 1, "b": 1}), Call("explode", {}), *[Call("add", {"a": 2, "b": i}) for i in range(10)]]
    drain = Drain(database, test := agent(calls, "never", on_tool_exception="fail"))
    handle = drain.enqueue(test)
    drain.work()
    with pytest.raises(RunFailedError):
        handle.result()
    codes = [result.code for result in results(handle.messages())]
    assert len(codes) == 12
    assert codes[:2] == [None, "tool_failed"]
    assert "cancelled" in codes


def test_on_tool_exception_may_be_a_function_of_the_exception(database: Database) -> None:
    drain = Drain(
        database, test := agent(Call("explode", {}), "done", on_tool_exception=lambda error: f"sorry: {error}")
    )
    (result,) = results(drain.run(test).messages)
    assert (result.code, result.text) == ("tool_failed", "sorry: 1 and 2")


def test_the_model_call_limit_fails_the_run_and_names_itself(database: Database) -> None:
    forever = [Call("add", {"a": 1, "b": 1})] * 5
    drain = Drain(database, test := agent(*forever, limits={"model_calls": 3}))
    with pytest.raises(LimitExceededError) as caught:
        drain.run(test)
    assert (caught.value.code, caught.value.details["limit"]) == ("limit_exceeded", "model_calls")


def test_the_tool_call_limit_lets_none_of_the_reply_run_that_passes_it(database: Database) -> None:
    ran: list[int] = []

    @tool
    def note(n: int) -> str:
        ran.append(n)
        return "ok"

    drain = Drain(
        database,
        test := agent(
            Call("note", {"n": 1}), [Call("note", {"n": n}) for n in (2, 3)], tools=[note], limits={"tool_calls": 2}
        ),
    )
    handle = drain.enqueue(test)
    drain.work()
    with pytest.raises(LimitExceededError) as caught:
        handle.result()
    assert caught.value.details["limit"] == "tool_calls"
    assert ran == [1]
    assert [result.code for result in results(handle.messages())] == [None, "cancelled", "cancelled"]


def test_limits_of_one_run_may_be_changed_when_it_is_enqueued(database: Database) -> None:
    drain = Drain(database, test := agent(Call("add", {"a": 1, "b": 1}), "done"))
    with pytest.raises(LimitExceededError):
        drain.run(test, limits={"model_calls": 1})


def test_the_token_limit_is_checked_before_each_model_call(database: Database) -> None:
    drain = Drain(database, test := agent(Call("add", {"a": 1, "b": 1}), "never", limits={"tokens": 5}))
    with pytest.raises(LimitExceededError) as caught:
        drain.run(test)
    assert caught.value.details["limit"] == "tokens"


def test_a_blocked_reply_ends_with_content_filter_and_without_text(database: Database) -> None:
    result = Drain(database).run(agent(AssistantMessage(text="", stop="blocked")))
    assert (result.status, result.stop_reason, result.text) == ("completed", "content_filter", None)


class Ticket(BaseModel):
    title: str
    urgent: bool = False


def test_structured_output_is_checked_and_typed(database: Database) -> None:
    answer = Call("final_answer", {"title": "broken", "urgent": True})
    drain = Drain(database, test := agent(answer, output=Ticket))
    result = drain.run(test)
    assert result.stop_reason == "output"
    assert result.output == Ticket(title="broken", urgent=True)


def test_an_invalid_output_is_asked_for_again_and_the_second_fails_the_run(database: Database) -> None:
    bad = Call("final_answer", {"urgent": True})
    drain = Drain(database, test := agent(bad, Call("final_answer", {"title": "ok"}), output=Ticket))
    assert drain.run(test).output == Ticket(title="ok")
    drain = Drain(database, test := agent(bad, bad, output=Ticket))
    with pytest.raises(RunFailedError) as caught:
        drain.run(test)
    assert caught.value.code == "output_invalid"


def test_a_transient_error_is_tried_again_when_it_is_due_and_counts_as_one_model_call(database: Database) -> None:
    drain = Drain(database, test := agent(Fault("overloaded", times=2), "hello"))
    handle = drain.enqueue(test)
    for _ in range(2):
        drain.work()
        run = handle.run()
        assert run.status == "running"
        assert run.due_at is not None
        drain.age(30)
        assert drain.sweep() == 1
    drain.work()
    assert handle.result().text == "hello"
    assert handle.run().model_calls == 1


def test_a_backoff_is_not_cut_short_by_an_early_wake_up(database: Database) -> None:
    drain = Drain(database, test := agent(Fault("overloaded", times=1), "hello"))
    handle = drain.enqueue(test)
    drain.work()
    before = handle.run()
    drain.engine.run_step(handle.id, before.seq)
    assert handle.run() == before


def test_fallback_models_are_tried_when_the_first_fails_for_good(database: Database) -> None:
    test = Agent(
        "test", model=Scripted([Fault("auth_failed", times=None), "never"]), fallback=[Scripted(["from two"], "two")]
    )
    result = Drain(database).run(test)
    assert result.text == "from two"
    replies = [message for message in result.messages if isinstance(message, AssistantMessage)]
    assert replies[0].provider == "two"


def test_a_model_that_fails_for_good_fails_the_run_with_its_code(database: Database) -> None:
    with pytest.raises(RunFailedError) as caught:
        Drain(database).run(agent(Fault("quota_exceeded", times=None), "never"))
    assert caught.value.code == "provider_quota_exceeded"


def test_a_gated_call_stops_the_whole_turn_until_a_person_approves(database: Database) -> None:
    drain = Drain(
        database, test := agent([Call("add", {"a": 1, "b": 1}), Call("refuse", {})], "done", approve=["refuse"])
    )
    handle = drain.enqueue(test)
    drain.work()
    result = handle.result()
    assert (result.status, result.stop_reason) == ("waiting", "needs_approval")
    assert results(result.messages) == []
    (approval,) = result.approvals
    assert (approval.tool, approval.arguments, approval.status) == ("refuse", "{}", "pending")
    handle.approve(approval.call_id, by="anna")
    drain.work()
    assert [r.code for r in results(handle.result().messages)] == [None, "tool_error"]
    (decided,) = drain.client.approvals(status=None)
    assert (decided.status, decided.decided_by) == ("approved", "anna")


def test_a_rejected_call_shows_the_reason_and_the_others_run(database: Database) -> None:
    calls = [Call("add", {"a": 1, "b": 1}), Call("add", {"a": 2, "b": 2}, id="two")]
    drain = Drain(database, test := agent(calls, "done", approve=["add"]))
    handle = drain.enqueue(test)
    drain.work()
    first, second = handle.result().approvals
    handle.reject(second.call_id, reason="too much")
    drain.work()
    assert handle.status() == "waiting"
    handle.approve(first.call_id)
    drain.work()
    one, two = results(handle.result().messages)
    assert (one.status, one.text) == ("success", "2")
    assert (two.status, two.text) == ("rejected", "A person rejected this call: too much")


def test_when_every_call_is_rejected_the_model_is_asked_again_without_a_tool_step(database: Database) -> None:
    drain = Drain(database, test := agent(Call("add", {"a": 1, "b": 1}), "done", approve=["add"]))
    handle = drain.enqueue(test)
    drain.work()
    handle.reject(handle.result().approvals[0].call_id)
    drain.work()
    assert handle.result().text == "done"


def test_a_second_decision_is_refused_and_says_who_decided(database: Database) -> None:
    drain = Drain(database, test := agent(Call("add", {"a": 1, "b": 1}), "done", approve=["add"]))
    handle = drain.enqueue(test)
    drain.work()
    call_id = handle.result().approvals[0].call_id
    handle.reject(call_id, by="bert")
    with pytest.raises(ApprovalNotPendingError, match="rejected by bert"):
        handle.approve(call_id)
    with pytest.raises(ApprovalNotPendingError, match="no call 'nope'"):
        handle.approve("nope")


def test_one_of_twenty_decisions_at_once_wins(database: Database) -> None:
    drain = Drain(database, test := agent(Call("add", {"a": 1, "b": 1}), "done", approve=["add"]))
    handle = drain.enqueue(test)
    drain.work()
    call_id = handle.result().approvals[0].call_id
    refused: list[Exception] = []

    def decide(i: int) -> None:
        try:
            handle.approve(call_id, by=str(i)) if i % 2 else handle.reject(call_id, by=str(i))
        except ApprovalNotPendingError as error:
            refused.append(error)

    threads = [threading.Thread(target=decide, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 19
    drain.work()
    assert len(results(handle.result().messages)) == 1


def test_cancelling_a_waiting_run_closes_its_approvals_and_refuses_late_decisions(database: Database) -> None:
    drain = Drain(database, test := agent(Call("add", {"a": 1, "b": 1}), "done", approve=["add"]))
    handle = drain.enqueue(test)
    drain.work()
    call_id = handle.result().approvals[0].call_id
    assert handle.cancel() == "cancelled"
    with pytest.raises(RunCancelledError):
        handle.result()
    assert drain.client.approvals() == []
    with pytest.raises(ApprovalNotPendingError, match="closed"):
        handle.approve(call_id)
    assert [r.code for r in results(handle.messages())] == ["cancelled"]


def test_cancelling_a_queued_run_ends_it_and_its_late_message_does_nothing(database: Database) -> None:
    drain = Drain(database, test := agent("never"))
    handle = drain.enqueue(test)
    handle.cancel()
    drain.work()
    assert handle.status() == "cancelled"
    assert handle.run().model_calls == 0


def test_cancelling_during_a_step_ends_the_run_with_that_step_and_keeps_what_it_brought(database: Database) -> None:
    handles: list[Any] = []

    @tool
    def cancel_me() -> str:
        """Cancel the run that runs it."""
        handles[0].cancel()
        return "still finished"

    drain = Drain(database, test := agent(Call("cancel_me", {}), "never", tools=[cancel_me]))
    handles.append(drain.enqueue(test))
    drain.work()
    assert handles[0].status() == "cancelled"
    assert [r.text for r in results(handles[0].messages())] == ["still finished"]
    assert handles[0].run().model_calls == 1


def test_a_hook_may_end_the_run_at_every_point_and_its_output_is_the_result(database: Database) -> None:
    def stop(where: str) -> Does:
        def end() -> None:
            raise EndRun({"stopped": where})

        return Does(where, end)

    for where in ("before_model", "after_model", "before_tool", "after_tool"):
        for calls in (1, 3):
            script = [Call("add", {"a": 1, "b": i}) for i in range(calls)]
            result = Drain(database).run(agent(script, "never", hooks=[stop(where)]))
            assert (result.stop_reason, result.output) == ("hook_end", {"stopped": where})
            replies = [message for message in result.messages if isinstance(message, AssistantMessage)]
            asked = sum(len(reply.calls) for reply in replies)
            assert len(results(result.messages)) == asked


def test_a_hook_that_raises_changes_nothing_and_is_on_the_record(database: Database) -> None:
    class Broken(Hooks):
        def before_model(self, ctx: RunContext) -> None:
            raise RuntimeError("no")

        def after_tool(self, ctx: RunContext, result: ToolResult) -> None:
            raise RuntimeError("no")

    drain = Drain(database, test := agent(Call("add", {"a": 1, "b": 1}), "done", hooks=[Broken()]))
    handle = drain.enqueue(test)
    drain.work()
    assert handle.result().text == "done"
    faults = [event.data["faults"] for event in handle.events(follow=False) if "faults" in event.data]
    assert ["Broken: RuntimeError"] in faults


def test_memory_is_recalled_before_each_model_call_and_may_fail(database: Database) -> None:
    class Facts:
        def recall(self, ctx: RunContext, text: str) -> list[str]:
            if text == "fail":
                raise RuntimeError("down")
            return [f"likes \x00{text}"]

    seen: list[Any] = []
    test = agent(lambda request: seen.append(request) or "ok", memory=Facts(), instructions="Be kind.")
    drain = Drain(database, test)
    assert drain.run(test, "tea").text == "ok"
    assert seen[0].instructions == "Be kind.\n\nWhat you remember:\n- likes \ufffdtea"
    assert drain.run(test, "fail").text == "ok"
    assert seen[1].instructions == "Be kind."


def test_a_thread_sees_what_was_said_before_and_takes_one_run_at_a_time(database: Database) -> None:
    def reply(request: Any) -> str:
        return f"seen {len(request.messages)}"

    drain = Drain(database, test := agent(reply, reply, reply))
    thread = test.thread("t1")
    first = thread.enqueue("one", client=drain.client)
    with pytest.raises(ThreadBusyError, match=first.id):
        thread.enqueue("two", client=drain.client)
    drain.work()
    second = thread.enqueue("two", client=drain.client)
    drain.work()
    assert second.result().text == "seen 3"
    assert [message.role for message in thread.history(client=drain.client)] == ["user", "assistant"] * 2


def test_an_agent_as_tool_runs_as_a_run_of_its_own_and_answers_the_call(database: Database) -> None:
    helper = agent(Call("add", {"a": 1, "b": 1}), "two", name="helper")
    asked = [Call("helper", {"input": "1 + 1?"}), Call("add", {"a": 5, "b": 5})]
    drain = Drain(database, boss := agent(asked, "done", name="boss", tools=[helper.as_tool(), add]))
    result = drain.run(boss)
    assert [r.text for r in results(result.messages)] == ["two", "10"]
    child = next(run for run in drain.client.runs() if run.agent == "helper")
    assert child.parent_run_id == result.run_id


def test_a_failing_sub_agent_is_an_error_result_for_its_parent(database: Database) -> None:
    helper = agent(Fault("quota_exceeded", times=None), "never", name="helper")
    drain = Drain(
        database, boss := agent(Call("helper", {"input": "x"}), "done", name="boss", tools=[helper.as_tool()])
    )
    (result,) = results(drain.run(boss).messages)
    assert (result.status, result.code) == ("error", "provider_quota_exceeded")


def test_agents_calling_agents_stop_at_depth_eight(database: Database) -> None:
    deep: list[Agent] = []
    callee = agent("bottom", name="level9")
    for level in range(8, -1, -1):
        callee = agent(
            Call(callee.name, {"input": "go"}), f"level {level}", name=f"level{level}", tools=[callee.as_tool()]
        )
        deep.append(callee)
    drain = Drain(database, callee)
    assert drain.run(callee).text == "level 0"
    runs = drain.client.runs(limit=50)
    assert len(runs) == 9
    last = next(run for run in runs if run.agent == "level8")
    (refused,) = results(drain.client.handle(last.id).messages())
    assert refused.code == "limit_exceeded"
    assert "8 levels deep" in refused.text


def test_cancelling_a_parent_cancels_the_sub_agents_run(database: Database) -> None:
    helper = agent(Call("add", {"a": 1, "b": 1}), "two", name="helper", approve=["add"])
    drain = Drain(
        database, boss := agent(Call("helper", {"input": "x"}), "done", name="boss", tools=[helper.as_tool()])
    )
    handle = drain.enqueue(boss)
    drain.work()
    handle.cancel()
    assert {run.status for run in drain.client.runs()} == {"cancelled"}


def test_the_same_idempotency_key_gives_the_same_run(database: Database) -> None:
    drain = Drain(database, test := agent("hello"))
    first = drain.enqueue(test, idempotency_key="mail-812")
    second = drain.enqueue(test, "other text", idempotency_key="mail-812")
    assert first.id == second.id
    assert len(drain.sent) == 1
    assert len(drain.client.runs()) == 1


def test_runs_are_found_by_tag_status_and_agent(database: Database) -> None:
    drain = Drain(database, test := agent("hello", "hello"))
    handle = drain.enqueue(test, tags={"customer": "42"})
    drain.enqueue(test, tags={"customer": "43"})
    assert [run.id for run in drain.client.runs(tags={"customer": "42"})] == [handle.id]
    drain.work()
    assert len(drain.client.runs(status="completed", agent="test")) == 2
    newest, oldest = drain.client.runs()
    assert [run.id for run in drain.client.runs(before=newest.id)] == [oldest.id]


def test_an_unknown_agent_is_refused_before_anything_is_written(database: Database) -> None:
    drain = Drain(database, agent("hello", name="support"))
    with pytest.raises(UnknownAgentError, match="did you mean 'support'"):
        drain.client.enqueue("suport", "hi")
    assert drain.client.runs() == []


def test_a_run_for_an_agent_this_worker_lacks_waits_for_a_worker_that_has_it(database: Database) -> None:
    drain = Drain(database, test := agent("hello"))
    stranger = Drain(database, agent("other", name="other"))
    handle = drain.enqueue(test)
    stranger.do(drain.wake_ups[0])
    assert handle.status() == "queued"
    drain.work()
    drain.age(30)
    drain.sweep()
    drain.work()
    assert handle.result().text == "hello"
    assert handle.run().attempt == 0


def test_text_that_postgres_refuses_is_cleaned_wherever_it_enters(database: Database) -> None:
    @tool
    def dirty() -> dict[str, Any]:
        """Return what no database takes."""
        return {"a\x00k": "x\x00y", "n": float("nan"), "literal": "\\u0000"}

    drain = Drain(database, test := agent(Call("dirty", {}), "bye \x00\ud800", tools=[dirty]))
    result = drain.run(test, "hi\x00", tags={"k\x00": "v\x00"}, context={"c": "\x00"})
    assert result.text == "bye \ufffd\ufffd"
    (shown,) = results(result.messages)
    assert shown.text == '{"a\ufffdk": "x\ufffdy", "n": "NaN", "literal": "\\\\u0000"}'


def test_events_number_without_gaps_and_hold_neither_prompts_nor_results(database: Database) -> None:
    secret = "very private"
    drain = Drain(database, test := agent([Call("add", {"a": 123456, "b": 1})] * 3, secret))
    handle = drain.enqueue(test, secret)
    drain.work()
    events = list(handle.events(follow=False))
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events] == [
        "run.enqueued",
        "step",
        "step",
        "call",
        "call",
        "call",
        "step",
        "run.ended",
    ]
    assert secret not in repr(events)
    assert "123456" not in repr(events)
    assert list(handle.events(after=7, follow=False)) == events[7:]


def test_calls_with_the_same_id_or_none_run_once_each_and_keep_their_places(database: Database) -> None:
    calls = [
        Call("add", {"a": 1, "b": 0}, id="dup"),
        Call("add", {"a": 2, "b": 0}, id="dup"),
        Call("add", {"a": 3, "b": 0}, id=""),
    ]
    drain = Drain(database, test := agent(calls, "done"))
    answered = results(drain.run(test).messages)
    assert [result.text for result in answered] == ["1", "2", "3"]
    assert len({result.call_id for result in answered}) == 3


def test_the_same_key_on_a_busy_thread_gives_the_run_that_keeps_it_busy(database: Database) -> None:
    drain = Drain(database, test := agent("one"))
    thread = test.thread("t1")
    first = thread.enqueue("one", client=drain.client, idempotency_key="k")
    assert thread.enqueue("one", client=drain.client, idempotency_key="k").id == first.id


@pytest.mark.parametrize(
    "options", [{"idempotency_key": "x" * 8000}, {"idempotency_key": 5}, {"idempotency_key": ""}, {"thread": "x" * 201}]
)
def test_a_key_that_no_index_takes_is_refused_before_anything_is_written(
    database: Database, options: dict[str, Any]
) -> None:
    drain = Drain(database, test := agent("hello"))
    with pytest.raises(ConfigError, match="1 to 200 characters"):
        drain.enqueue(test, **options)
    with pytest.raises(ConfigError, match="agent None"):
        drain.client.enqueue(None, "hi", allow_unknown=True)  # type: ignore[arg-type]
    assert drain.client.runs() == []
