"""New runs: one statement writes the run, its message and its first event, or nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentq.errors import RunFinishedError, ThreadBusyError
from agentq.messages import UserMessage
from agentq.run import Progress
from agentq.storage import journal
from agentq.storage.journal import NewEvent
from agentq.storage.rows import CallRef, dump, of_progress
from agentq.storage.sql import Connection, text
from agentq.storage.steps import FIRST_PATIENCE
from agentq.wire import STEP_QUEUE

_COLUMNS = """id, agent, status, phase, seq, turn, depth, progress, context, tags, idempotency_key,
                                 thread_id, thread_position, parent_run_id, parent_turn, parent_index, message_count,
                                 event_count, queue, due_at, sweep_at, sweep_look_at, lease_look_at, deadline_at"""
# Only where there is a key: Postgres logs one record more for a row that might have met another.
_OTHER = "ON CONFLICT (agent, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING"
_INSERT, _INSERT_KEYED = (
    text(f"""
    WITH run AS (
        INSERT INTO agentq.runs ({_COLUMNS})
        VALUES (:id, :agent, 'queued', 'recall', 0, 0, :depth, :progress, :context, CAST(:tags AS jsonb),
                :idempotency_key, :thread_id, :thread_position, :parent_run_id, :parent_turn, :parent_index, 1, 1,
                -- Looked at for its lease before it has one, so that the first claim need not change that.
                :queue, now(), {FIRST_PATIENCE}, {FIRST_PATIENCE}, {FIRST_PATIENCE},
                now() + make_interval(secs => :run_secs))
        {other}
        RETURNING id, number, event_count
    ), told AS (
        {journal.ADD}
    )
    SELECT id FROM run
""")
    for other in ("", _OTHER)
)
MANY = 10_000
# Only the first are announced by who enqueues them: the sweep looks for the others at once.
_MANY_AT = f"CASE WHEN n <= :announced THEN {FIRST_PATIENCE} ELSE now() END"
_INSERT_MANY = text(f"""
    WITH new AS MATERIALIZED (
        SELECT r.id, r.said, r.n
        FROM ROWS FROM (json_to_recordset(CAST(:runs AS json)) AS (id text, said text)) WITH ORDINALITY r (id, said, n)
    ), run AS (
        INSERT INTO agentq.runs ({_COLUMNS})
        SELECT id, :agent, 'queued', 'recall', 0, 0, 0, :progress, :context, CAST(:tags AS jsonb), NULL, NULL, NULL,
            NULL, NULL, NULL, 1, 1, :queue, now(),
            {_MANY_AT}, {_MANY_AT}, NULL, now() + make_interval(secs => :run_secs)
        FROM new
        RETURNING id, number
    )
    INSERT INTO agentq.journal (run, number, events, messages)
    SELECT run.number, 1, :happened, new.said FROM run JOIN new USING (id)
""")
_SAME_KEY = text("SELECT id FROM agentq.runs WHERE agent = :agent AND idempotency_key = :key")
_THREAD = text("INSERT INTO agentq.threads (id) VALUES (:id) ON CONFLICT DO NOTHING")
_LOCK_THREAD = text("SELECT 1 FROM agentq.threads WHERE id = :id FOR UPDATE")
_LATEST = text("""
    SELECT id, status, thread_position, kept IS NOT NULL AS is_void FROM agentq.runs
    WHERE thread_id = :id ORDER BY thread_position DESC LIMIT 1
""")


@dataclass(frozen=True)
class NewRun:
    """What a producer asks for. ``tags`` are searchable; ``context`` is handed to tools."""

    id: str
    agent: str
    text: str
    progress: Progress
    context: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    thread_id: str | None = None
    depth: int = 0
    parent: CallRef | None = None
    # The run's time limit as far as the producer knows it; a worker that has the agent may set it with the first step.
    run_secs: float | None = None


def insert(connection: Connection, new: NewRun, *, patience_secs: float) -> str:
    """Write the run and return its id: an earlier run's id where agent and idempotency key are the same.

    Needs a transaction only where the run is of a thread. Raises ThreadBusyError while another run of the thread has
    not ended.
    """
    position = None
    if new.thread_id is not None:
        connection.execute(_THREAD, {"id": new.thread_id})
        connection.execute(_LOCK_THREAD, {"id": new.thread_id})
        # Asked under the lock: the run with this key may be the one that keeps the thread busy.
        if new.idempotency_key is not None and (same := _same(connection, new)):
            return same
        position = _next_position(connection, new.thread_id)
    parent = new.parent
    values = {
        "id": new.id,
        "agent": new.agent,
        "depth": new.depth,
        "progress": of_progress(new.progress)["progress"],
        "context": dump(new.context),
        "tags": dump(new.tags),
        "idempotency_key": new.idempotency_key,
        "thread_id": new.thread_id,
        "thread_position": position,
        "parent_run_id": parent.run_id if parent else None,
        "parent_turn": parent.turn if parent else None,
        "parent_index": parent.index if parent else None,
        "queue": STEP_QUEUE,
        "patience_secs": patience_secs,
        "run_secs": new.run_secs,
    }
    values |= _told(new)
    if connection.first(_INSERT if new.idempotency_key is None else _INSERT_KEYED, values) is None:
        same = _same(connection, new)
        if same is None:
            raise RunFinishedError(
                f"the run with idempotency key {new.idempotency_key!r} was deleted just now; try again"
            )
        return same
    return new.id


def insert_many(connection: Connection, new: Sequence[NewRun], *, announced: int, patience_secs: float) -> None:
    """Write runs that differ in nothing but id and text, and are of no thread and no parent; ten thousand a statement.

    The first ``announced`` are announced by the caller, the others by the sweep.
    """
    first = new[0]
    values = {
        "agent": first.agent,
        "progress": of_progress(first.progress)["progress"],
        "context": dump(first.context),
        "tags": dump(first.tags),
        "queue": STEP_QUEUE,
        "patience_secs": patience_secs,
        "run_secs": first.run_secs,
        "happened": _told(first)["happened"],
    }
    for start in range(0, len(new), MANY):
        some = new[start : start + MANY]
        runs = [{"id": run.id, "said": _told(run)["said"]} for run in some]
        connection.execute(_INSERT_MANY, values | {"runs": dump(runs), "announced": max(0, announced - start)})


def _told(new: NewRun) -> dict[str, Any]:
    return journal.entry([NewEvent("run.enqueued", {"agent": new.agent})], [(0, UserMessage(text=new.text))])


def _same(connection: Connection, new: NewRun) -> str | None:
    same: str | None = connection.execute(_SAME_KEY, {"agent": new.agent, "key": new.idempotency_key}).scalar()
    return same


def _next_position(connection: Connection, thread_id: str) -> int:
    latest = connection.execute(_LATEST, {"id": thread_id}).first()
    if latest is None:
        return 0
    if latest.status not in ("completed", "failed", "cancelled") and not latest.is_void:
        raise ThreadBusyError(
            f"thread {thread_id!r} is busy with run {latest.id} ({latest.status}); wait for it or cancel it",
            run_id=latest.id,
        )
    return int(latest.thread_position) + 1
