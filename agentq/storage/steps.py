"""The statements of a step: claim, load, commit, release. Each commit is refused once the lease is somebody else's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from pydantic import ValidationError
from sqlalchemy import Connection, text

from agentq.errors import ConfigError, LeaseLost
from agentq.limits import MAX_LANES
from agentq.messages import Message, ToolMessage, load_message
from agentq.outcomes import Transition
from agentq.run import OpenCall, Snapshot
from agentq.storage.rows import CALL_COLUMNS, SNAPSHOT_COLUMNS, Claim, dump, to_claim, to_open_call, to_snapshot
from agentq.wire import CallMessage, StepMessage

# Set for one statement in its own transaction: a claim lost with a crashing server is only work to be claimed again
# (for calls that must not run twice see Claim.forgotten).
NO_FSYNC = "fast AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))"

# In the first statement of a transaction that takes locks: a process that freezes inside it must not stop the others.
BOUNDED = """bounded AS MATERIALIZED (SELECT set_config('idle_in_transaction_session_timeout', '8000', true),
                                        set_config('lock_timeout', '8000', true))"""

# When the server last may have lost a claim: it crashed (statistics are reset then, and kept by a clean restart), or it
# took over from another (replayed until then). An unsafe call that was due before may have been begun.
FORGOT_AT = "greatest(pg_stat_get_bgwriter_stat_reset_time(), pg_last_xact_replay_timestamp())"

# How long a wake-up may take to be picked up before the sweep sends it again: a few seconds at first, which the caller
# says, then twice as patient each time up to a minute, so that a long backlog is not doubled every few seconds.
FIRST_PATIENCE = "now() + make_interval(secs => :patience_secs)"


def patience(since: str) -> str:
    """The SQL for the sweep's next look at work that has been announced ``since``."""
    return f"now() + least(greatest(now() - {since}, make_interval(secs => :patience_secs)), interval '60 s')"


# A leased row whose worker is lost: its lease ran out, or the worker, or one of its processes, is known to be gone.
IS_LOST = """lease_until IS NOT NULL AND (lease_until < now()
    OR worker = CAST(:gone AS text) OR starts_with(worker, CAST(:gone AS text) || '/'))"""


def overdue(timeout_secs: str, claimed_at: str) -> str:
    """The SQL for: a tool outlived its time limit; its lease is let go some time after that, and not before."""
    return f"old_until - {claimed_at} > make_interval(secs => {timeout_secs} + :lease_secs)"


