"""The statements of approvals: put a call before a person, spend the question with one decision, or let it expire."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentq.errors import ApprovalNotPendingError
from agentq.messages import AssistantMessage
from agentq.run import ApprovalKind, ApprovalStatus, OnExpiry, OpenCall, Snapshot
from agentq.storage.rows import CallRef
from agentq.storage.sql import Connection, text
from agentq.storage.steps import last_reply

_INSERT = text("""
    INSERT INTO agentq.approvals (run_id, turn, index, number, kind, call_id, tool, arguments, arguments_sha256,
                                  question, expires_at, on_expiry, status, decided_at, decided_by, reason, sticky)
    SELECT :run_id, :turn, :index, count(*), :kind, :call_id, :tool, :arguments,
        encode(sha256(convert_to(:arguments, 'UTF8')), 'hex'), :question,
        now() + make_interval(secs => :deadline_secs), :on_expiry, :status,
        CASE WHEN :status <> 'pending' THEN now() END, :decided_by, :reason, :sticky
    FROM agentq.approvals WHERE run_id = :run_id AND turn = :turn AND index = :index
""")
# The deadline is part of the question: whoever comes too late finds it spent, also where no sweep has come by yet.
_IN_TIME = "status = 'pending' AND (expires_at IS NULL OR expires_at > now())"
_SPEND = """UPDATE agentq.approvals SET status = :status, decided_at = now(), decided_by = :decided_by,
        reason = :reason, edited = :edited, sticky = :sticky"""
_DECIDE = text(f"""
    {_SPEND}
    WHERE run_id = :run_id AND turn = :turn AND call_id = :call_id AND kind = :kind AND {_IN_TIME} RETURNING index
""")
_DECIDE_ALIKE = text(f"""
    {_SPEND}
    WHERE run_id = :run_id AND turn = :turn AND tool = :tool AND kind = 'approval' AND {_IN_TIME} RETURNING index
""")
_EXPIRE = text("""
    UPDATE agentq.approvals SET status = 'expired', decided_at = now()
    WHERE run_id = :run_id AND turn = :turn AND status = 'pending' AND expires_at <= now()
    RETURNING index, on_expiry
""")
_DECIDED = text(f"""
    SELECT status, kind, decided_by, decided_at, expires_at, {_IN_TIME} AS is_in_time FROM agentq.approvals
    WHERE run_id = :run_id AND call_id = :call_id ORDER BY turn DESC, number DESC LIMIT 1
""")
_PENDING = text("SELECT count(*) FROM agentq.approvals WHERE run_id = :run_id AND status = 'pending'")
# The reply whose calls are open, and the decisions that hold for the rest of the run, by tool; the latest counts.
_REVIEW = text("""
    SELECT j.messages, (
        SELECT json_agg(s) FROM (
            SELECT DISTINCT ON (tool) tool, status, decided_by, reason FROM agentq.approvals
            WHERE run_id = :run_id AND sticky ORDER BY tool, decided_at DESC, turn DESC, index DESC) s) AS standing
    FROM agentq.runs r JOIN agentq.journal j ON j.run = r.number AND j.number = r.reply WHERE r.id = :run_id
""")
# What holds for the rest of the run of one tool; for a statement that knows the run.
STANDING = """(
    SELECT json_build_object('status', s.status, 'decided_by', s.decided_by, 'reason', s.reason)
    FROM agentq.approvals s WHERE s.run_id = :run_id AND s.tool = {tool} AND s.sticky
    ORDER BY s.decided_at DESC, s.turn DESC, s.index DESC LIMIT 1)"""
_OF_CALL = text("""
    SELECT edited, arguments_sha256,
        (status = 'approved' OR status = 'expired' AND on_expiry = 'approve')
            AND arguments_sha256 = encode(sha256(convert_to(arguments, 'UTF8')), 'hex') AS is_approved
    FROM agentq.approvals
    WHERE run_id = :run_id AND turn = :turn AND index = :index AND kind = 'approval' ORDER BY number DESC LIMIT 1
""")


_EDITED = text("""
    SELECT DISTINCT ON (index) index, edited FROM agentq.approvals
    WHERE run_id = :run_id AND turn = :turn AND kind = 'approval' AND edited IS NOT NULL ORDER BY index, number DESC
""")


@dataclass(frozen=True)
class Answer:
    """A decision as it is stored. ``edited`` is the JSON text that takes the place of the model's arguments."""

    status: ApprovalStatus
    decided_by: str | None
    reason: str | None = None
    edited: str | None = None
    sticky: bool = False


@dataclass(frozen=True)
class Question:
    """What is asked about a call, with the arguments that the model sent; ``answer`` where one stands."""

    arguments: str
    kind: ApprovalKind = "approval"
    question: str = ""
    deadline_secs: float | None = None
    on_expiry: OnExpiry = "report"
    answer: Answer | None = None


@dataclass(frozen=True)
class Permission:
    """What a person said of a call that is about to run."""

    is_approved: bool
    arguments_sha256: str
    edited: str | None


