"""The audit finds what it is for: each violation, put into evidence that is otherwise good, is the only one found."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from agentq.messages import AssistantMessage, Message, ToolCall, ToolMessage, ToolResult, UserMessage
from tests.chaos.agents import final_text
from tests.chaos.audit import Verdict, audit
from tests.chaos.evidence import Effect, Evidence, FoundCall, FoundEvent, FoundRun
from tests.chaos.faults import Fault
from tests.chaos.load import Asked

RUN = "run_1"


def slow_tool() -> Evidence:
    """A run of two turns, an unsafe call and a safe one, as a good end leaves it."""
    script = [("pay", "c0"), ("look", "c1")]
    messages: list[Message] = [UserMessage(text="go")]
    calls, effects = [], []
    for turn, (tool, call_id) in enumerate(script):
        messages.append(AssistantMessage(calls=(ToolCall(id=call_id, name=tool, arguments="{}"),), stop="tool_calls"))
        messages.append(ToolMessage(result=ToolResult(call_id=call_id, name=tool, text="ok")))
        call = FoundCall(
            RUN,
            turn,
            0,
            len(messages) - 1,
            call_id,
            tool,
            "tool",
            "done",
            "success",
            "retry" if tool == "look" else "report",
            1,
            False,
            1.0,
            9.0,
        )
        calls.append(call)
        effects += [Effect(kind, call.key, tool, 1, 2.0) for kind in ("begin", "end")]
    messages.append(AssistantMessage(text=final_text("slow_tool", 2)))
    events = [FoundEvent(1, "run.enqueued", {}), FoundEvent(2, "step", {"phase": "model"}, 5.0)]
    run = FoundRun(
        RUN,
        "slow_tool",
        "completed",
        message_count=len(messages),
        event_count=len(events),
        messages=tuple(enumerate(messages)),
        events=tuple(events),
    )
    return Evidence(Asked(agents={RUN: "slow_tool"}), {RUN: run}, calls, effects)


def change_run(evidence: Evidence, **changes: object) -> None:
    evidence.runs[RUN] = replace(evidence.runs[RUN], **changes)  # type: ignore[arg-type]


def change_call(evidence: Evidence, number: int, **changes: object) -> None:
    evidence.calls[number] = replace(evidence.calls[number], **changes)  # type: ignore[arg-type]


def begin_again(evidence: Evidence, number: int) -> None:
    evidence.effects.append(replace(evidence.effects[2 * number], attempt=2))


def interrupt(evidence: Evidence, **event: object) -> None:
    """The unsafe call was interrupted; its event is the last one."""
    change_call(evidence, 0, code="interrupted")
    last = FoundEvent(3, "step", {"code": "interrupted", **event}, 9.0)
    change_run(evidence, events=(*evidence.runs[RUN].events, last), event_count=3)


def only(verdict: Verdict, kind: str) -> str:
    found = {name: getattr(verdict, name) for name in ("lost", "doubled", "wrong")}
    assert {name for name, lines in found.items() if lines} == {kind}, found
    assert not verdict.is_good
    return "\n".join(found[kind])


def test_a_good_end_is_good_and_counted() -> None:
    evidence = slow_tool()
    begin_again(evidence, 1)
    verdict = audit(evidence)
    assert verdict.is_good
    assert verdict.counts["runs completed"] == 1
    assert verdict.counts["calls success"] == 2
    assert (verdict.counts["unsafe effects"], verdict.counts["safe effects"]) == (1, 1)
    assert verdict.counts["safe effects repeated"] == 1


def test_an_unsafe_effect_that_was_begun_twice_is_doubled() -> None:
    evidence = slow_tool()
    begin_again(evidence, 0)
    assert only(audit(evidence), "doubled") == f"call {RUN}:0:0 was begun 2 times"


def test_a_run_that_was_accepted_and_is_gone_is_lost() -> None:
    evidence = slow_tool()
    evidence.asked.agents["run_2"] = "loop"
    assert only(audit(evidence), "lost") == "run run_2 was accepted and is gone"


@pytest.mark.parametrize("status", ["queued", "running", "waiting"])
def test_a_run_that_did_not_end_is_lost(status: str) -> None:
    evidence = slow_tool()
    change_run(evidence, status=status)
    assert f"is still {status}" in only(audit(evidence), "lost")


def test_a_call_that_did_not_come_back_is_lost() -> None:
    evidence = slow_tool()
    change_call(evidence, 0, status="running", code=None)
    assert "is still running" in only(audit(evidence), "lost")


def test_a_call_without_its_result_is_lost() -> None:
    evidence = slow_tool()
    evidence.calls.append(
        replace(evidence.calls[1], index=1, call_id="c2", position=9, code="interrupted", on_unknown="report")
    )
    interrupt(evidence, worker="steps-7@vm:7")
    evidence.faults.append(Fault("worker killed", 5.0, 5.0, frozenset({7})))
    change_call(evidence, 0, code="success")
    assert "has no result at 9" in only(audit(evidence), "lost")


@pytest.mark.parametrize(
    ("on_unknown", "lines", "frozen", "is_found"),
    [
        ("probe", ["begin"], False, False),
        ("ask", ["begin"], False, False),
        ("probe", ["begin", "end"], False, True),
        ("ask", ["begin", "end"], False, True),
        ("ask", ["begin", "end"], True, False),
    ],
)
def test_an_effect_that_is_looked_for_may_be_begun_again_and_must_not_happen_again(
    on_unknown: str, lines: list[str], frozen: bool, is_found: bool
) -> None:
    evidence = slow_tool()
    change_call(evidence, 0, on_unknown=on_unknown)
    key = evidence.calls[0].key
    evidence.effects += [Effect(kind, key, "pay", 2, 6.0, pid=7) for kind in lines]
    if frozen:
        evidence.faults.append(Fault("worker frozen", 2.0, 6.0, frozenset({7})))
    verdict = audit(evidence)
    assert verdict.is_good if not is_found else "happened 2 times" in only(verdict, "doubled")


def test_a_success_that_never_happened_is_lost() -> None:
    evidence = slow_tool()
    evidence.effects.pop()
    assert "is a success that never happened" in only(audit(evidence), "lost")


def with_swapped_messages(evidence: Evidence) -> None:
    messages = [message for _, message in evidence.runs[RUN].messages]
    messages[2], messages[4] = messages[4], messages[2]
    change_run(evidence, messages=tuple(enumerate(messages)))
    change_call(evidence, 0, position=4)
    change_call(evidence, 1, position=2)


def with_another_answer(evidence: Evidence) -> None:
    messages = evidence.runs[RUN].messages
    change_run(evidence, messages=(*messages[:-1], (5, AssistantMessage(text=final_text("slow_tool", 1)))))


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (with_swapped_messages, "answered [['c1'], ['c0']]"),
        (with_another_answer, "the last message is"),
        (lambda evidence: change_run(evidence, message_count=7), "of 7"),
        (lambda evidence: change_run(evidence, event_count=3), "events [1, 2] of 3"),
        (lambda evidence: change_run(evidence, status="cancelled"), "nobody had asked"),
        (lambda evidence: change_run(evidence, status="failed", error='{"code":"crashed"}'), "failed"),
        (lambda evidence: change_run(evidence, is_held=True), "is still held"),
        (lambda evidence: change_call(evidence, 1, is_held=True), "is still held"),
        (lambda evidence: change_call(evidence, 1, code="timeout"), "came back as timeout"),
        (lambda evidence: change_call(evidence, 1, code="crashed"), "came back as crashed"),
        (lambda evidence: change_call(evidence, 0, tool="pay_gated", code="rejected"), "was rejected and happened"),
        (lambda evidence: setattr(evidence, "pending_approvals", 2), "2 approvals are pending"),
        (lambda evidence: change_call(evidence, 0, code="interrupted"), "its events tell of 0"),
    ],
)
def test_what_is_wrong_is_found(spoil: Callable[[Evidence], None], found: str) -> None:
    evidence = slow_tool()
    spoil(evidence)
    assert found in only(audit(evidence), "wrong")


@pytest.mark.parametrize(
    ("fault", "is_explained"),
    [
        (Fault("worker killed", 5.0, 5.0, frozenset({7})), True),
        (Fault("pool process killed", 5.0, 5.0, frozenset({8})), True),
        (Fault("worker killed", 5.0, 5.0, frozenset({9})), False),
        (Fault("worker killed", 9.5, 9.5, frozenset({7})), False),
        (Fault("Postgres crashed", 5.0, 6.0), True),
        (Fault("Redis flushed", 5.0, 6.0), False),
    ],
)
def test_an_interruption_needs_a_fault_before_it_of_its_own_worker_or_of_the_database(
    fault: Fault, is_explained: bool
) -> None:
    evidence = slow_tool()
    interrupt(evidence, lost_worker="tools-7@vm:7/8", worker="steps-5@vm:5")
    evidence.faults.append(fault)
    verdict = audit(evidence)
    assert verdict.is_good if is_explained else "there was no fault" in only(verdict, "wrong")


def test_a_run_may_fail_once_its_step_has_lost_three_workers() -> None:
    evidence = slow_tool()
    lost = [FoundEvent(number, "step.recovered", {"lost_worker": "steps-7@vm:7"}) for number in (3, 4, 5)]
    change_run(evidence, status="failed", error='{"code":"crashed"}', event_count=5)
    change_run(evidence, events=(*evidence.runs[RUN].events, *lost))
    assert audit(evidence).is_good


def test_a_cancelled_run_and_what_works_for_it_may_be_cancelled() -> None:
    evidence = slow_tool()
    child = replace(evidence.runs[RUN], id="run_2", status="cancelled", parent=RUN)
    change_run(evidence, status="cancelled")
    evidence.runs["run_2"] = child
    evidence.asked.cancels.add(RUN)
    assert audit(evidence).is_good
