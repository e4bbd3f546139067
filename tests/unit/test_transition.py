"""The state machine as a table: every phase with every outcome, every ending, every limit at its border."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from agentq.errors import ErrorInfo
from agentq.limits import MAX_CALLS_PER_REPLY, MAX_DEPTH, MAX_EMPTY_REPLIES, MAX_LANES, MAX_RESULT_CHARS, Limits
from agentq.messages import AssistantMessage, ToolMessage, Usage, UserMessage
from agentq.outcomes import (
    Asked,
    BatchOpened,
    CallsFinished,
    Cancelled,
    CoolingDown,
    Decided,
    Failed,
    HookEnded,
    ModelFailed,
    Outcome,
    Output,
    Recalled,
    Replied,
    Reviewed,
    Transition,
)
from agentq.retry import LONGEST_HINT_SECS, MODEL_TRIES, backoff_secs, wait_secs
from agentq.run import TERMINAL, OpenCall, Phase, Snapshot, Status, dump_progress, load_progress
from agentq.transition import UnexpectedOutcomeError, cancel, decide
from tests.unit.loop import answer, asks, bad, call, calls, codes, error_code, failure, fresh, result, roles

FAULT = ErrorInfo(code="internal_error", message="broken")
ONE_CALL = (OpenCall(index=0, position=2, call_id="c0", tool="act"),)

OUTCOMES: dict[type, Outcome] = {
    Recalled: Recalled(("a fact",)),
    Replied: answer(),
    ModelFailed: failure(),
    Reviewed: Reviewed((0,)),
    Decided: Decided(),
    BatchOpened: BatchOpened(),
    CallsFinished: CallsFinished(((0, result("c0")),)),
    Asked: Asked(0),
    HookEnded: HookEnded("enough"),
    Failed: Failed(FAULT),
    Cancelled: Cancelled(),
    CoolingDown: CoolingDown(0, 3.0, 1),
}

# What (phase, waiting or not, outcome) leads to: the next phase, or how the run ended. All else is refused.
TABLE: dict[tuple[Phase, bool, type], str] = {
    ("recall", False, Recalled): "model",
    ("model", False, Replied): "completed",
    ("model", False, ModelFailed): "model",
    ("model", False, CoolingDown): "model",
    ("review", False, Reviewed): "waiting",
    ("review", True, Decided): "tools",
    ("tools", False, BatchOpened): "tools",
    ("tools", False, CallsFinished): "recall",
    ("tools", False, Asked): "waiting",
    ("tools", True, CallsFinished): "recall",
}
for _phase in get_args(Phase):
    for _waits in (False, True) if _phase in ("review", "tools") else (False,):
        TABLE |= {
            (_phase, _waits, HookEnded): "completed",
            (_phase, _waits, Failed): "failed",
            (_phase, _waits, Cancelled): "cancelled",
        }


def at(phase: Phase, status: Status = "running") -> Snapshot:
    calls = ONE_CALL if phase in ("review", "tools") else ()
    return fresh(phase=phase, status=status, calls=calls, message_count=3 if calls else 1, seq=7, turn=1)


def lead(transition: Transition) -> str:
    snapshot = transition.snapshot
    return snapshot.phase if snapshot.status == "running" else snapshot.status


# ---------------------------------------------------------------------------------------------- the table


def test_the_table_has_every_outcome_there_is() -> None:
    assert set(OUTCOMES) == set(get_args(Outcome))


@pytest.mark.parametrize("kind", OUTCOMES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("waits", [False, True], ids=["running", "waiting"])
@pytest.mark.parametrize("phase", get_args(Phase))
def test_every_phase_with_every_outcome(phase: Phase, waits: bool, kind: type) -> None:
    if waits and phase not in ("review", "tools"):
        return  # Only calls wait for a person.
    snapshot = at(phase, "waiting" if waits else "running")
    expected = TABLE.get((phase, waits, kind))
    if expected is None:
        with pytest.raises(UnexpectedOutcomeError, match=rf"{kind.__name__} in \w+/{phase}"):
            decide(snapshot, OUTCOMES[kind])
        return
    transition = decide(snapshot, OUTCOMES[kind])
    assert lead(transition) == expected
    assert transition.snapshot.seq == 8
    assert (transition.ending is not None) == (expected in TERMINAL)


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_nothing_follows_the_end(status: Status) -> None:
    for phase in get_args(Phase):
        for outcome in OUTCOMES.values():
            with pytest.raises(UnexpectedOutcomeError):
                decide(at(phase, status), outcome)


def test_recalled_facts_go_with_the_coming_model_call_only() -> None:
    recalled = decide(fresh(phase="recall"), Recalled(("likes tea",)))
    assert recalled.snapshot.progress.facts == ("likes tea",)
    assert decide(recalled.snapshot, failure()).snapshot.progress.facts == ("likes tea",)
    assert decide(recalled.snapshot, asks(call("c0"))).snapshot.progress.facts == ()


def test_a_queued_run_becomes_running_with_its_first_step() -> None:
    assert decide(fresh(phase="recall", status="queued"), Recalled()).snapshot.status == "running"


# ---------------------------------------------------------------------------------------------- how a run ends


def test_an_answer_without_calls_is_the_final_answer() -> None:
    transition = decide(fresh(), answer("42", input_tokens=3, output_tokens=1))
    assert transition.ending is not None
    assert (transition.ending.stop_reason, transition.ending.text) == ("final_answer", "42")
    assert transition.messages == ((1, AssistantMessage(text="42")),)
    assert transition.snapshot.progress.usage == Usage(input_tokens=3, output_tokens=1)
    assert transition.snapshot.progress.model_calls == 1
    assert transition.delay_secs is None


def test_a_text_that_fits_the_schema_is_the_output() -> None:
    ending = decide(fresh(), answer("{}", output=Output({"a": 1}))).ending
    assert ending is not None
    assert (ending.stop_reason, ending.output, ending.error) == ("output", {"a": 1}, None)


def test_an_output_of_null_is_an_output() -> None:
    ending = decide(fresh(), answer("null", output=Output(None))).ending
    assert ending is not None
    assert ending.stop_reason == "output"


def test_a_filtered_reply_ends_the_run_and_none_of_its_calls_is_kept() -> None:
    reply = asks(call("c0"))
    blocked = replace(reply, message=reply.message.model_copy(update={"stop": "blocked", "text": "I must not"}))
    transition = decide(fresh(), blocked)
    assert transition.ending is not None
    assert (transition.snapshot.status, transition.ending.stop_reason) == ("completed", "content_filter")
    assert transition.ending.text is None
    assert transition.opened == ()
    assert [m.calls for _, m in transition.messages if isinstance(m, AssistantMessage)] == [()]


def test_a_filtered_question_ends_the_run_in_the_same_way() -> None:
    transition = decide(fresh(), failure("provider_content_filtered", models=3, retryable=False))
    assert transition.ending is not None
    assert (transition.snapshot.status, transition.ending.stop_reason) == ("completed", "content_filter")
    assert transition.note is not None


@pytest.mark.parametrize(("output", "text"), [("stop", "stop"), ({"why": "stop"}, None), (None, None)])
def test_a_hook_ends_the_run_with_its_output(output: Any, text: str | None) -> None:
    ending = decide(fresh(phase="recall"), HookEnded(output)).ending
    assert ending is not None
    assert (ending.stop_reason, ending.output, ending.text) == ("hook_end", output, text)


def test_a_hook_that_ends_the_run_after_a_reply_keeps_the_reply_and_its_cost() -> None:
    reply = asks(call("c0"), text="let me see")
    ended = HookEnded("no", reply.message, Usage(input_tokens=5))
    transition = decide(fresh(usage=Usage(input_tokens=1)), ended)
    assert transition.messages == ((1, reply.message.model_copy(update={"calls": ()})),)
    assert transition.snapshot.progress.usage.input_tokens == 6
    assert transition.snapshot.progress.model_calls == 1


def test_a_hook_that_ends_the_run_in_a_batch_keeps_what_came_back() -> None:
    opened = decide(fresh(), asks(call("c0"), call("c1"))).snapshot
    transition = decide(opened, HookEnded("no", results=((1, result("c1")),)))
    assert codes(transition) == {0: "cancelled", 1: "success"}
    assert {position for position, _ in transition.messages} == {2, 3}


@pytest.mark.parametrize("phase", get_args(Phase))
def test_a_fault_ends_the_run_with_its_code(phase: Phase) -> None:
    assert error_code(decide(at(phase), Failed(FAULT))) == "internal_error"


def test_a_tool_fault_that_must_end_the_run_ends_it_with_its_siblings_closed() -> None:
    opened = decide(fresh(), asks(*calls(3))).snapshot
    running = replace(opened, calls=(*opened.calls[:2], replace(opened.calls[2], status="running")))
    fault = ErrorInfo(code="tool_failed", message="tool act: ValueError")
    failed = result("c0", "ValueError", status="error", code="tool_failed")
    transition = decide(running, CallsFinished(((0, failed),), fatal=fault))
    assert error_code(transition) == "tool_failed"
    assert codes(transition) == {0: "tool_failed", 1: "cancelled", 2: "interrupted"}
    assert [position for position, _ in sorted(transition.messages)] == [2, 3, 4]


def test_a_call_that_was_running_at_the_end_is_not_said_to_have_not_run() -> None:
    running = replace(at("tools"), calls=(replace(ONE_CALL[0], status="running"),))
    ((_, text),) = [(i, r.text) for i, r in decide(running, Cancelled()).closed]
    assert "may or may not" in text


# ---------------------------------------------------------------------------------------------- calls and results


def test_each_call_gets_its_place_in_the_asked_order() -> None:
    transition = decide(fresh(), asks(call("a"), bad("b"), call("c"), text="working"))
    assert [(c.index, c.position, c.call_id, c.status) for c in transition.opened] == [
        (0, 2, "a", "pending"),
        (1, 3, "b", "done"),
        (2, 4, "c", "pending"),
    ]
    assert [position for position, _ in transition.messages] == [1, 3]
    assert transition.snapshot.message_count == 5
    assert (transition.snapshot.phase, transition.delay_secs) == ("tools", 0.0)


def test_results_go_to_their_places_whatever_order_they_come_in() -> None:
    opened = decide(fresh(), asks(*calls(3))).snapshot
    finished = CallsFinished(((2, result("c2")), (0, result("c0")), (1, result("c1"))))
    transition = decide(opened, finished)
    placed = [m.result.call_id for _, m in sorted(transition.messages) if isinstance(m, ToolMessage)]
    assert placed == ["c0", "c1", "c2"]
    assert (transition.snapshot.phase, transition.snapshot.calls) == ("recall", ())


def test_two_calls_with_one_id_are_two_calls() -> None:
    opened = decide(fresh(), asks(call("dup"), call("dup"))).snapshot
    transition = decide(opened, CallsFinished(((0, result("dup", "1")), (1, result("dup", "2")))))
    assert [m.result.text for _, m in sorted(transition.messages) if isinstance(m, ToolMessage)] == ["1", "2"]


@pytest.mark.parametrize(
    "code", ["invalid_arguments", "unknown_tool", "limit_exceeded"], ids=["bad arguments", "no such tool", "too deep"]
)
def test_calls_that_cannot_run_are_answered_at_once_and_the_model_is_asked_again(code: str) -> None:
    transition = decide(fresh(), asks(bad("a", code), bad("b", code)))
    assert codes(transition) == {0: code, 1: code}
    assert [c.status for c in transition.opened] == ["done", "done"]
    assert roles(transition) == ["assistant", "tool", "tool"]
    assert (transition.snapshot.phase, transition.delay_secs) == ("recall", 0.0)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("success", None),
        ("error", "tool_error"),
        ("error", "tool_failed"),
        ("error", "timeout"),
        ("error", "interrupted"),
        ("error", "crashed"),
        ("rejected", "rejected"),
    ],
)
def test_whatever_a_call_comes_back_as_the_loop_goes_on(status: Any, code: str | None) -> None:
    back = result("c0", status=status, code=code)
    transition = decide(at("tools"), CallsFinished(((0, back),)))
    assert transition.messages == ((2, ToolMessage(result=back)),)
    assert transition.snapshot.phase == "recall"


def test_a_call_cannot_come_back_twice_nor_stay_out() -> None:
    opened = decide(fresh(), asks(*calls(2))).snapshot
    both = ((0, result("c0")), (1, result("c1")))
    for wrong in (both[:1], (*both, both[0]), ((0, result("c0")), (5, result("c5"))), ()):
        with pytest.raises(UnexpectedOutcomeError):
            decide(opened, CallsFinished(wrong))
    with pytest.raises(UnexpectedOutcomeError):
        decide(opened.close_call(0), HookEnded("no", results=both[:1]))
    assert decide(opened.close_call(0).close_call(1), CallsFinished()).snapshot.phase == "recall"


def test_a_batch_without_calls_does_not_wait_for_any() -> None:
    assert decide(at("tools").close_call(0), BatchOpened()).snapshot.phase == "recall"


def test_an_opened_batch_is_continued_by_its_calls_and_not_by_time() -> None:
    transition = decide(at("tools"), BatchOpened())
    assert (transition.delay_secs, transition.ending) == (None, None)


# ---------------------------------------------------------------------------------------------- review


def test_a_call_that_needs_a_person_stops_the_whole_turn() -> None:
    opened = decide(fresh(), asks(call("free"), call("gated", review=True), call("gated2", review=True)))
    assert opened.snapshot.phase == "review"
    waits = decide(opened.snapshot, Reviewed((1, 2)))
    assert (waits.snapshot.status, waits.delay_secs) == ("waiting", None)
    assert [c.call_id for c in waits.approvals] == ["gated", "gated2"]
    assert decide(waits.snapshot, Decided()).snapshot.phase == "tools"


def test_a_bad_call_is_not_put_before_a_person() -> None:
    assert decide(fresh(), asks(call("free"), bad("gated"))).snapshot.phase == "tools"


def test_a_turn_of_which_all_was_rejected_goes_back_to_the_model() -> None:
    waits = decide(decide(fresh(), asks(call("gated", review=True))).snapshot, Reviewed((0,)))
    assert decide(waits.snapshot.close_call(0), Decided()).snapshot.phase == "recall"


@pytest.mark.parametrize("gated", [(), (9,)])
def test_a_review_that_asks_nobody_lets_the_batch_run(gated: tuple[int, ...]) -> None:
    transition = decide(at("review"), Reviewed(gated))
    assert (lead(transition), transition.delay_secs, transition.approvals) == ("tools", 0.0, ())


def test_a_waiting_run_that_is_cancelled_answers_its_calls() -> None:
    waits = decide(decide(fresh(), asks(call("a"), call("b", review=True))).snapshot, Reviewed((1,)))
    ended = decide(waits.snapshot, Cancelled())
    assert codes(ended) == {0: "cancelled", 1: "cancelled"}
    assert roles(ended) == ["tool", "tool"]


# ---------------------------------------------------------------------------------------------- limits


def test_the_defaults_are_those_of_the_specification() -> None:
    assert Limits().model_dump() == {
        "model_calls": 25,
        "tool_calls": 200,
        "tokens": None,
        "usd": None,
        "run_secs": None,
        "tool_timeout_secs": 60.0,
    }
    assert (MAX_CALLS_PER_REPLY, MAX_LANES, MAX_DEPTH, MAX_RESULT_CHARS) == (32, 8, 8, 100_000)


def turns(snapshot: Snapshot, count: int) -> Transition:
    """``count`` replies with one call each, every one of them answered."""
    for _ in range(count):
        opened = decide(snapshot, asks(call("c0")))
        transition = decide(opened.snapshot, CallsFinished(((0, result("c0")),)))
        snapshot = replace(transition.snapshot, phase="model")
    return transition


def test_the_25th_model_call_may_answer_and_no_26th_is_made() -> None:
    before = turns(fresh(), 24)
    assert before.ending is None
    last = replace(before.snapshot, phase="model")
    assert decide(last, answer()).snapshot.status == "completed"
    transition = turns(last, 1)
    assert transition.ending is not None
    assert transition.ending.error is not None
    assert transition.ending.error.code == "limit_exceeded"
    assert transition.ending.error.details == {"limit": "model_calls", "value": 25}
    assert transition.snapshot.progress.model_calls == 25
    assert roles(transition) == ["tool"]


def test_retries_of_a_model_call_do_not_count() -> None:
    snapshot = fresh()
    for _ in range(MODEL_TRIES - 1):
        snapshot = decide(snapshot, failure()).snapshot
    assert snapshot.progress.model_calls == 0
    assert decide(snapshot, answer()).snapshot.progress.model_calls == 1


@pytest.mark.parametrize(("used", "runs"), [(192, True), (193, False)])
def test_a_reply_of_eight_at_the_border_of_200_tool_calls_runs_whole_or_not_at_all(used: int, runs: bool) -> None:
    transition = decide(fresh(tool_calls=used), asks(*calls(8)))
    if runs:
        assert (transition.snapshot.phase, transition.snapshot.progress.tool_calls) == ("tools", 200)
        return
    assert transition.ending is not None
    assert transition.ending.error is not None
    assert transition.ending.error.details == {"limit": "tool_calls", "value": 200, "used": 193, "asked": 8}
    assert transition.snapshot.progress.tool_calls == 193
    assert set(codes(transition).values()) == {"cancelled"}
    assert [c.status for c in transition.opened] == ["done"] * 8
    assert roles(transition) == ["assistant"] + ["tool"] * 8


@pytest.mark.parametrize(("asked", "taken"), [(32, 32), (33, 32), (40, 32), (200, 32)])
def test_32_calls_of_one_reply_are_taken_and_the_others_answered_as_skipped(asked: int, taken: int) -> None:
    transition = decide(fresh(), asks(*calls(asked)))
    assert len(transition.snapshot.pending) == taken
    assert transition.snapshot.progress.tool_calls == taken
    assert codes(transition) == dict.fromkeys(range(32, asked), "skipped")
    assert len(transition.messages) == 1 + asked - taken
    assert transition.snapshot.message_count == 2 + asked


@pytest.mark.parametrize(("used", "ends"), [(99, False), (100, True)])
def test_tokens_are_checked_before_each_model_call(used: int, ends: bool) -> None:
    limits = Limits(tokens=100)
    opened = decide(fresh(limits=limits), asks(call("c0"), input_tokens=used - 9, output_tokens=9))
    transition = decide(opened.snapshot, CallsFinished(((0, result("c0")),)))
    assert (error_code(transition) == "limit_exceeded") == ends
    # The answer itself may go beyond.
    assert decide(fresh(limits=limits), answer(input_tokens=500)).snapshot.status == "completed"


def test_unknown_usage_counts_as_nothing_and_stays_unknown() -> None:
    transition = decide(fresh(limits=Limits(tokens=1)), asks(bad("c0")))
    assert transition.ending is None
    assert transition.snapshot.progress.usage == Usage()


def test_a_call_for_the_final_answer_is_no_tool_call() -> None:
    wrong = replace(bad("c0", "invalid_arguments"), kind="output")
    transition = decide(fresh(limits=Limits(tool_calls=0)), asks(wrong, output=Output(problem="no", index=0)))
    assert (transition.ending, transition.snapshot.progress.tool_calls) == (None, 0)


# ---------------------------------------------------------------------------------------------- structured output


def test_the_second_invalid_answer_fails_the_run() -> None:
    problem = Output(problem="amount: required")
    first = decide(fresh(), answer("{}", output=problem))
    assert first.snapshot.phase == "recall"
    assert roles(first) == ["assistant", "user"]
    note = first.messages[1][1]
    assert isinstance(note, UserMessage)
    assert "amount: required" in note.text
    second = decide(replace(first.snapshot, phase="model"), answer("{}", output=problem))
    assert error_code(second) == "output_invalid"
    assert second.ending is not None
    assert second.ending.error is not None
    assert "amount: required" in second.ending.error.message


def test_invalid_answers_in_calls_count_too_and_their_result_is_the_note() -> None:
    wrong = replace(bad("c0", "invalid_arguments"), kind="output")
    asked = asks(wrong, output=Output(problem="no", index=0))
    first = decide(fresh(), asked)
    assert roles(first) == ["assistant", "tool"]
    assert error_code(decide(replace(first.snapshot, phase="model"), asked)) == "output_invalid"


def test_beside_a_valid_final_answer_nothing_runs_and_every_call_is_answered() -> None:
    final = call("f", "final_answer", kind="output")
    planned = (
        bad("x", "invalid_arguments"),
        final,
        call("mail"),
        call("gated", review=True),
        replace(final, call_id="g"),
    )
    transition = decide(fresh(), asks(*planned, output=Output({"a": 1}, index=1)))
    assert transition.ending is not None
    assert (transition.ending.stop_reason, transition.ending.output) == ("output", {"a": 1})
    assert codes(transition) == {0: "invalid_arguments", 1: "success", 2: "skipped", 3: "skipped", 4: "skipped"}
    assert (transition.approvals, transition.snapshot.calls) == ((), ())


def test_beside_an_invalid_final_answer_the_other_calls_run() -> None:
    wrong = replace(bad("f", "invalid_arguments"), kind="output")
    transition = decide(fresh(), asks(wrong, call("mail"), output=Output(problem="no", index=0)))
    assert [c.call_id for c in transition.snapshot.pending] == ["mail"]
    assert transition.snapshot.progress.tool_calls == 1


def test_beside_the_last_invalid_final_answer_nothing_runs() -> None:
    wrong = replace(bad("f", "invalid_arguments"), kind="output")
    asked = asks(wrong, call("mail"), output=Output(problem="no", index=0))
    transition = decide(fresh(invalid_outputs=1), asked)
    assert error_code(transition) == "output_invalid"
    assert codes(transition) == {0: "invalid_arguments", 1: "cancelled"}


def test_no_note_is_left_for_a_model_that_will_not_be_asked() -> None:
    last = fresh(limits=Limits(model_calls=1))
    for reply in (answer("{}", output=Output(problem="no")), answer("")):
        transition = decide(last, reply)
        assert error_code(transition) == "limit_exceeded"
        assert "user" not in roles(transition)
        assert transition.snapshot.message_count == 1 + len(transition.messages)


# ---------------------------------------------------------------------------------------------- empty replies


def test_empty_replies_are_asked_again_a_bounded_number_of_times_and_never_kept() -> None:
    snapshot = fresh()
    for number in range(1, MAX_EMPTY_REPLIES + 1):
        transition = decide(snapshot, answer("  \n"))
        assert roles(transition) == ["user"]
        assert transition.snapshot.progress.model_calls == number
        snapshot = replace(transition.snapshot, phase="model")
    assert error_code(decide(snapshot, answer(""))) == "provider_reply_invalid"
    assert roles(decide(snapshot, answer(""))) == []


def test_an_empty_reply_that_was_cut_off_says_what_to_change() -> None:
    transition = decide(fresh(empty_replies=MAX_EMPTY_REPLIES), answer("", stop="length"))
    assert transition.ending is not None
    assert transition.ending.error is not None
    assert "max_tokens" in transition.ending.error.message


def test_a_reply_with_calls_starts_the_count_of_empty_ones_again() -> None:
    assert decide(fresh(empty_replies=2), asks(call("c0"))).snapshot.progress.empty_replies == 0


# ---------------------------------------------------------------------------------------------- a failing model


def test_a_passing_fault_is_tried_again_with_growing_waits_then_the_run_fails() -> None:
    snapshot, waits = fresh(), []
    for _ in range(MODEL_TRIES - 1):
        transition = decide(snapshot, failure())
        assert (transition.snapshot.phase, transition.ending) == ("model", None)
        waits.append(transition.delay_secs)
        snapshot = transition.snapshot
    assert waits == [0.5, 1.0]
    assert error_code(decide(snapshot, failure())) == "provider_overloaded"


def test_the_fallback_models_are_tried_in_their_order_each_with_all_its_tries() -> None:
    snapshot, tried = fresh(), []
    while True:
        tried.append(snapshot.progress.model_index)
        transition = decide(snapshot, failure(models=3))
        if transition.ending:
            break
        snapshot = transition.snapshot
    assert tried == [0] * MODEL_TRIES + [1] * MODEL_TRIES + [2] * MODEL_TRIES


def test_after_a_reply_the_first_model_is_asked_again() -> None:
    progress = decide(fresh(model_index=2, model_tries=1), asks(call("c0"))).snapshot.progress
    assert (progress.model_index, progress.model_tries) == (0, 0)


@pytest.mark.parametrize(
    ("code", "falls_back"),
    [
        ("provider_quota_exceeded", True),
        ("provider_model_not_found", True),
        ("provider_auth_failed", True),
        ("provider_context_too_long", True),
        ("provider_request_rejected", False),
    ],
)
def test_a_permanent_fault_is_never_tried_again_on_the_same_model(code: str, falls_back: bool) -> None:
    transition = decide(fresh(), failure(code, models=2, retryable=False))
    if falls_back:
        assert (transition.snapshot.progress.model_index, transition.delay_secs) == (1, 0.0)
    assert (transition.ending is None) == falls_back
    assert error_code(decide(fresh(), failure(code, retryable=False))) == code


def test_a_wait_beyond_the_cap_goes_to_the_fallback_at_once_or_fails_at_once() -> None:
    hopeless = failure(retry_after=LONGEST_HINT_SECS + 1, models=2)
    transition = decide(fresh(), hopeless)
    assert (transition.snapshot.progress.model_index, transition.delay_secs) == (1, 0.0)
    assert error_code(decide(fresh(), replace(hopeless, models=1))) == "provider_overloaded"


def test_a_long_wait_is_left_for_a_free_fallback_and_a_short_one_or_one_without_it_is_waited_for() -> None:
    long, short = failure(retry_after=60.0, models=2, has_free=True), failure(retry_after=2.0, models=2, has_free=True)
    transition = decide(fresh(), long)
    assert (transition.snapshot.progress.model_index, transition.delay_secs) == (1, 0.0)
    for waits, secs in ((short, 2.0), (replace(long, has_free=False), 60.0), (replace(long, models=1), 60.0)):
        transition = decide(fresh(), waits)
        assert (transition.snapshot.progress.model_index, transition.delay_secs) == (0, secs)


def test_a_run_waits_for_its_turn_where_that_is_later_than_what_the_provider_asks_for() -> None:
    progress = decide(fresh(), failure(retry_after=2.0, turn_secs=7.0, cooldown=4))
    assert (progress.delay_secs, progress.snapshot.progress.cooldown) == (7.0, 4)
    # Too late for this model all the same.
    assert error_code(decide(fresh(model_tries=2), failure(turn_secs=7.0, cooldown=4))) == "provider_overloaded"


def test_waiting_for_others_is_no_try_and_the_turn_is_of_that_model_alone() -> None:
    waiting = decide(fresh(model_tries=1), CoolingDown(0, 3.0, 9))
    progress = waiting.snapshot.progress
    assert (waiting.delay_secs, progress.model_tries, progress.cooldown) == (3.0, 1, 9)
    other = decide(fresh(model_tries=1, cooldown=9), CoolingDown(1, 3.0, 2)).snapshot.progress
    assert (other.model_index, other.model_tries, other.cooldown) == (1, 0, 2)
    after = decide(waiting.snapshot, answer()).snapshot.progress
    assert (after.cooldown, after.model_tries) == (0, 0)
    gone = decide(waiting.snapshot, failure("provider_quota_exceeded", retryable=False, models=2)).snapshot.progress
    assert (gone.model_index, gone.cooldown) == (1, 0)


def test_a_failure_of_another_model_than_the_one_whose_turn_it_was_is_its_own_first_try() -> None:
    progress = decide(fresh(model_tries=2), failure(models=2, index=1)).snapshot.progress
    assert (progress.model_index, progress.model_tries) == (1, 1)


def test_the_words_of_the_models_that_were_given_up_are_kept_for_the_end_and_bounded() -> None:
    snapshot = fresh()
    for number in range(3):
        error = ErrorInfo(code="provider_quota_exceeded", message=f"model {number} " + "x" * 3000)
        failed = ModelFailed(error, False, None, models=3, jitter=0.0, provider="p", model=f"m{number}")
        transition = decide(snapshot, failed)
        snapshot = transition.snapshot
    ending = transition.ending
    assert ending is not None
    assert ending.error is not None
    assert [each["model"] for each in ending.error.details["models"]] == ["m0", "m1", "m2"]
    assert all(f"p:m{number}: model {number}" in ending.error.message for number in range(3))
    assert len(ending.error.message) < 2000
    assert load_progress(dump_progress(snapshot.progress)).given_up == snapshot.progress.given_up


def test_every_failed_try_leaves_a_note_for_the_events() -> None:
    note = decide(fresh(model_tries=1), failure()).note
    assert note == {"code": "provider_overloaded", "message": "it failed", "try": 2, "wait_secs": 1.0}


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (None, 0.5),
        (0.0, 0.5),
        (-1.0, 0.5),
        (float("nan"), 0.5),
        (0.1, 0.5),
        (2.0, 2.0),
        (120.0, 120.0),
        (120.1, None),
        (86400.0, None),
        (float("inf"), None),
    ],
)
def test_the_providers_wish_is_kept_where_it_makes_sense(hint: float | None, expected: float | None) -> None:
    assert wait_secs(1, hint, 0.0) == expected


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_jitter_never_shortens_a_wish_and_takes_at_most_a_quarter_off_a_backoff(jitter: float) -> None:
    assert 0.375 < backoff_secs(1, jitter) <= 0.5
    assert 6.0 < backoff_secs(50, jitter) <= 8.0
    wait = wait_secs(1, 10.0, jitter)
    assert wait is not None
    assert 10.0 <= wait <= 11.0


# ---------------------------------------------------------------------------------------------- cancel


STEPS: list[tuple[str, Snapshot, Outcome]] = [
    ("a recall", at("recall"), Recalled()),
    ("an answer", at("model"), answer()),
    ("calls", at("model"), asks(call("a"), bad("b"))),
    ("a retry", at("model"), failure()),
    ("a review", at("review"), Reviewed((0,))),
    ("a decision", at("review", "waiting"), Decided()),
    ("a batch", at("tools"), BatchOpened()),
    ("a result", at("tools"), CallsFinished(((0, result("c0")),))),
    ("a fault", at("tools"), Failed(FAULT)),
]


@pytest.mark.parametrize(("snapshot", "outcome"), [s[1:] for s in STEPS], ids=[s[0] for s in STEPS])
def test_a_cancelled_step_keeps_what_it_brought_and_nothing_follows(snapshot: Snapshot, outcome: Outcome) -> None:
    step = decide(snapshot, outcome)
    ended = cancel(step)
    assert ended.snapshot.status == "cancelled"
    assert error_code(ended) == "cancelled"
    assert set(step.messages) <= set(ended.messages)
    assert (ended.approvals, ended.delay_secs, ended.snapshot.calls) == ((), None, ())
    assert ended.snapshot.seq == step.snapshot.seq
    back = [index for index, _ in ended.closed]
    assert len(set(back)) == len(back)
    assert {c.index for c in ended.opened} <= set(back)
    assert all(c.status == "done" for c in ended.opened)
