"""The commit of a step: one statement writes all of it, or nothing once the lease is somebody else's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID

from agentq.errors import LeaseLost
from agentq.limits import MAX_LANES
from agentq.messages import AssistantMessage
from agentq.outcomes import Transition
from agentq.run import OpenCall, Snapshot
from agentq.storage import approvals, inbox, journal
from agentq.storage.approvals import Question
from agentq.storage.journal import NewEvent
from agentq.storage.rows import COUNTS, began_at, dump, of_progress
from agentq.storage.sql import Connection, Row, text
from agentq.storage.steps import BOUNDED, FIRST_PATIENCE, leased
from agentq.values import replace
from agentq.wire import CallMessage


@dataclass(frozen=True)
class Next:
    """Where the following step runs: its queue, and the time limit of the tool it runs itself.

    ``lease_secs`` is given where it runs in this process: the lease is kept for it, so that nobody else claims it.
    ``on_end_secs`` is given where the run ended and its hooks are to hear of that: after so long the sweep tells them.
    """

    queue: str
    timeout_secs: float | None = None
    lease_secs: float | None = None
    on_end_secs: float | None = None


class Steered(Exception):
    """The end was refused because more messages were sent into the run than it knew of: ``number`` in all."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class CancelRequested(Exception):
    """The commit was refused because somebody asked to cancel the run; apply the cancelled transition instead."""


_HAS_FAMILY = """(parent_run_id IS NOT NULL OR followed OR :status <> 'completed' AND EXISTS (
                        SELECT 1 FROM agentq.runs c WHERE c.parent_run_id = runs.id
                            AND c.status NOT IN ('completed', 'failed', 'cancelled')))"""
_AGAIN_AT = f"""CASE WHEN :ended AND {_HAS_FAMILY}
                    THEN {FIRST_PATIENCE}
                    WHEN :delay_secs > 0 THEN now() + make_interval(secs => :delay_secs)
                    WHEN :delay_secs = 0 THEN {FIRST_PATIENCE} END"""
# The lease is let go: whoever is first may claim the next step, and the sweep sees to it that somebody does. Where none
# follows by itself, the run leaves the sweep's indexes.
_LET_GO = f"""
    due_at = now() + make_interval(secs => :delay_secs), sweep_at = {_AGAIN_AT},
    sweep_look_at = CASE WHEN :delay_secs IS NULL THEN {_AGAIN_AT} ELSE least(sweep_look_at, {_AGAIN_AT}) END,
    lease_look_at = CASE WHEN :delay_secs IS NOT NULL THEN lease_look_at END,
    attempt = 0, lease_token = NULL, lease_until = NULL,
    stop_reason = :stop_reason, output = :output, error = :error,
    finished_at = CASE WHEN :ended THEN now() END"""
# The same at the end of a run whose hooks are to hear of it.
_ON_END_AT = "now() + make_interval(secs => :on_end_secs)"
_TELL_AT = f"CASE WHEN {_HAS_FAMILY} THEN {FIRST_PATIENCE} ELSE {_ON_END_AT} END"
_LET_GO_TO_HOOKS = f"{_LET_GO.replace(_AGAIN_AT, _TELL_AT)}, on_end_at = {_ON_END_AT}"
_KEPT_UNTIL = """CASE WHEN lease_until < now() + make_interval(secs => CAST(:lease_secs AS float) / 2)
                         THEN now() + make_interval(secs => :lease_secs) ELSE lease_until END"""
# The lease goes over to the next step, as with a claim, but for what can be left alone: its end, and when it was.
_HAND_ON = f"attempt = 1, {leased(_KEPT_UNTIL)}"
_UPDATE = f"""UPDATE agentq.runs SET
    seq = :seq, status = :status, phase = :phase, turn = :turn, progress = :progress,
    message_count = :message_count, event_count = event_count + :events,
    reply = CASE WHEN :replied THEN event_count + :events ELSE reply END, on_unknown = :on_unknown,
    open_calls = :open_calls, asked_calls = :asked_calls, queue = :queue, timeout_secs = :timeout_secs,
    deadline_at = CASE WHEN NOT :ended THEN {began_at("runs")} + make_interval(secs => :run_secs) END,
    agent_version = coalesce(:new_version, agent_version), outdated_at = NULL, outdated_by = NULL,
    {", ".join(f"{name} = :{name}" for name in COUNTS)},{{hears}}{{then}}
FROM bounded
WHERE id = :run_id AND seq = :old_seq AND lease_token IS NOT DISTINCT FROM :token
    AND (:even_if_cancelled OR NOT cancel_requested) AND status NOT IN ('completed', 'failed', 'cancelled')
    AND (NOT :ended OR coalesce(steered, 0) = :steered)
RETURNING id, number, event_count, followed, steered,
    CAST(EXTRACT(epoch FROM now() - {began_at("runs")}) AS float) AS age_secs"""
