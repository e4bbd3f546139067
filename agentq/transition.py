"""The state machine: ``decide(snapshot, outcome)`` says what a step changed and what comes next. No I/O, no clock."""

from collections.abc import Sequence
from typing import Any, assert_never

from agentq.errors import ErrorInfo
from agentq.limits import MAX_CALLS_PER_REPLY, MAX_EMPTY_REPLIES, MAX_INVALID_OUTPUTS
from agentq.messages import AssistantMessage, Message, ToolMessage, ToolResult, Usage, UserMessage
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
    PlannedCall,
    Recalled,
    Replied,
    Reviewed,
    Transition,
)
from agentq.reached import over_limit, too_many_calls
from agentq.retry import LONG_WAIT_SECS, wait_secs
from agentq.run import Ending, OpenCall, Phase, Snapshot, Status
from agentq.text import cut
from agentq.values import replace

# What is kept of the words of a model that was given up.
MAX_WORD_CHARS = 500


class UnexpectedOutcomeError(Exception):
    """The outcome does not belong to the phase: a fault of ours, never of a user."""


_ALLOWED: dict[Phase, tuple[type, ...]] = {
    "recall": (Recalled, HookEnded, Failed, Cancelled),
    "model": (Replied, ModelFailed, CoolingDown, HookEnded, Failed, Cancelled),
    "review": (Reviewed, Decided, HookEnded, Failed, Cancelled),
    "tools": (BatchOpened, CallsFinished, Asked, HookEnded, Failed, Cancelled),
}


def decide(snapshot: Snapshot, outcome: Outcome) -> Transition:
    """What follows from ``outcome`` in ``snapshot``. Raises UnexpectedOutcomeError where the pair makes no sense."""
    if not _fits(snapshot, outcome):
        raise UnexpectedOutcomeError(f"{type(outcome).__name__} in {snapshot.status}/{snapshot.phase}")
    joined = snapshot.joined
    transition = _decided(replace(snapshot, seq=snapshot.seq + 1, status="running", joined=()), outcome)
    return replace(transition, messages=joined + transition.messages, hears=True) if joined else transition


def _decided(snapshot: Snapshot, outcome: Outcome) -> Transition:  # noqa: C901, PLR0911, PLR0912 - a line an outcome
    match outcome:
        case Recalled():
            return _go(_progress(snapshot, facts=outcome.facts), "model")
        case Replied():
            return _replied(snapshot, outcome)
        case ModelFailed():
            return _model_failed(snapshot, outcome)
        case CoolingDown():
            return _cooling_down(snapshot, outcome)
        case Reviewed():
            return _reviewed(snapshot, outcome)
        case Decided():
            return _go(snapshot, "tools") if snapshot.pending else _next_turn(snapshot)
        case BatchOpened():
            return _batch_opened(snapshot, outcome)
        case CallsFinished():
            return _calls_finished(snapshot, outcome)
        case Asked():
            return _asked(snapshot, outcome)
        case HookEnded():
            return _hook_ended(snapshot, outcome)
        case Failed():
            return _end(_counted(snapshot, outcome.usage), Ending(error=outcome.error))
        case Cancelled():
            return _end(snapshot, _CANCELLED)
        case _:
            assert_never(outcome)


def _fits(snapshot: Snapshot, outcome: Outcome) -> bool:
    if snapshot.is_terminal or not isinstance(outcome, _ALLOWED[snapshot.phase]):
        return False
    if isinstance(outcome, Reviewed | Decided):
        # Nobody is asked twice, and nothing runs because of a decision that nobody was asked for.
        return (snapshot.status == "waiting") == isinstance(outcome, Decided)
    if isinstance(outcome, CallsFinished | HookEnded):
        back, still_out = [index for index, _ in outcome.results], {call.index for call in snapshot.pending}
        answered_once = len(set(back)) == len(back) and still_out.issuperset(back)
        all_back = isinstance(outcome, HookEnded) or outcome.fatal is not None or still_out == set(back)
        return answered_once and all_back
    if isinstance(outcome, BatchOpened | Asked) and snapshot.status == "waiting":
        return False
    if isinstance(outcome, Asked):
        return any(call.index == outcome.index for call in snapshot.pending)
    return True


