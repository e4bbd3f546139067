"""Rows of the database as the words of ``run.py``, and back."""

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from pydantic_core import to_json
from sqlalchemy import Row

from agentq.errors import ErrorInfo
from agentq.messages import Usage
from agentq.run import Event, OpenCall, Progress, Run, Snapshot

_SNAPSHOT = "id, agent, status, phase, seq, turn, depth, progress, context, message_count, cancel_requested, thread_id"


def snapshot_columns(table: str) -> str:
    """Columns that make a Snapshot, of ``table`` (its alias in the statement)."""
    named = ", ".join(f"{table}.{name}" for name in _SNAPSHOT.split(", "))
    return f"{named}, EXTRACT(epoch FROM now() - {table}.created_at) AS age_secs"


# Every statement that loads one returns these.
SNAPSHOT_COLUMNS = f"{snapshot_columns('runs')}, runs.attempt"
CALL_COLUMNS = (
    "index AS call_index, position, call_id, tool, kind, queue, timeout_secs, on_unknown, needs_approval, "
    "status AS call_status, attempt > 0 AS begun"
)


@dataclass(frozen=True)
class Claim:
    """The right to do one step, or one call: commits that carry it are refused once somebody else has it.

    ``forgotten`` says that the server may have lost an earlier claim of the same work: it crashed, or took over, since.
    ``overdue`` says that its tool was alive past its time limit; ``worker`` is the one that claimed it, ``queue`` where
    its message came from. ``sure_until`` is when its process must ask again whether the lease is still held, by the
    clock of Services: known where the lease came with a commit of its own.
    """

    run_id: str
    seq: int
    token: UUID
    attempt: int
    worker: str | None = None
    queue: str = ""
    forgotten: bool = False
    overdue: bool = False
    sure_until: float | None = None


@dataclass(frozen=True)
class CallRef:
    """Where a tool call lives: the run, the turn and the place in the reply, never the model's own id."""

    run_id: str
    turn: int
    index: int

    @property
    def idempotency_key(self) -> str:
        return f"{self.run_id}:{self.turn}:{self.index}"


def dump(value: Any) -> str:
    """JSON text for a payload column."""
    return to_json(value).decode()


def to_snapshot(row: Row[Any], calls: tuple[OpenCall, ...] = ()) -> Snapshot:
    snapshot = Snapshot(
        run_id=row.id,
        agent=row.agent,
        seq=row.seq,
        status=row.status,
        phase=row.phase,
        turn=row.turn,
        depth=row.depth,
        message_count=row.message_count,
        cancel_requested=row.cancel_requested,
        progress=Progress.model_validate_json(row.progress),
        calls=calls,
        thread_id=row.thread_id,
        context=json.loads(row.context),
        age_secs=float(row.age_secs),
    )
    # A step that runs its only call itself counts the attempts for it.
    return snapshot.begin() if row.attempt > 0 else snapshot


def to_open_calls(rows: list[dict[str, Any]] | None) -> tuple[OpenCall, ...]:
    """Calls that came as JSON with their run."""
    return tuple(to_open_call(SimpleNamespace(**row)) for row in rows or ())


def to_open_call(row: Row[Any] | SimpleNamespace) -> OpenCall:
    return OpenCall(
        index=row.call_index,
        position=row.position,
        call_id=row.call_id,
        tool=row.tool,
        kind=row.kind,
        queue=row.queue,
        timeout_secs=row.timeout_secs,
        on_unknown=row.on_unknown,
        needs_approval=row.needs_approval,
        status=row.call_status,
        begun=row.begun,
    )


def to_claim(row: Row[Any], token: UUID) -> Claim:
    return Claim(
        row.id,
        row.seq,
        token,
        row.attempt,
        worker=row.worker,
        queue=row.queue,
        forgotten=bool(row.forgotten),
        overdue=bool(row.overdue),
    )


def to_run(row: Row[Any], text: str | None = None) -> Run:
    # Not as a Progress: a list must show the runs of a newer release too.
    progress = json.loads(row.progress)
    return Run(
        id=row.id,
        agent=row.agent,
        status=row.status,
        phase=row.phase,
        seq=row.seq,
        turn=row.turn,
        attempt=row.attempt,
        created_at=row.created_at,
        updated_at=row.updated_at,
        thread_id=row.thread_id,
        parent_run_id=row.parent_run_id,
        tags=row.tags,
        finished_at=row.finished_at,
        due_at=row.due_at,
        lease_until=row.lease_until,
        worker=row.worker,
        cancel_requested=row.cancel_requested,
        stop_reason=row.stop_reason,
        text=text,
        output=None if row.output is None else json.loads(row.output),
        error=None if row.error is None else ErrorInfo.model_validate_json(row.error),
        usage=Usage.model_validate(progress.get("usage", {})),
        model_calls=progress.get("model_calls", 0),
        tool_calls=progress.get("tool_calls", 0),
    )


def to_event(row: Row[Any]) -> Event:
    return Event(run_id=row.run_id, number=row.number, type=row.type, at=row.at, data=json.loads(row.data))
