"""Whatever happens to a run in whatever order: the promises that its transcript and its counts keep."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agentq.errors import ErrorInfo
from agentq.limits import MAX_CALLS_PER_REPLY, Limits
from agentq.messages import AssistantMessage, Message, Stop, ToolMessage, ToolResult, Usage
from agentq.outcomes import (
    BatchOpened,
    CallsFinished,
    Cancelled,
    CoolingDown,
    Decided,
    Failed,
    HookEnded,
    Outcome,
    Output,
    PlannedCall,
    Recalled,
    Replied,
    Reviewed,
    Transition,
)
from agentq.run import OpenCall, Progress, Snapshot, dump_progress, load_progress
from agentq.transition import cancel, decide
from tests.unit.loop import answer, asks, bad, call, failure, fresh, result

FAULT = ErrorInfo(code="internal_error", message="broken")
ENDS: list[Outcome] = [HookEnded("no"), Failed(FAULT), Cancelled()]
ENDS_IN_A_BATCH: list[Outcome] = [CallsFinished(fatal=FAULT), HookEnded("no"), Cancelled()]
COUNTS = st.one_of(st.integers(0, 5), st.sampled_from([31, 32, 33, 40]))


class Story:
    """A run under test, with the database's part done by hand: what was stored, and what is still out."""

    def __init__(self, limits: Limits) -> None:
        self.snapshot = fresh(limits=limits, phase="recall", status="queued")
        self.stored: dict[int, Message] = {}
        self.counts = {"model_calls": 0, "tool_calls": 0}

    def take(self, transition: Transition) -> None:
        before, after = self.snapshot, transition.snapshot
        assert after.seq == before.seq + 1
        for position, message in transition.messages:
            assert position not in self.stored
            assert 1 <= position < after.message_count
            self.stored[position] = message
        assert after.message_count >= before.message_count
        assert {c.index for c in transition.approvals} <= {c.index for c in after.pending}
        new, back = {c.index for c in transition.opened}, {index for index, _ in transition.closed}
        assert {c.index for c in transition.opened if c.status == "done"} == new & back
        assert (transition.ending is not None) == after.is_terminal
        assert not (after.is_terminal and (after.calls or transition.delay_secs is not None))
        assert load_progress(dump_progress(after.progress)) == after.progress
        self.snapshot = after

    def store_result(self, call: OpenCall, back: ToolResult) -> None:
        """What a lane, or a rejection, commits by itself."""
        assert call.position not in self.stored
        self.stored[call.position] = ToolMessage(result=back)
        self.snapshot = self.snapshot.close_call(call.index)

    def check_transcript(self) -> None:
        """No gaps, and each call of each reply answered once, in its order, right behind the reply."""
        assert sorted(self.stored) == list(range(1, self.snapshot.message_count))
        messages = [self.stored[position] for position in sorted(self.stored)]
        waiting: list[str] = []
        for message in messages:
            if waiting:
                assert isinstance(message, ToolMessage)
                assert message.result.call_id == waiting.pop(0)
            else:
                assert not isinstance(message, ToolMessage)
                waiting = [c.id for c in message.calls] if isinstance(message, AssistantMessage) else []
        assert waiting == []


@st.composite
def replies(draw: st.DrawFn) -> Replied:
    count = draw(COUNTS)
    usage: dict[str, Any] = {"input_tokens": draw(st.integers(0, 50))} if draw(st.booleans()) else {}
    if count == 0:
        text = draw(st.sampled_from(["", " ", "answer"]))
        output = draw(st.sampled_from([None, Output({"a": 1}), Output(problem="no")])) if text.strip() else None
        stop: Stop = draw(st.sampled_from(["final", "length", "blocked"]))
        return answer(text, stop=stop, output=output, **usage)
    planned: list[PlannedCall] = []
    for index in range(count):
        kind = draw(st.sampled_from(["run", "run", "gated", "bad"]))
        name = draw(st.sampled_from(["dup", f"c{index}"]))
        planned.append(bad(name) if kind == "bad" else call(name, review=kind == "gated"))
    output = None
    if draw(st.integers(0, 3)) == 0:
        index = draw(st.integers(0, min(count, MAX_CALLS_PER_REPLY) - 1))
        wrong = draw(st.booleans())
        planned[index] = replace(bad("final"), kind="output") if wrong else call("final", kind="output")
        output = Output(problem="no", index=index) if wrong else Output({"a": 1}, index=index)
    return asks(*planned, output=output, **usage)