_CLAIM = text(f"""
    WITH {NO_FSYNC}
    UPDATE agentq.runs SET
        lease_token = :token, lease_until = now() + make_interval(secs => :lease_secs), worker = :worker,
        sweep_at = NULL, attempt = attempt + 1, claimed_at = now(), status = 'running'
    FROM fast
    WHERE id = :run_id AND seq = :seq AND lease_token IS NULL AND due_at <= now() AND NOT cancel_requested
    RETURNING {SNAPSHOT_COLUMNS}, worker, due_at <= {FORGOT_AT} AS forgotten, false AS overdue
""")
_TAKE_OVER = text(f"""
    UPDATE agentq.runs SET
        -- Also when it was claimed: should we die as well, that was our lease, and not the tool's.
        lease_token = :token, lease_until = now() + make_interval(secs => :lease_secs), claimed_at = now()
    FROM (SELECT id AS old_id, lease_until AS old_until, claimed_at AS old_claimed_at FROM agentq.runs
          WHERE id = :run_id AND {IS_LOST} FOR UPDATE SKIP LOCKED) old
    WHERE id = old_id
    RETURNING {SNAPSHOT_COLUMNS}, worker, false AS forgotten, {overdue("timeout_secs", "old_claimed_at")} AS overdue
""")
_RELEASE = text(f"""
    UPDATE agentq.runs SET
        lease_token = NULL, lease_until = NULL,
        -- Given back by one who did not begin it: an earlier claim may be forgotten still, see Claim.forgotten.
        due_at = CASE WHEN due_at <= {FORGOT_AT} THEN due_at ELSE now() + make_interval(secs => :delay_secs) END,
        sweep_at = now() + make_interval(secs => CASE WHEN :delay_secs > 0 THEN :delay_secs ELSE :patience_secs END),
        status = CASE WHEN seq = 0 THEN 'queued' ELSE status END,
        attempt = attempt - :forgive, event_count = event_count + :events
    WHERE id = :run_id AND seq = :seq AND lease_token = :token
    RETURNING queue, timeout_secs, event_count, cancel_requested
""")
_OPEN_CALLS = text(f"""
    SELECT {CALL_COLUMNS} FROM agentq.tool_calls WHERE run_id = :run_id AND turn = :turn ORDER BY index
""")
_MESSAGES = text("""
    SELECT m.payload FROM agentq.messages m JOIN agentq.runs r ON r.id = m.run_id
    WHERE r.id = :run_id OR r.thread_id = :thread_id AND r.thread_position <
        (SELECT thread_position FROM agentq.runs WHERE id = :run_id)
    ORDER BY r.thread_position, m.position
""")
_MESSAGE_OF_TURN = text("""
    SELECT payload, CAST(:token AS uuid) IS NULL
        OR EXISTS (SELECT 1 FROM agentq.runs WHERE id = :run_id AND lease_token = :token)
        OR EXISTS (SELECT 1 FROM agentq.tool_calls WHERE run_id = :run_id AND lease_token = :token) AS is_ours
    FROM agentq.messages WHERE run_id = :run_id AND position = :position
""")


def claim(
    connection: Connection, run_id: str, seq: int, *, lease_secs: float, worker: str, token: UUID | None = None
) -> tuple[Claim, Snapshot] | None:
    """Take the step after snapshot ``seq``; None when it is taken, not due, or history. Needs an autocommit one."""
    token = token or uuid4()
    values = {"run_id": run_id, "seq": seq, "token": token, "lease_secs": lease_secs, "worker": worker}
    row = connection.execute(_CLAIM, values).first()
    try:
        return _claimed(connection, row, token)
    except ValidationError as error:
        unread = Claim(run_id, seq, token, 0)
        release(connection, unread, patience_secs=UNREADABLE_SECS, delay_secs=UNREADABLE_SECS, forgive=True)
        raise ConfigError(
            f"run {run_id} was saved by a newer release; update this worker, or start one that can"
        ) from error


def take_over(
    connection: Connection, run_id: str, *, lease_secs: float, gone: str | None = None
) -> tuple[Claim, Snapshot] | None:
    """Take a step whose lease ran out, to settle what became of it; None when its owner is alive or it was committed.

    ``gone`` is a worker, or a process of one, that is known to be dead. ``Claim.worker`` is the one that was lost.
    """
    token = uuid4()
    values = {"run_id": run_id, "token": token, "lease_secs": lease_secs, "gone": gone}
    return _claimed(connection, connection.execute(_TAKE_OVER, values).first(), token)


def _claimed(connection: Connection, row: Any, token: UUID) -> tuple[Claim, Snapshot] | None:
    if row is None:
        return None
    calls = open_calls(connection, row.id, row.turn) if row.phase in ("review", "tools") else ()
    return to_claim(row, token), to_snapshot(row, calls)


@dataclass(frozen=True)
class Again:
    """What work that is to be done again needs: a wake-up now (None: later, or by others), or the run's end."""

    wake_up: StepMessage | CallMessage | None = None
    is_cancelled: bool = False