def _go(snapshot: Snapshot, phase: Phase, *, delay_secs: float = 0.0) -> Transition:
    return Transition(replace(snapshot, phase=phase), delay_secs=delay_secs)


def _progress(snapshot: Snapshot, **changes: Any) -> Snapshot:
    return replace(snapshot, progress=replace(snapshot.progress, **changes))


def _append(snapshot: Snapshot, *messages: Message) -> tuple[Snapshot, tuple[tuple[int, Message], ...]]:
    placed = tuple(enumerate(messages, start=snapshot.message_count))
    return replace(snapshot, message_count=snapshot.message_count + len(messages)), placed


# ---------------------------------------------------------------------------------------------- the model's reply


def _replied(snapshot: Snapshot, reply: Replied) -> Transition:
    snapshot = _progress(
        snapshot,
        model_calls=snapshot.progress.model_calls + 1,
        usage=snapshot.progress.usage + reply.usage,
        model_index=0,
        model_tries=0,
        cooldown=0,
        given_up=(),
        facts=(),
    )
    snapshot = replace(snapshot, turn=snapshot.turn + 1, calls=(), is_single=False)
    if reply.message.stop == "blocked":
        snapshot, placed = _append(snapshot, reply.message.model_copy(update={"calls": ()}))
        return replace(_end(snapshot, _FILTERED), messages=placed)
    if reply.calls:
        return _called(snapshot, reply)
    if not reply.message.text.strip():
        return _empty(snapshot, reply.message)
    return _answered(snapshot, reply)


def _answered(snapshot: Snapshot, reply: Replied) -> Transition:
    output = reply.output
    snapshot, placed = _append(snapshot, reply.message)
    if output is None:
        return replace(_end(snapshot, Ending(stop_reason="final_answer", text=reply.message.text)), messages=placed)
    if output.fault is not None:
        return replace(_end(snapshot, Ending(error=output.fault)), messages=placed)
    if output.problem is None:
        ending = Ending(stop_reason="output", text=reply.message.text, output=output.value)
        return replace(_end(snapshot, ending), messages=placed)
    snapshot, failure = _count_invalid(snapshot, output.problem)
    if failure:
        return replace(_end(snapshot, failure), messages=placed)
    note = UserMessage(text=f"Your answer does not fit the required format: {output.problem}\nAnswer again.")
    return _ask_again(snapshot, placed, note)


def _ask_again(snapshot: Snapshot, placed: tuple[tuple[int, Message], ...], note: UserMessage) -> Transition:
    """The next turn, with a note that says what to do better; none where a limit lets nobody read it."""
    following = _next_turn(snapshot)
    if following.ending is not None:
        return replace(following, messages=placed)
    noted, more = _append(following.snapshot, note)
    return replace(following, snapshot=noted, messages=placed + more)


def _empty(snapshot: Snapshot, message: AssistantMessage) -> Transition:
    empty = snapshot.progress.empty_replies + 1
    snapshot = _progress(snapshot, empty_replies=empty)
    if empty > MAX_EMPTY_REPLIES:
        why = "; its output limit cut the last one, so give it more max_tokens" if message.stop == "length" else ""
        text = f"the model gave {empty} replies without any content{why}"
        return _end(snapshot, Ending(error=ErrorInfo(code="provider_reply_invalid", message=text)))
    # The empty reply itself is not kept: providers refuse empty assistant turns.
    return _ask_again(snapshot, (), UserMessage(text="Your last reply was empty. Answer, or call a tool."))


def _count_invalid(snapshot: Snapshot, problem: str) -> tuple[Snapshot, Ending | None]:
    invalid = snapshot.progress.invalid_outputs + 1
    snapshot = _progress(snapshot, invalid_outputs=invalid)
    if invalid < MAX_INVALID_OUTPUTS:
        return snapshot, None
    message = f"the model gave {invalid} answers that do not fit the output schema; the last problem: {problem}"
    return snapshot, Ending(error=ErrorInfo(code="output_invalid", message=message))