_OPENED = """INSERT INTO agentq.tool_calls (run_id, turn, index, position, call_id, tool, kind, queue, timeout_secs,
                                       on_unknown, needs_approval, status, code)
    SELECT run.id, :turn, c.* FROM run, json_to_recordset(CAST(:opened AS json)) c (
        index integer, position integer, call_id text, tool text, kind text, queue text, timeout_secs float,
        on_unknown text, needs_approval boolean, status text, code text)"""
_CLOSED = """UPDATE agentq.tool_calls c SET
        status = 'done', code = d.code, lease_token = NULL, lease_until = NULL, sweep_at = NULL, finished_at = now()
    FROM run, json_to_recordset(CAST(:closed AS json)) d (index integer, code text)
    WHERE c.run_id = run.id AND c.turn = :turn AND c.index = d.index"""
_NO_MORE_QUESTIONS = """UPDATE agentq.approvals a SET status = 'closed', decided_at = now()
    FROM run WHERE a.run_id = run.id AND a.status = 'pending'"""

_STANDS_AT = text("""
    SELECT seq, event_count, followed, steered FROM agentq.runs
    WHERE id = :run_id AND lease_token IS NOT DISTINCT FROM :token
""")
_ASK_CALL = text("""
    UPDATE agentq.tool_calls SET
        status = 'asked', lease_token = NULL, lease_until = NULL, sweep_at = NULL,
        -- A step that ran its only call itself has counted for it; a tool that asks if it may run has not begun.
        attempt = CASE WHEN :kind = 'approval' THEN 0 ELSE greatest(attempt, 1) END,
        needs_approval = needs_approval OR :kind = 'approval'
    WHERE run_id = :run_id AND turn = :turn AND index = :index
""")
_ANNOUNCE_FIRST = text(f"""
    UPDATE agentq.tool_calls SET status = 'announced', announced_at = now(), sweep_at = {FIRST_PATIENCE}
    WHERE run_id = :run_id AND turn = :turn AND status = 'pending' AND kind = 'tool' AND index IN (
        SELECT index FROM agentq.tool_calls
        WHERE run_id = :run_id AND turn = :turn AND status = 'pending' AND kind = 'tool'
        ORDER BY index LIMIT {MAX_LANES})
    RETURNING index AS call_index, queue, timeout_secs
""")


@cache
def _statement(
    *, stays: bool, hooks_hear: bool, tells: bool, opens: bool, closes: bool, asks_no_more: bool, hears: bool
) -> bytes:
    """Of the parts that a step needs: each one costs, also where it finds nothing to do."""
    then = _HAND_ON if stays else _LET_GO_TO_HOOKS if hooks_hear else _LET_GO
    parts = {
        "run": _UPDATE.format(then=then, hears=" heard = :heard, " if hears else ""),
        "heard": inbox.TAKEN_UP if hears else None,
        "told": journal.ADD if tells else None,
        "opened": _OPENED if opens else None,
        "closed": _CLOSED if closes else None,
        "asked": _NO_MORE_QUESTIONS if asks_no_more else None,
    }
    named = [f"{name} AS ({part})" for name, part in parts.items() if part]
    return text(f"WITH {BOUNDED}, {', '.join(named)} SELECT age_secs, event_count, followed, steered FROM run")


def is_one_statement(transition: Transition) -> bool:
    """Whether ``commit`` needs no transaction around it."""
    return not transition.approvals and not transition.answered


def commit(
    connection: Connection,
    transition: Transition,
    *,
    token: UUID | None,
    patience_secs: float,
    following: Next,
    events: Sequence[NewEvent],
    even_if_cancelled: bool = False,
    questions: Mapping[int, Question] | None = None,
) -> Snapshot:
    """Save a step; the answer is the run after it.

    ``token`` is the lease (None for a run that nobody works on, whose row the caller has locked). ``questions`` are put
    before a person, or were answered before, by call index. Raises LeaseLost, CancelRequested or Steered, with nothing
    written.
    """
    snapshot, ending = transition.snapshot, transition.ending
    opened, closed = _rows(transition)
    values = _run_values(transition) | journal.entry(events, transition.messages)
    values |= {
        "token": token,
        "patience_secs": patience_secs,
        "queue": following.queue,
        "timeout_secs": following.timeout_secs,
        "lease_secs": following.lease_secs,
        "on_end_secs": following.on_end_secs,
        "even_if_cancelled": even_if_cancelled,
        "opened": dump(opened),
        "closed": dump(closed),
    }
    statement = _statement(
        stays=following.lease_secs is not None,
        hooks_hear=following.on_end_secs is not None,
        tells=bool(events or transition.messages),
        opens=bool(opened),
        closes=bool(closed),
        asks_no_more=ending is not None and snapshot.phase in ("review", "tools"),
        hears=transition.hears,
    )
    row = connection.first(statement, values)
    if row is None:
        return _saved_before(connection, snapshot, token)
    for call in transition.approvals + transition.answered:
        ask(connection, snapshot, call, (questions or {})[call.index])
    return replace(_seen(snapshot, row), age_secs=row.age_secs)