def release(
    connection: Connection,
    claim: Claim,
    *,
    patience_secs: float,
    delay_secs: float = 0.0,
    forgive: bool = False,
    events: Sequence["NewEvent"] = (),
) -> Again:
    """Give the step back undone, due again after ``delay_secs``; ``forgive`` does not count the attempt."""
    values = {"run_id": claim.run_id, "seq": claim.seq, "token": claim.token, "delay_secs": delay_secs}
    values |= {"patience_secs": patience_secs, "forgive": int(forgive), "events": len(events)}
    row = connection.execute(_RELEASE, values).first()
    if row is None:
        return Again()
    add_events(connection, claim.run_id, row.event_count, events)
    if row.cancel_requested:
        return Again(is_cancelled=True)
    wake_up = StepMessage(claim.run_id, claim.seq, row.queue, row.timeout_secs)
    return Again(wake_up if delay_secs == 0 else None)


def open_calls(connection: Connection, run_id: str, turn: int) -> tuple[OpenCall, ...]:
    rows = connection.execute(_OPEN_CALLS, {"run_id": run_id, "turn": turn})
    return tuple(to_open_call(row) for row in rows)


def transcript(connection: Connection, run_id: str, thread_id: str | None) -> tuple[Message, ...]:
    """All messages the run may see: those of earlier runs of its thread, then its own."""
    rows = connection.execute(_MESSAGES, {"run_id": run_id, "thread_id": thread_id})
    return tuple(load_message(row.payload) for row in rows)


def message_at(connection: Connection, run_id: str, position: int, *, token: UUID | None = None) -> Message:
    """One message; with the ``token`` of a lease only while that is held, else it raises LeaseLost."""
    row = connection.execute(_MESSAGE_OF_TURN, {"run_id": run_id, "position": position, "token": token}).one()
    if not row.is_ours:
        raise LeaseLost(f"run {run_id}: what this process was to do was given to another one before it began")
    return load_message(row.payload)


@dataclass(frozen=True)
class NewEvent:
    type: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Next:
    """Where the following step runs: its queue, and the time limit of the tool it runs itself."""

    queue: str
    timeout_secs: float | None = None


_COMMIT = text(f"""
    WITH {BOUNDED}
    UPDATE agentq.runs SET
        seq = :seq, status = :status, phase = :phase, turn = :turn, progress = :progress,
        message_count = :message_count, event_count = event_count + :events, open_calls = :open_calls,
        asked_calls = :asked_calls,
        deadline_at = CASE WHEN NOT :ended THEN created_at + make_interval(secs => :run_secs) END,
        queue = :queue, timeout_secs = :timeout_secs,
        due_at = now() + make_interval(secs => :delay_secs),
        sweep_at = CASE WHEN :ended AND (parent_run_id IS NOT NULL OR :status <> 'completed' AND EXISTS (
                            SELECT 1 FROM agentq.runs c WHERE c.parent_run_id = runs.id
                                AND c.status NOT IN ('completed', 'failed', 'cancelled')))
                        THEN {FIRST_PATIENCE}
                        WHEN :delay_secs > 0 THEN now() + make_interval(secs => :delay_secs)
                        WHEN :delay_secs = 0 THEN {FIRST_PATIENCE} END,
        attempt = 0, lease_token = NULL, lease_until = NULL,
        stop_reason = :stop_reason, output = :output, error = :error,
        updated_at = now(), finished_at = CASE WHEN :ended THEN now() END
    FROM bounded
    WHERE id = :run_id AND seq = :old_seq AND lease_token IS NOT DISTINCT FROM :token
        AND (:even_if_cancelled OR NOT cancel_requested) AND status NOT IN ('completed', 'failed', 'cancelled')
    RETURNING event_count
""")
_IS_OURS = text(
    "SELECT 1 FROM agentq.runs WHERE id = :run_id AND seq = :seq AND lease_token IS NOT DISTINCT FROM :token"
)
_INSERT_MESSAGE = text("INSERT INTO agentq.messages (run_id, position, payload) VALUES (:run_id, :position, :payload)")
_INSERT_EVENT = text("INSERT INTO agentq.events (run_id, number, type, data) VALUES (:run_id, :number, :type, :data)")
_INSERT_CALL = text("""
    INSERT INTO agentq.tool_calls (run_id, turn, index, position, call_id, tool, kind, queue, timeout_secs, on_unknown,
                                   needs_approval, status, code)
    VALUES (:run_id, :turn, :index, :position, :call_id, :tool, :kind, :queue, :timeout_secs, :on_unknown,
            :needs_approval, :status, :code)
""")
_CLOSE_CALL = text("""
    UPDATE agentq.tool_calls SET status = 'done', code = :code, lease_token = NULL, lease_until = NULL, sweep_at = NULL,
                                 finished_at = now()
    WHERE run_id = :run_id AND turn = :turn AND index = :index
""")
_ASK_CALL = text("""
    UPDATE agentq.tool_calls SET
        status = 'asked', lease_token = NULL, lease_until = NULL, sweep_at = NULL,
        attempt = greatest(attempt, 1)  -- a step that ran its only call itself has counted for it
    WHERE run_id = :run_id AND turn = :turn AND index = :index
""")
_INSERT_APPROVAL = text("""
    INSERT INTO agentq.approvals (run_id, turn, index, number, kind, call_id, tool, arguments, arguments_sha256, status)
    SELECT :run_id, :turn, :index, count(*), :kind, :call_id, :tool, :arguments,
        encode(sha256(convert_to(:arguments, 'UTF8')), 'hex'), 'pending'
    FROM agentq.approvals WHERE run_id = :run_id AND turn = :turn AND index = :index
""")
_CLOSE_APPROVALS = text("""
    UPDATE agentq.approvals SET status = 'closed', decided_at = now() WHERE run_id = :run_id AND status = 'pending'
""")