def _called(snapshot: Snapshot, reply: Replied) -> Transition:
    """Place the reply, keep a position for each call's result, and settle at once whatever cannot run."""
    snapshot, placed = _append(snapshot, reply.message)
    first = snapshot.message_count
    snapshot = replace(snapshot, message_count=first + len(reply.calls))
    planned = tuple(_planned(i, call, reply) for i, call in enumerate(reply.calls))
    opened = tuple(
        OpenCall(
            index=i,
            position=first + i,
            call_id=call.call_id,
            tool=call.tool,
            kind=call.kind,
            queue=call.queue,
            timeout_secs=call.timeout_secs,
            on_unknown=call.on_unknown,
            needs_approval=call.review,
            status="done" if call.result else "pending",
            arguments=asked.arguments,
        )
        for i, (call, asked) in enumerate(zip(planned, reply.message.calls, strict=True))
    )
    settled = tuple((i, call.result) for i, call in enumerate(planned) if call.result)
    snapshot = replace(_progress(snapshot, empty_replies=0), calls=opened, is_single=_is_single(opened))
    following = _after_reply(snapshot, reply.output)
    closed = settled + following.closed
    return replace(
        following,
        opened=_closed(opened, closed),
        messages=placed + _as_messages(opened, settled) + following.messages,
        closed=closed,
    )


def _is_single(opened: tuple[OpenCall, ...]) -> bool:
    """Whether the tools step runs the turn's only call itself, and nobody is asked about it before."""
    return (
        len(opened) == 1 and opened[0].kind == "tool" and opened[0].status == "pending" and not opened[0].needs_approval
    )


def _closed(opened: tuple[OpenCall, ...], closed: tuple[tuple[int, ToolResult], ...]) -> tuple[OpenCall, ...]:
    """New calls as they are stored: those that came back in the same step are done."""
    back = {index for index, _ in closed}
    return tuple(replace(call, status="done") if call.index in back else call for call in opened)


def _planned(index: int, call: PlannedCall, reply: Replied) -> PlannedCall:
    output = reply.output
    if index >= MAX_CALLS_PER_REPLY:
        text = f"Skipped: only the first {MAX_CALLS_PER_REPLY} calls of one reply are taken. Ask again if needed."
        return replace(call, result=_result(call, "skipped", text))
    if output is not None and output.index is not None and output.is_accepted:
        if index == output.index:
            accepted = ToolResult(call_id=call.call_id, name=call.tool, text="Accepted as the final answer.")
            return replace(call, result=accepted)
        if call.result is None:
            return replace(call, result=_result(call, "skipped", "Not run: the final answer came in the same reply."))
    return call


def _result(call: PlannedCall | OpenCall, code: str, text: str) -> ToolResult:
    return ToolResult(call_id=call.call_id, name=call.tool, status="error", code=code, text=text)


def _after_reply(snapshot: Snapshot, output: Output | None) -> Transition:
    if output is not None and output.fault is not None:
        return _end(snapshot, Ending(error=output.fault))
    if output is not None and output.problem is None:
        return _end(snapshot, Ending(stop_reason="output", output=output.value))
    if output is not None and output.problem is not None:
        snapshot, failure = _count_invalid(snapshot, output.problem)
        if failure:
            return _end(snapshot, failure)
    asked = sum(call.kind != "output" for call in snapshot.calls[:MAX_CALLS_PER_REPLY])
    # All or none: a model that asked for five things together may not get along with the first two.
    if (reached := too_many_calls(snapshot, asked)) is not None:
        return _end(snapshot, Ending(error=reached))
    snapshot = _progress(snapshot, tool_calls=snapshot.progress.tool_calls + asked)
    if not snapshot.pending:
        return _next_turn(snapshot)
    return _go(snapshot, "review" if any(call.needs_approval for call in snapshot.pending) else "tools")


def _as_messages(
    calls: Sequence[OpenCall], results: Sequence[tuple[int, ToolResult]]
) -> tuple[tuple[int, Message], ...]:
    position = {call.index: call.position for call in calls}
    return tuple((position[index], ToolMessage(result=result)) for index, result in results)


# ---------------------------------------------------------------------------------------------- failures of the model