def _rows(transition: Transition) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The calls that get a row, and those whose row is closed."""
    if transition.snapshot.is_single:
        return [], []
    codes, new = dict(transition.closed), {call.index for call in transition.opened}
    opened = [_call_values(call, codes.get(call.index)) for call in transition.opened]
    closed = [
        {"index": index, "code": result.code or "success"} for index, result in transition.closed if index not in new
    ]
    return opened, closed


def _run_values(transition: Transition) -> dict[str, Any]:
    snapshot, ending = transition.snapshot, transition.ending
    return {
        "run_id": snapshot.run_id,
        "old_seq": snapshot.seq - 1,
        "seq": snapshot.seq,
        "status": snapshot.status,
        "phase": snapshot.phase,
        "turn": snapshot.turn,
        **of_progress(snapshot.progress),
        "message_count": snapshot.message_count,
        "new_version": snapshot.new_version,
        "steered": snapshot.steered,
        "heard": snapshot.heard,
        "replied": any(isinstance(message, AssistantMessage) for _, message in transition.messages),
        "on_unknown": next((call.on_unknown for call in snapshot.pending if snapshot.is_single), None),
        "open_calls": 0 if snapshot.is_single else len(snapshot.pending),
        "asked_calls": sum(call.status == "asked" for call in snapshot.pending),
        "run_secs": snapshot.limits.run_secs,
        "delay_secs": transition.delay_secs,
        "ended": ending is not None,
        "stop_reason": ending.stop_reason if ending else None,
        "output": dump(ending.output) if ending and ending.stop_reason in ("output", "hook_end") else None,
        "error": ending.error.model_dump_json() if ending and ending.error else None,
    }


def _saved_before(connection: Connection, snapshot: Snapshot, token: UUID | None) -> Snapshot:
    """The run where an earlier try was saved, whose answer was lost; else it is said why nothing was written."""
    row = connection.execute(_STANDS_AT, {"run_id": snapshot.run_id, "token": token}).first()
    if row is not None and row.seq == snapshot.seq - 1:
        if (row.steered or 0) > snapshot.steered and snapshot.is_terminal:
            raise Steered(row.steered)
        raise CancelRequested
    if row is None or row.seq != snapshot.seq or token is None:
        raise LeaseLost(f"run {snapshot.run_id}: step {snapshot.seq - 1} belongs to another process or is history")
    return _seen(snapshot, row)


def _seen(snapshot: Snapshot, row: Row) -> Snapshot:
    """With what others may have written to the run's row meanwhile."""
    version = snapshot.new_version or snapshot.agent_version
    after = replace(snapshot, agent_version=version, new_version=None)
    return replace(after, event_count=row.event_count, is_followed=bool(row.followed), steered=row.steered or 0)


def _call_values(call: OpenCall, result: Any) -> dict[str, Any]:
    code = None if call.status != "done" else (result.code if result else None) or "success"
    return {
        "index": call.index,
        "position": call.position,
        "call_id": call.call_id,
        "tool": call.tool,
        "kind": call.kind,
        "queue": call.queue,
        "timeout_secs": call.timeout_secs,
        "on_unknown": call.on_unknown,
        "needs_approval": call.needs_approval,
        "status": call.status,
        "code": code,
    }


def ask(connection: Connection, snapshot: Snapshot, call: OpenCall, asked: Question) -> None:
    """Put a call before a person; one of a batch that has begun leaves its lane for that."""
    approvals.put(connection, snapshot, call, asked)
    if call.status == "asked":
        where = {"run_id": snapshot.run_id, "turn": snapshot.turn, "index": call.index}
        connection.execute(_ASK_CALL, where | {"kind": asked.kind})


def announce_first(connection: Connection, snapshot: Snapshot, *, patience_secs: float) -> tuple[CallMessage, ...]:
    """Put the first calls of an opened batch on their lanes, at most eight."""
    values = {"run_id": snapshot.run_id, "turn": snapshot.turn, "patience_secs": patience_secs}
    rows = connection.execute(_ANNOUNCE_FIRST, values).all()
    return tuple(
        CallMessage(snapshot.run_id, snapshot.seq, row.call_index, row.queue, row.timeout_secs, snapshot.priority)
        for row in sorted(rows, key=lambda row: row.call_index)
    )