# A run of a newer release waits this long for a worker that can read it.
UNREADABLE_SECS = 30.0


class CancelRequested(Exception):
    """The commit was refused because somebody asked to cancel the run; apply the cancelled transition instead."""


def commit(
    connection: Connection,
    transition: Transition,
    *,
    token: UUID | None,
    patience_secs: float,
    following: Next,
    events: Sequence[NewEvent],
    even_if_cancelled: bool = False,
    arguments: dict[int, str] | None = None,
) -> None:
    """Save a step inside the caller's transaction: all of it, or nothing.

    ``token`` is the lease (None for a run that nobody works on, whose row the caller has locked). ``arguments`` are the
    texts put before a person, by call index. Raises LeaseLost or CancelRequested, with nothing written.
    """
    snapshot, ending = transition.snapshot, transition.ending
    values = _run_values(transition) | {
        "token": token,
        "patience_secs": patience_secs,
        "events": len(events),
        "queue": following.queue,
        "timeout_secs": following.timeout_secs,
        "even_if_cancelled": even_if_cancelled,
    }
    row = connection.execute(_COMMIT, values).first()
    if row is None:
        _refused(connection, snapshot, token)
    run = {"run_id": snapshot.run_id, "turn": snapshot.turn}
    add_events(connection, snapshot.run_id, row.event_count, events)  # type: ignore[union-attr]
    _add_messages(connection, snapshot.run_id, transition.messages)
    codes = dict(transition.closed)
    new = {call.index for call in transition.opened}
    _many(connection, _INSERT_CALL, [run | _call_values(call, codes.get(call.index)) for call in transition.opened])
    closed = [(index, result) for index, result in transition.closed if index not in new]
    _many(
        connection, _CLOSE_CALL, [run | {"index": index, "code": result.code or "success"} for index, result in closed]
    )
    for call in transition.approvals:
        ask(connection, snapshot, call, (arguments or {})[call.index])
    if ending is not None and snapshot.phase in ("review", "tools"):
        connection.execute(_CLOSE_APPROVALS, {"run_id": snapshot.run_id})


