"""What people do to a run from outside: cancel it, decide on its waiting calls. The run's row is locked first."""

from collections.abc import Sequence
from typing import Any

from agentq.errors import ApprovalNotPendingError, RunNotFoundError
from agentq.messages import ToolMessage, ToolResult
from agentq.run import TERMINAL, ApprovalKind, OpenCall, Snapshot
from agentq.storage import journal
from agentq.storage.journal import NewEvent, Placed
from agentq.storage.rows import SNAPSHOT_COLUMNS, to_snapshot
from agentq.storage.sql import Connection, text
from agentq.storage.steps import BOUNDED, open_calls

_LOCK = text(f"""
    WITH {BOUNDED}
    SELECT {SNAPSHOT_COLUMNS}, lease_token IS NOT NULL AS at_work
    FROM bounded, agentq.runs WHERE id = :run_id FOR UPDATE OF runs
""")
_TIME_LIMIT = text("""
    SELECT CAST(EXTRACT(epoch FROM deadline_at - created_at) AS float) FROM agentq.runs
    WHERE id = :run_id AND deadline_at <= now()
""")
_ASK_CANCEL = text("UPDATE agentq.runs SET cancel_requested = true WHERE id = :run_id")
_COUNT_EVENT = text("""
    UPDATE agentq.runs SET event_count = event_count + 1 WHERE id = :run_id
    RETURNING number, event_count
""")
_CHILDREN = text("""
    SELECT id FROM agentq.runs WHERE parent_run_id = :run_id AND status NOT IN ('completed', 'failed', 'cancelled')
""")
_DECIDE = text("""
    UPDATE agentq.approvals SET status = :status, decided_at = now(), decided_by = :decided_by, reason = :reason
    WHERE run_id = :run_id AND turn = :turn AND call_id = :call_id AND kind = :kind AND status = 'pending'
    RETURNING index
""")
_DECIDED = text("""
    SELECT status, kind, decided_by, decided_at FROM agentq.approvals WHERE run_id = :run_id AND call_id = :call_id
    ORDER BY turn DESC, number DESC LIMIT 1
""")
_PENDING = text("SELECT count(*) FROM agentq.approvals WHERE run_id = :run_id AND status = 'pending'")
_CLOSE = text("""
    UPDATE agentq.tool_calls SET status = 'done', code = 'rejected', finished_at = now()
    WHERE run_id = :run_id AND turn = :turn AND index = :index
    RETURNING position
""")


def time_limit(connection: Connection, run_id: str) -> float | None:
    """How many seconds a run was given, where that time is over; None while it may go on."""
    found: float | None = connection.execute(_TIME_LIMIT, {"run_id": run_id}).scalar()
    return found


def lock(connection: Connection, run_id: str) -> tuple[Snapshot, bool]:
    """The run with its row locked, and whether a worker is at it (a step or one of its calls)."""
    row = connection.execute(_LOCK, {"run_id": run_id}).first()
    if row is None:
        raise RunNotFoundError(f"there is no run {run_id!r}; see: agentq runs ls", run_id=run_id)
    calls = open_calls(connection, run_id) if row.phase in ("review", "tools") else ()
    snapshot = to_snapshot(row, () if row.status in TERMINAL else calls)
    return snapshot, bool(row.at_work) or any(call.status == "running" for call in calls)


def ask_cancel(connection: Connection, run_id: str) -> None:
    """Leave word for the worker that is at the run; it ends the run with its next commit."""
    connection.execute(_ASK_CANCEL, {"run_id": run_id})


def note(connection: Connection, run_id: str, event: NewEvent, messages: Sequence[Placed] = ()) -> None:
    """Add an event that no step brought, and what came with it."""
    row = connection.execute(_COUNT_EVENT, {"run_id": run_id}).one()
    journal.add(connection, row.number, row.event_count, [event], messages)


def open_children(connection: Connection, run_id: str) -> tuple[str, ...]:
    return tuple(connection.execute(_CHILDREN, {"run_id": run_id}).scalars())


def decide_approval(
    connection: Connection, snapshot: Snapshot, call_id: str, *, approved: bool, decided_by: str, reason: str | None
) -> tuple[int, list[Placed]]:
    """Record one decision; the answer is how many calls still wait, and what the model is told.

    Raises ApprovalNotPendingError when it is too late.
    """
    decision = {"status": "approved" if approved else "rejected", "decided_by": decided_by, "reason": reason}
    call = _decide(connection, snapshot, call_id, "approval", decision)
    said = [] if approved else [_reject(connection, snapshot, call, reason)]
    return int(connection.execute(_PENDING, {"run_id": snapshot.run_id}).scalar()), said


def answer_outcome(
    connection: Connection, snapshot: Snapshot, call_id: str, *, status: str, decided_by: str, reason: str | None
) -> OpenCall:
    """Record what a person knows of a call whose outcome was unknown. Raises ApprovalNotPendingError."""
    decision = {"status": status, "decided_by": decided_by, "reason": reason}
    return _decide(connection, snapshot, call_id, "outcome", decision)


def _decide(
    connection: Connection, snapshot: Snapshot, call_id: str, kind: ApprovalKind, decision: dict[str, Any]
) -> OpenCall:
    where = {"run_id": snapshot.run_id, "turn": snapshot.turn, "call_id": call_id, "kind": kind}
    index = connection.execute(_DECIDE, where | decision).scalar()
    if index is None:
        raise _not_pending(connection, snapshot.run_id, call_id, kind)
    return next(call for call in snapshot.calls if call.index == index)


def _reject(connection: Connection, snapshot: Snapshot, call: OpenCall, reason: str | None) -> Placed:
    index, call_id = call.index, call.call_id
    position = connection.execute(_CLOSE, {"run_id": snapshot.run_id, "turn": snapshot.turn, "index": index}).scalar()
    why = f"A person rejected this call: {reason}" if reason else "A person rejected this call."
    result = ToolResult(call_id=call_id, name=call.tool, status="rejected", code="rejected", text=why)
    return position, ToolMessage(result=result)


_ASKS = {
    "approval": "asks whether it may run: approve or reject it",
    "outcome": "asks whether it took effect: agentq approvals settle {run_id} {call_id} --happened yes|no|unknown",
}
_SAID = {
    "happened": "said to have happened",
    "not_happened": "said not to have happened",
    "unknown": "said to be unknown for good",
}


def _not_pending(connection: Connection, run_id: str, call_id: str, kind: ApprovalKind) -> ApprovalNotPendingError:
    row: Any = connection.execute(_DECIDED, {"run_id": run_id, "call_id": call_id}).first()
    if row is None:
        return ApprovalNotPendingError(f"run {run_id} has no call {call_id!r} that waits for a person", call_id=call_id)
    if row.status == "pending" and row.kind != kind:
        asks = _ASKS[row.kind].format(run_id=run_id, call_id=call_id)
        return ApprovalNotPendingError(f"call {call_id!r} {asks}", call_id=call_id, status=row.status)
    who = f" by {row.decided_by}" if row.decided_by else ""
    return ApprovalNotPendingError(
        f"call {call_id!r} is {_SAID.get(row.status, row.status)}{who} since {row.decided_at:%Y-%m-%d %H:%M:%S %Z}",
        call_id=call_id,
        status=row.status,
        decided_by=row.decided_by,
    )