def endings(draw: Any, common: Outcome) -> Outcome:
    """Mostly what belongs to the phase, now and then an end."""
    drawn: Outcome = draw(st.sampled_from([common] * 12 + ENDS))
    return drawn


def finish_batch(draw: Any, story: Story) -> Outcome:
    """A step that runs its only call brings its result; of a batch, every call commits by itself."""
    out = draw(st.permutations(story.snapshot.pending))
    if len(out) == 1:
        fatal = draw(st.sampled_from([None, None, FAULT]))
        return CallsFinished(((out[0].index, result(out[0].call_id)),), fatal=fatal)
    story.take(decide(story.snapshot, BatchOpened()))
    for number, open_call in enumerate(out):
        story.store_result(open_call, result(open_call.call_id))
        if draw(st.integers(0, 30)) == 0 and number < len(out) - 1:
            ends: Outcome = draw(st.sampled_from(ENDS_IN_A_BATCH))
            return ends
    return CallsFinished()


def next_outcome(draw: Any, story: Story) -> Outcome:
    snapshot = story.snapshot
    match snapshot.phase:
        case "recall":
            return endings(draw, Recalled(("a fact",)))
        case "model" if draw(st.integers(0, 5)) == 0:
            retryable, hint = draw(st.booleans()), draw(st.sampled_from([None, 1.0, 1e9]))
            index, has_free = draw(st.sampled_from([None, 0, 1])), draw(st.booleans())
            more = {"index": index, "has_free": has_free, "cooldown": draw(st.integers(0, 2)), "turn_secs": 3.0}
            if draw(st.integers(0, 2)) == 0:
                return CoolingDown(index or 0, 3.0, 1)
            return failure(models=2, retryable=retryable, retry_after=hint, **more)
        case "model":
            return endings(draw, draw(replies()))
        case "review" if snapshot.status == "waiting":
            for gated in [c for c in snapshot.pending if c.needs_approval and draw(st.booleans())]:
                story.store_result(gated, result(gated.call_id, status="rejected", code="rejected"))
            return endings(draw, Decided())
        case "review":
            return endings(draw, Reviewed(tuple(c.index for c in snapshot.pending if c.needs_approval)))
        case _:
            return finish_batch(draw, story)


def count(story: Story, before: Snapshot, outcome: Outcome, transition: Transition) -> None:
    replied = isinstance(outcome, Replied) or (isinstance(outcome, HookEnded) and outcome.message is not None)
    story.counts["model_calls"] += replied
    asked = sum(c.kind != "output" for c in transition.opened[:MAX_CALLS_PER_REPLY])
    if taken(transition):
        story.counts["tool_calls"] += asked
    progress = transition.snapshot.progress
    assert {"model_calls": progress.model_calls, "tool_calls": progress.tool_calls} == story.counts
    limits = before.limits
    assert progress.model_calls <= limits.model_calls
    assert progress.tool_calls <= limits.tool_calls


def taken(transition: Transition) -> bool:
    """Whether the calls of this reply count: not where the run ended, unless only because of its model calls."""
    error = transition.ending.error if transition.ending else None
    return transition.ending is None or (error is not None and error.details.get("limit") in ("model_calls", "tokens"))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 6), st.integers(0, 60), st.none() | st.integers(1, 200))
def test_any_run_keeps_its_promises(data: st.DataObject, model_calls: int, tool_calls: int, tokens: int | None) -> None:
    story = Story(Limits(model_calls=model_calls, tool_calls=tool_calls, tokens=tokens))
    for _ in range(80):
        before = story.snapshot
        outcome = next_outcome(data.draw, story)
        transition = decide(story.snapshot, outcome)
        if data.draw(st.integers(0, 25)) == 0:
            story.take(cancel(transition))
            break
        count(story, before, outcome, transition)
        story.take(transition)
        if story.snapshot.is_terminal:
            break
    assert story.snapshot.is_terminal
    story.check_transcript()


def test_adding_usage_adds_what_is_known_and_keeps_the_unknown_unknown() -> None:
    one, two = Usage(input_tokens=1, output_tokens=2), Usage(input_tokens=3, reasoning_tokens=4)
    assert one + two == two + one == Usage(input_tokens=4, output_tokens=2, reasoning_tokens=4)
    assert one + Usage() == one
    assert ((one + two).total, Usage().total) == (6, 0)


def test_a_stored_progress_says_its_version_though_its_defaults_are_left_out() -> None:
    assert dump_progress(Progress()) == '{"version":1}'
    assert dump_progress(Progress(limits=Limits())) == '{"version":1,"limits":{}}'
    with pytest.raises(ValidationError):
        load_progress('{"version":2}')