def _model_failed(snapshot: Snapshot, failure: ModelFailed) -> Transition:
    progress = snapshot.progress
    index = progress.model_index if failure.index is None else failure.index
    tries = progress.model_tries + 1 if index == progress.model_index else 1
    note: dict[str, Any] = {"code": failure.error.code, "message": failure.error.message, "try": tries}
    may_fall_back = index + 1 < failure.models and _may_fall_back(failure.error.code)
    wait = wait_secs(tries, failure.retry_after, failure.jitter) if failure.retryable else None
    if wait is not None:
        wait = max(wait, failure.turn_secs)
    if wait is not None and not (wait > LONG_WAIT_SECS and may_fall_back and failure.has_free):
        waiting = _progress(snapshot, model_index=index, model_tries=tries, cooldown=failure.cooldown)
        return replace(_go(waiting, "model", delay_secs=wait), note=note | {"wait_secs": round(wait, 3)})
    given_up = (*progress.given_up, _last_word(failure, tries))
    if may_fall_back:
        fallback = _progress(snapshot, model_index=index + 1, model_tries=0, cooldown=0, given_up=given_up)
        return replace(_go(fallback, "model"), note=note | {"fallback": index + 1})
    # A provider that filters the question says so with an error, one that filters the answer with a reply.
    filtered = failure.error.code == "provider_content_filtered"
    return replace(_end(snapshot, _FILTERED if filtered else Ending(error=_of_all(failure.error, given_up))), note=note)


def _cooling_down(snapshot: Snapshot, waits: CoolingDown) -> Transition:
    """No try: nobody was called."""
    tries = snapshot.progress.model_tries if waits.index == snapshot.progress.model_index else 0
    waiting = _progress(snapshot, model_index=waits.index, model_tries=tries, cooldown=waits.cooldown)
    return _go(waiting, "model", delay_secs=waits.wait_secs)


def _last_word(failure: ModelFailed, tries: int) -> dict[str, Any]:
    named = {"provider": failure.provider, "model": failure.model}
    return named | {"code": failure.error.code, "message": cut(failure.error.message, MAX_WORD_CHARS), "tries": tries}


def _of_all(error: ErrorInfo, given_up: tuple[dict[str, Any], ...]) -> ErrorInfo:
    """The error of a run whose models have all failed: what each one said, with the last one's code."""
    if len(given_up) < 2:
        return error
    words = "; ".join(f"{each['provider']}:{each['model']}: {each['message']}" for each in given_up)
    return ErrorInfo(
        code=error.code,
        message=f"all {len(given_up)} models failed: {words}",
        details=error.details | {"models": list(given_up)},
    )


def _may_fall_back(code: str) -> bool:
    # A request that is wrong in itself is wrong for every model; a filter is not dodged by asking another one.
    return code not in {"provider_request_rejected", "provider_content_filtered"}


# ---------------------------------------------------------------------------------------------- review and tools


def _reviewed(snapshot: Snapshot, reviewed: Reviewed) -> Transition:
    answered = tuple(call for call in snapshot.pending if call.index in reviewed.answered)
    snapshot, placed = _settle(snapshot, reviewed.results)
    gated = tuple(call for call in snapshot.pending if call.index in reviewed.gated)
    if gated:
        following = Transition(replace(snapshot, status="waiting"), approvals=gated)
    else:
        following = _go(snapshot, "tools") if snapshot.pending else _next_turn(snapshot)
    closed = reviewed.results + following.closed
    return replace(following, messages=placed + following.messages, closed=closed, answered=answered)


def _batch_opened(snapshot: Snapshot, opened: BatchOpened) -> Transition:
    snapshot, placed = _settle(snapshot, opened.results)
    following = Transition(snapshot) if snapshot.pending else _next_turn(snapshot)
    return replace(following, messages=placed + following.messages, closed=opened.results + following.closed)


def _calls_finished(snapshot: Snapshot, finished: CallsFinished) -> Transition:
    snapshot, placed = _settle(snapshot, finished.results)
    following = _end(snapshot, Ending(error=finished.fatal)) if finished.fatal else _next_turn(snapshot)
    return replace(following, messages=placed + following.messages, closed=finished.results + following.closed)