def _run_values(transition: Transition) -> dict[str, Any]:
    snapshot, ending = transition.snapshot, transition.ending
    return {
        "run_id": snapshot.run_id,
        "old_seq": snapshot.seq - 1,
        "seq": snapshot.seq,
        "status": snapshot.status,
        "phase": snapshot.phase,
        "turn": snapshot.turn,
        "progress": snapshot.progress.model_dump_json(exclude_defaults=True),
        "message_count": snapshot.message_count,
        "open_calls": len(snapshot.pending),
        "asked_calls": sum(call.status == "asked" for call in snapshot.pending),
        "run_secs": snapshot.limits.run_secs,
        "delay_secs": transition.delay_secs,
        "ended": ending is not None,
        "stop_reason": ending.stop_reason if ending else None,
        "output": dump(ending.output) if ending and ending.stop_reason in ("output", "hook_end") else None,
        "error": ending.error.model_dump_json() if ending and ending.error else None,
    }


def _refused(connection: Connection, snapshot: Snapshot, token: UUID | None) -> None:
    ours = {"run_id": snapshot.run_id, "seq": snapshot.seq - 1, "token": token}
    if connection.execute(_IS_OURS, ours).first() is not None:
        raise CancelRequested
    raise LeaseLost(f"run {snapshot.run_id}: step {snapshot.seq - 1} belongs to another process or is history")


def add_events(connection: Connection, run_id: str, count: int, events: Sequence[NewEvent]) -> None:
    """Write events whose numbers end at ``count``, which the caller's UPDATE of the run has reserved."""
    first = count - len(events) + 1
    rows = [
        {"run_id": run_id, "number": first + i, "type": event.type, "data": dump(event.data)}
        for i, event in enumerate(events)
    ]
    _many(connection, _INSERT_EVENT, rows)


def _add_messages(connection: Connection, run_id: str, messages: Sequence[tuple[int, Message]]) -> None:
    rows = [
        {"run_id": run_id, "position": position, "payload": message.model_dump_json(exclude_defaults=False)}
        for position, message in messages
    ]
    _many(connection, _INSERT_MESSAGE, rows)


def add_result(connection: Connection, run_id: str, position: int, message: ToolMessage) -> None:
    _add_messages(connection, run_id, [(position, message)])


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


def ask(connection: Connection, snapshot: Snapshot, call: OpenCall, arguments: str) -> None:
    """Put a call before a person: may it run, or, where its status is "asked", did it take effect."""
    where = {"run_id": snapshot.run_id, "turn": snapshot.turn, "index": call.index}
    kind = "outcome" if call.status == "asked" else "approval"
    values = {"kind": kind, "call_id": call.call_id, "tool": call.tool, "arguments": arguments}
    connection.execute(_INSERT_APPROVAL, where | values)
    if kind == "outcome":
        connection.execute(_ASK_CALL, where)


def _many(connection: Connection, statement: Any, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(statement, rows)


_ANNOUNCE_FIRST = text(f"""
    UPDATE agentq.tool_calls SET status = 'announced', announced_at = now(), sweep_at = {FIRST_PATIENCE}
    WHERE run_id = :run_id AND turn = :turn AND status = 'pending' AND kind = 'tool' AND index IN (
        SELECT index FROM agentq.tool_calls
        WHERE run_id = :run_id AND turn = :turn AND status = 'pending' AND kind = 'tool'
        ORDER BY index LIMIT {MAX_LANES})
    RETURNING index AS call_index, queue, timeout_secs
""")


def announce_first(connection: Connection, snapshot: Snapshot, *, patience_secs: float) -> tuple[CallMessage, ...]:
    """Put the first calls of an opened batch on their lanes, at most eight."""
    values = {"run_id": snapshot.run_id, "turn": snapshot.turn, "patience_secs": patience_secs}
    rows = connection.execute(_ANNOUNCE_FIRST, values).all()
    return tuple(
        CallMessage(snapshot.run_id, snapshot.seq, row.call_index, row.queue, row.timeout_secs)
        for row in sorted(rows, key=lambda row: row.call_index)
    )
