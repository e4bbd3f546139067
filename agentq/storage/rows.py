"""Rows of the database as the words of ``run.py``, and back."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from pydantic_core import to_json

from agentq.errors import ErrorInfo
from agentq.messages import AssistantMessage, Usage, load_messages
from agentq.run import OpenCall, Progress, Run, Snapshot, dump_progress, load_progress
from agentq.storage.sql import Row
from agentq.values import replace
from agentq.wire import PRIORITIES

_USAGE = tuple(Usage.model_fields)
# The part of Progress that has columns.
COUNTS = ("model_calls", "tool_calls", *_USAGE)
_SNAPSHOT = (
    "id, agent, status, phase, seq, turn, depth, progress, context, message_count, event_count, "
    f"cancel_requested, thread_id, priority, concurrency_key, has_place, followed, steered, heard, "
    f"agent_version, {', '.join(COUNTS)}"
)


def began_at(table: str) -> str:
    """The SQL for when a run's time began: when it was enqueued, or the time it was enqueued for."""
    return f"coalesce({table}.start_at, {table}.created_at)"


def snapshot_columns(table: str) -> str:
    """Columns that make a Snapshot, of ``table`` (its alias in the statement)."""
    named = ", ".join(f"{table}.{name}" for name in _SNAPSHOT.split(", "))
    single = f"{table}.on_unknown IS NOT NULL AS is_single"
    return f"{named}, {single}, EXTRACT(epoch FROM now() - {began_at(table)}) AS age_secs"


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
    clock of Services. ``follows``: the same process did the step before, whose commit kept the lease.
    """

    run_id: str
    seq: int
    token: UUID
    attempt: int
    worker: str | None = None
    queue: str = ""
    forgotten: bool = False
    overdue: bool = False
    follows: bool = False
    sure_until: float | None = None
    # The cool-downs that were read with it; None where it did not look. See cooldowns.py.
    cooling: Sequence[Sequence[Any]] | None = None


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


def to_snapshot(row: Row, calls: tuple[OpenCall, ...] = ()) -> Snapshot:
    snapshot = Snapshot(
        run_id=row.id,
        agent=row.agent,
        seq=row.seq,
        status=row.status,
        phase=row.phase,
        turn=row.turn,
        depth=row.depth,
        message_count=row.message_count,
        event_count=row.event_count,
        is_single=row.is_single,
        cancel_requested=row.cancel_requested,
        progress=_to_progress(row),
        calls=calls,
        thread_id=row.thread_id,
        context=json.loads(row.context),
        age_secs=float(row.age_secs),
        priority=row.priority,
        concurrency_key=row.concurrency_key,
        has_place=row.has_place,
        is_followed=bool(row.followed),
        steered=row.steered or 0,
        heard=row.heard or 0,
        agent_version=row.agent_version,
    )
    # A step that runs its only call itself counts the attempts for it.
    return snapshot.begin() if row.attempt > 0 else snapshot


def _to_progress(row: Row) -> Progress:
    return replace(
        load_progress(row.progress), model_calls=row.model_calls, tool_calls=row.tool_calls, usage=_to_usage(row)
    )


def _to_usage(row: Row) -> Usage:
    return Usage(**{name: getattr(row, name) for name in _USAGE})


def of_progress(progress: Progress) -> dict[str, Any]:
    """The columns of a run's progress: its counts, and as JSON all that changes now and then only."""
    return {
        "progress": dump_progress(progress, exclude=_COUNTED),
        "model_calls": progress.model_calls,
        "tool_calls": progress.tool_calls,
        **usage_values(progress.usage),
    }


def usage_values(usage: Usage) -> dict[str, Any]:
    """The columns of what was used. Dollars are text: statements of steps leave its type to the server."""
    cost = None if usage.known_cost is None else str(usage.known_cost)
    return {name: getattr(usage, name) for name in _USAGE} | {"known_cost": cost}


_COUNTED = {"model_calls", "tool_calls", "usage"}


def to_open_calls(row: Row) -> tuple[OpenCall, ...]:
    """Calls that came with their run: as JSON, or where a single one is in the run's row, with the reply that asks."""
    if row.on_unknown is None:
        return tuple(to_open_call(SimpleNamespace(**call)) for call in row.calls or ())
    # What was sent into the run may have been saved with it.
    position, reply = load_messages(row.said)[-1]
    if not isinstance(reply, AssistantMessage):
        raise TypeError(f"message {position} is not a reply")
    (asked,) = reply.calls
    return (
        OpenCall(
            index=0,
            position=position + 1,
            call_id=asked.id,
            tool=asked.name,
            queue=row.queue,
            timeout_secs=row.timeout_secs,
            on_unknown=row.on_unknown,
            arguments=asked.arguments,
        ),
    )


def to_open_call(row: Row | SimpleNamespace) -> OpenCall:
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


def to_claim(row: Row, token: UUID) -> Claim:
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


def to_run(row: Row, text: str | None = None) -> Run:
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
        usage=_to_usage(row),
        model_calls=row.model_calls,
        tool_calls=row.tool_calls,
        start_at=row.start_at,
        # A later release may know more of them.
        priority=PRIORITIES.get(row.priority, "normal"),
        concurrency_key=row.concurrency_key,
        concurrency_limit=row.concurrency_limit,
        has_place=row.has_place,
        is_held=bool(row.held),
        agent_version=row.agent_version,
        outdated_at=row.outdated_at,
        outdated_by=row.outdated_by,
    )