def _asked(snapshot: Snapshot, outcome: Asked) -> Transition:
    # A tool that asks whether it may run has not begun.
    gated = outcome.kind == "approval"
    calls = tuple(
        replace(call, status="asked", begun=not gated, needs_approval=call.needs_approval or gated)
        if call.index == outcome.index
        else call
        for call in snapshot.calls
    )
    asked = next(call for call in calls if call.index == outcome.index)
    # What a person is asked about has a row.
    opened = (asked,) if snapshot.is_single else ()
    after = replace(snapshot, calls=calls, status="waiting", is_single=False)
    return Transition(after, opened=opened, approvals=(asked,), asks=outcome.kind)


def _next_turn(snapshot: Snapshot) -> Transition:
    """Back to recall, unless a limit says that there may be no further model call."""
    reached = over_limit(snapshot)
    return _end(snapshot, Ending(error=reached)) if reached else _go(replace(snapshot, calls=()), "recall")


# ---------------------------------------------------------------------------------------------- endings


def _counted(snapshot: Snapshot, usage: Usage | None) -> Snapshot:
    """With a model call whose reply is not kept."""
    if usage is None:
        return snapshot
    progress = snapshot.progress
    return _progress(snapshot, model_calls=progress.model_calls + 1, usage=progress.usage + usage)


def _hook_ended(snapshot: Snapshot, ended: HookEnded) -> Transition:
    snapshot = _progress(snapshot, usage=snapshot.progress.usage + ended.usage)
    placed: tuple[tuple[int, Message], ...] = ()
    if ended.message is not None:
        snapshot = _progress(snapshot, model_calls=snapshot.progress.model_calls + 1)
        snapshot, placed = _append(snapshot, ended.message.model_copy(update={"calls": ()}))
    snapshot, placed = _settle(snapshot, ended.results, placed)
    text = ended.output if isinstance(ended.output, str) else None
    following = _end(snapshot, Ending(stop_reason="hook_end", text=text, output=ended.output))
    return replace(following, messages=placed + following.messages, closed=ended.results + following.closed)


def _settle(
    snapshot: Snapshot, results: tuple[tuple[int, ToolResult], ...], placed: tuple[tuple[int, Message], ...] = ()
) -> tuple[Snapshot, tuple[tuple[int, Message], ...]]:
    """Close the calls that ``results`` answer; the messages go to the places kept for them."""
    placed += _as_messages(snapshot.calls, results)
    for index, _ in results:
        snapshot = snapshot.close_call(index)
    return snapshot, placed


def cancel(transition: Transition) -> Transition:
    """The same step, but the run ends with it: what the step brought is kept, nothing follows."""
    ended = _end(replace(transition.snapshot, status="running"), _CANCELLED)
    closed = transition.closed + ended.closed
    return replace(
        transition,
        snapshot=ended.snapshot,
        messages=transition.messages + ended.messages,
        opened=_closed(transition.opened, closed),
        closed=closed,
        approvals=(),
        answered=(),
        delay_secs=None,
        ending=ended.ending,
    )


_FILTERED = Ending(stop_reason="content_filter")
_CANCELLED = Ending(error=ErrorInfo(code="cancelled", message="the run was cancelled"))


def _end(snapshot: Snapshot, ending: Ending) -> Transition:
    """Close the run, and every call that has no result yet, so that the transcript stays valid for a next message."""
    status: Status = "completed"
    if ending.error is not None:
        status = "cancelled" if ending is _CANCELLED else "failed"
    closed = tuple((call.index, _unfinished(call)) for call in snapshot.pending)
    return Transition(
        replace(snapshot, status=status, calls=()),
        messages=_as_messages(snapshot.calls, closed),
        closed=closed,
        ending=ending,
    )


def _unfinished(call: OpenCall) -> ToolResult:
    if call.begun or call.status == "running":
        return _result(
            call, "interrupted", "The run ended before this call came back: it may or may not have taken effect."
        )
    if call.kind == "agent":
        # Its own run may be anywhere between its start and its end.
        text = "The run ended before this agent answered: what it had done by then stands."
        return _result(call, "cancelled", text)
    return _result(call, "cancelled", "Not run: the run has ended.")
