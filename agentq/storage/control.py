"""What happens to a run from outside: its row is locked, it is asked to end, a waiting call is answered."""

from collections.abc import Sequence

from agentq.errors import RunNotFoundError
from agentq.messages import ToolMessage, ToolResult
from agentq.run import TERMINAL, OpenCall, Snapshot
from agentq.storage import journal
from agentq.storage.journal import NewEvent, Placed
from agentq.storage.rows import SNAPSHOT_COLUMNS, began_at, of_progress, to_snapshot
from agentq.storage.sql import Connection, text
from agentq.storage.steps import BOUNDED, FIRST_PATIENCE, open_calls
from agentq.values import replace
from agentq.wire import STEP_QUEUE, StepMessage

_LOCK = text(f"""
    WITH {BOUNDED}
    SELECT {SNAPSHOT_COLUMNS}, lease_token IS NOT NULL AS at_work, held
    FROM bounded, agentq.runs WHERE id = :run_id FOR UPDATE OF runs
""")
_TIME_LIMIT = text(f"""
    SELECT CAST(EXTRACT(epoch FROM deadline_at - {began_at("runs")}) AS float) FROM agentq.runs
    WHERE id = :run_id AND deadline_at <= now()
""")
_ASK_CANCEL = text("UPDATE agentq.runs SET cancel_requested = true WHERE id = :run_id")
_COUNT_EVENTS = text("""
    UPDATE agentq.runs SET event_count = event_count + :events WHERE id = :run_id
    RETURNING number, event_count
""")
_CHILDREN = text("""
    SELECT id FROM agentq.runs WHERE parent_run_id = :run_id AND status NOT IN ('completed', 'failed', 'cancelled')
""")
_THREAD = text("SELECT thread_id, parent_run_id FROM agentq.runs WHERE id = :run_id")
_REOPEN = text(f"""
    UPDATE agentq.runs SET
        seq = :seq, status = 'running', phase = 'recall', progress = :progress, message_count = :message_count,
        event_count = event_count + 1, queue = :queue, timeout_secs = NULL, on_unknown = NULL, open_calls = 0,
        asked_calls = 0, stop_reason = NULL, output = NULL, error = NULL, finished_at = NULL, cancel_requested = false,
        on_end_at = NULL, held = NULL, attempt = 0, due_at = now(),
        start_at = CASE WHEN held THEN now() ELSE start_at END,
        -- Who retries a run that ended since its agent changed means the agent as it is.
        agent_version = CASE WHEN CAST(error AS json) ->> 'code' = 'agent_changed' THEN NULL ELSE agent_version END,
        sweep_at = {FIRST_PATIENCE}, sweep_look_at = {FIRST_PATIENCE},
        lease_look_at = {FIRST_PATIENCE},
        deadline_at = CASE WHEN held THEN now() ELSE {began_at("runs")} END + make_interval(secs => :run_secs)
    WHERE id = :run_id AND seq = :seq - 1
    RETURNING number, event_count
""")
_CLOSE = text("""
    UPDATE agentq.tool_calls SET status = 'done', code = :code, finished_at = now()
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
        raise _not_found(run_id)
    calls = open_calls(connection, run_id) if row.phase in ("review", "tools") else ()
    snapshot = to_snapshot(row, () if row.status in TERMINAL else calls)
    if row.held:
        # Its time begins with its turn.
        snapshot = replace(snapshot, age_secs=0.0)
    return snapshot, bool(row.at_work) or any(call.status == "running" for call in calls)


def _not_found(run_id: str) -> RunNotFoundError:
    return RunNotFoundError(f"there is no run {run_id!r}; see: agentq runs ls", run_id=run_id)


def ask_cancel(connection: Connection, run_id: str) -> None:
    """Leave word for the worker that is at the run; it ends the run with its next commit."""
    connection.execute(_ASK_CANCEL, {"run_id": run_id})


def note(connection: Connection, run_id: str, events: Sequence[NewEvent], messages: Sequence[Placed] = ()) -> None:
    """Add events that no step brought, and what came with them."""
    row = connection.execute(_COUNT_EVENTS, {"run_id": run_id, "events": len(events)}).one()
    journal.add(connection, row.number, row.event_count, events, messages)


def family(connection: Connection, run_id: str) -> tuple[str | None, str | None]:
    """The run's thread, and the run it is a sub-agent's of. Raises RunNotFoundError."""
    row = connection.execute(_THREAD, {"run_id": run_id}).first()
    if row is None:
        raise _not_found(run_id)
    return row.thread_id, row.parent_run_id


def reopen(
    connection: Connection, after: Snapshot, event: NewEvent, said: Sequence[Placed], *, patience_secs: float
) -> StepMessage:
    """Let a run that has ended, and whose row the caller has locked, go on; the answer is its wake-up."""
    # All that is known of the limits of one that has never begun.
    given = after.progress.limit_overrides
    values = {
        "run_id": after.run_id,
        "seq": after.seq,
        "progress": of_progress(after.progress)["progress"],
        "message_count": after.message_count,
        "queue": STEP_QUEUE,
        "patience_secs": patience_secs,
        "run_secs": after.progress.limits.run_secs if after.progress.limits else given.get("run_secs"),
    }
    row = connection.execute(_REOPEN, values).one()
    journal.add(connection, row.number, row.event_count, [event], said)
    return StepMessage(after.run_id, after.seq, priority=after.priority)


def open_children(connection: Connection, run_id: str) -> tuple[str, ...]:
    return tuple(connection.execute(_CHILDREN, {"run_id": run_id}).scalars())


def close(connection: Connection, snapshot: Snapshot, call: OpenCall, result: ToolResult) -> Placed:
    """Answer a call under review that is not going to run; its message is for the journal."""
    where = {"run_id": snapshot.run_id, "turn": snapshot.turn, "index": call.index}
    position = connection.execute(_CLOSE, where | {"code": result.code or "success"}).scalar()
    return position, ToolMessage(result=result)