def put(connection: Connection, snapshot: Snapshot, call: OpenCall, asked: Question) -> None:
    """Put a call before a person, or on record what was decided of it before."""
    answer = asked.answer or Answer("pending", None)
    values = {
        "run_id": snapshot.run_id,
        "turn": snapshot.turn,
        "index": call.index,
        "kind": asked.kind,
        "call_id": call.call_id,
        "tool": call.tool,
        "arguments": asked.arguments,
        "question": asked.question,
        "deadline_secs": asked.deadline_secs,
        "on_expiry": asked.on_expiry,
    }
    connection.execute(_INSERT, values | answer.__dict__)


def decide(connection: Connection, snapshot: Snapshot, call_id: str, kind: ApprovalKind, answer: Answer) -> OpenCall:
    """Spend the question with one decision. Raises ApprovalNotPendingError, which says who was faster."""
    where = {"run_id": snapshot.run_id, "turn": snapshot.turn, "call_id": call_id, "kind": kind}
    index = connection.execute(_DECIDE, where | answer.__dict__).scalar()
    if index is None:
        raise _not_pending(connection, snapshot.run_id, call_id, kind)
    return _call(snapshot, index)


def decide_alike(connection: Connection, snapshot: Snapshot, tool: str, answer: Answer) -> list[OpenCall]:
    """The same decision for the other calls of the tool that wait."""
    where = {"run_id": snapshot.run_id, "turn": snapshot.turn, "tool": tool}
    rows = connection.execute(_DECIDE_ALIKE, where | answer.__dict__).all()
    return [_call(snapshot, index) for index in sorted(row.index for row in rows)]


def expire(connection: Connection, snapshot: Snapshot) -> list[tuple[OpenCall, OnExpiry]]:
    """Close the questions whose time is over; the answer is the calls, and what is to be done with them."""
    rows = connection.execute(_EXPIRE, {"run_id": snapshot.run_id, "turn": snapshot.turn}).all()
    return [(_call(snapshot, row.index), row.on_expiry) for row in sorted(rows, key=lambda row: row.index)]


def _call(snapshot: Snapshot, index: int) -> OpenCall:
    return next(call for call in snapshot.calls if call.index == index)


def pending(connection: Connection, run_id: str) -> int:
    """How many calls of the run still wait for a person."""
    return int(connection.execute(_PENDING, {"run_id": run_id}).scalar())


def under_review(connection: Connection, run_id: str) -> tuple[AssistantMessage, dict[str, Answer]]:
    """The reply whose calls are open, and the decisions that hold for the rest of the run, by tool."""
    row = connection.execute(_REVIEW, {"run_id": run_id}).one()
    standing = {each.pop("tool"): Answer(**each, sticky=True) for each in row.standing or ()}
    return last_reply(row.messages), standing


def permission(connection: Connection, ref: CallRef) -> Permission | None:
    """What was decided last of a call; None where nobody was asked."""
    row = connection.execute(_OF_CALL, ref.__dict__).first()
    return None if row is None else Permission(row.is_approved, row.arguments_sha256, row.edited)


def edited(connection: Connection, snapshot: Snapshot) -> dict[int, str]:
    """The arguments that people changed in the open turn, as JSON text, by call index."""
    rows = connection.execute(_EDITED, {"run_id": snapshot.run_id, "turn": snapshot.turn})
    return {row.index: row.edited for row in rows}


_ASKS = {
    "approval": "asks whether it may run: approve or reject it",
    "outcome": "asks whether it took effect: agentq approvals settle {run_id} {call_id} --happened yes|no|unknown",
    "deferred": "waits for its result: agentq approvals complete {run_id} {call_id} --result …",
}
_SAID = {
    "happened": "said to have happened",
    "not_happened": "said not to have happened",
    "unknown": "said to be unknown for good",
    "responded": "answered in place of its tool",
    "failed": "said to have failed",
}


def _not_pending(connection: Connection, run_id: str, call_id: str, kind: ApprovalKind) -> ApprovalNotPendingError:
    row: Any = connection.execute(_DECIDED, {"run_id": run_id, "call_id": call_id}).first()
    if row is None:
        return ApprovalNotPendingError(f"run {run_id} has no call {call_id!r} that waits for a person", call_id=call_id)
    if row.status == "pending" and not row.is_in_time:
        return _spent(call_id, "expired", None, row.expires_at)
    if row.status == "pending" and row.kind != kind:
        asks = _ASKS[row.kind].format(run_id=run_id, call_id=call_id)
        return ApprovalNotPendingError(f"call {call_id!r} {asks}", call_id=call_id, status=row.status)
    return _spent(call_id, row.status, row.decided_by, row.decided_at)


def _spent(call_id: str, status: str, decided_by: str | None, since: datetime) -> ApprovalNotPendingError:
    who = f" by {decided_by}" if decided_by else ""
    return ApprovalNotPendingError(
        f"call {call_id!r} is {_SAID.get(status, status)}{who} since {since:%Y-%m-%d %H:%M:%S %Z}",
        call_id=call_id,
        status=status,
        decided_by=decided_by,
    )
