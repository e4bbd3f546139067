"""The statements around a step: claim it, load what it works on, give it back."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from pydantic import ValidationError

from agentq.errors import ConfigError, LeaseLost
from agentq.messages import AssistantMessage, Message, load_messages
from agentq.run import OpenCall, Snapshot
from agentq.storage import journal
from agentq.storage.journal import NewEvent
from agentq.storage.pace import LIVE
from agentq.storage.rows import (
    CALL_COLUMNS,
    SNAPSHOT_COLUMNS,
    Claim,
    to_claim,
    to_open_calls,
    to_snapshot,
)
from agentq.storage.sql import Connection, Row, text
from agentq.values import replace
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

# An UPDATE that changes an indexed column writes all indexes of its table. So the sweep finds runs by columns of their
# own, which need not be exact: they never lie behind lease_until and sweep_at, but mostly before them, and the sweep
# moves those on that it has looked at in vain.


# A run with a concurrency key needs one of its places: see line.py.
MAY_BEGIN = "(concurrency_key IS NULL OR has_place)"


def leased(until: str) -> str:
    """The SQL that sets the end of a run's lease."""
    return f"lease_until = {until}, lease_look_at = least(lease_look_at, {until})"


def swept(at: str) -> str:
    """The SQL that sets when a run's wake-up is sent again."""
    return f"sweep_at = {at}, sweep_look_at = least(sweep_look_at, {at})"


def patience(since: str) -> str:
    """The SQL for the sweep's next look at work that has been announced ``since``."""
    return f"now() + least(greatest(now() - {since}, make_interval(secs => :patience_secs)), interval '60 s')"


# A leased row whose worker is lost: its lease ran out, or the worker, or one of its processes, is known to be gone.
IS_LOST = """lease_until IS NOT NULL AND (lease_until < now()
    OR worker = CAST(:gone AS text) OR starts_with(worker, CAST(:gone AS text) || '/'))"""


def begun_at(run: str) -> str:
    """The SQL for when the tool that a step runs itself was begun; ``run`` is the alias of its row.

    It was claimed then, or follows in its process on the reply that asked for it, whose commit does not say it twice.
    """
    replied = f"SELECT j.at FROM agentq.journal j WHERE j.run = {run}.number AND j.number = {run}.reply"
    return f"greatest({run}.claimed_at, ({replied}))"


def overdue(timeout_secs: str, claimed_at: str) -> str:
    """The SQL for: a tool outlived its time limit; its lease is let go some time after that, and not before."""
    return f"old_until - {claimed_at} > make_interval(secs => {timeout_secs} + :lease_secs)"


# The calls of the open turn, with the run's row; of a single one what its reply says.
_CALLS = f"""on_unknown, queue, timeout_secs, CASE WHEN phase IN ('review', 'tools') AND on_unknown IS NULL THEN (
    SELECT json_agg(c ORDER BY call_index)
    FROM (SELECT {CALL_COLUMNS} FROM agentq.tool_calls c
          WHERE c.run_id = runs.id AND c.turn = runs.turn) c) END AS calls,
    CASE WHEN on_unknown IS NOT NULL THEN (
        SELECT messages FROM agentq.journal j WHERE j.run = runs.number AND j.number = runs.reply) END AS said"""

# A run of a newer release waits this long for a worker that can read it.
UNREADABLE_SECS = 30.0

_CLAIM = text(f"""
    WITH {NO_FSYNC}
    UPDATE agentq.runs SET
        lease_token = :token, {leased("now() + make_interval(secs => :lease_secs)")}, worker = :worker,
        sweep_at = NULL, attempt = attempt + 1, claimed_at = now(), status = 'running'
    FROM fast
    WHERE id = :run_id AND seq = :seq AND lease_token IS NULL AND due_at <= now() AND NOT cancel_requested
        AND {MAY_BEGIN}
    RETURNING {SNAPSHOT_COLUMNS}, worker, due_at <= {FORGOT_AT} AS forgotten, false AS overdue, {_CALLS},
        CASE WHEN phase IN ('recall', 'model') THEN {LIVE} END AS cooling
""")
_TAKE_OVER = text(f"""
    UPDATE agentq.runs SET
        -- Also when it was claimed, and by whom: should we die as well, that was our lease, and not the tool's.
        lease_token = :token, {leased("now() + make_interval(secs => :lease_secs)")}, claimed_at = now(),
        worker = :worker
    FROM (SELECT id AS old_id, lease_until AS old_until, {begun_at("runs")} AS begun_at, worker AS lost_worker
          FROM agentq.runs WHERE id = :run_id AND {IS_LOST} FOR UPDATE SKIP LOCKED) old
    WHERE id = old_id
    RETURNING {SNAPSHOT_COLUMNS}, lost_worker AS worker, queue, false AS forgotten,
        {overdue("timeout_secs", "begun_at")} AS overdue
""")
_RELEASE = text(f"""
    UPDATE agentq.runs SET
        lease_token = NULL, lease_until = NULL,
        -- Given back by one who did not begin it: an earlier claim may be forgotten still, see Claim.forgotten.
        due_at = CASE WHEN due_at <= {FORGOT_AT} AND NOT :follows THEN due_at
                      ELSE now() + make_interval(secs => :delay_secs) END,
        {swept("now() + make_interval(secs => CASE WHEN :delay_secs > 0 THEN :delay_secs ELSE :patience_secs END)")},
        status = CASE WHEN seq = 0 THEN 'queued' ELSE status END,
        attempt = attempt - :forgive, event_count = event_count + :events
    WHERE id = :run_id AND seq = :seq AND lease_token = :token
    RETURNING number, queue, timeout_secs, event_count, cancel_requested, priority
""")
_OPEN_CALLS = text(f"SELECT {_CALLS} FROM agentq.runs WHERE id = :run_id")
_MESSAGES = text(f"""
    SELECT messages FROM agentq.journal j WHERE {journal.IS_OF_RUN} AND j.number > :after AND messages IS NOT NULL
""")
_REPLY = text("""
    SELECT j.messages, CAST(:token AS uuid) IS NULL OR r.lease_token = :token
        OR EXISTS (SELECT 1 FROM agentq.tool_calls WHERE run_id = :run_id AND lease_token = :token) AS is_ours
    FROM agentq.runs r JOIN agentq.journal j ON j.run = r.number AND j.number = r.reply WHERE r.id = :run_id
""")


def claim(
    connection: Connection, run_id: str, seq: int, *, lease_secs: float, worker: str, token: UUID | None = None
) -> tuple[Claim, Snapshot] | None:
    """Take the step after snapshot ``seq``; None when it is taken, not due, or history. Needs an autocommit one."""
    token = token or uuid4()
    values = {"run_id": run_id, "seq": seq, "token": token, "lease_secs": lease_secs, "worker": worker}
    row = connection.first(_CLAIM, values)
    try:
        return None if row is None else (_to_claim(row, token), to_snapshot(row, to_open_calls(row)))
    except ValidationError as error:
        unread = Claim(run_id, seq, token, 0)
        release(connection, unread, patience_secs=UNREADABLE_SECS, delay_secs=UNREADABLE_SECS, forgive=True)
        raise ConfigError(
            f"run {run_id} was saved by a newer release; update this worker, or start one that can"
        ) from error


def _to_claim(row: Row, token: UUID) -> Claim:
    looked = row.phase in ("recall", "model")
    return replace(to_claim(row, token), cooling=(row.cooling or ()) if looked else None)


def take_over(
    connection: Connection, run_id: str, *, lease_secs: float, worker: str, gone: str | None = None
) -> tuple[Claim, Snapshot] | None:
    """Take a step whose lease ran out, to settle what became of it; None when its owner is alive or it was committed.

    ``gone`` is a worker, or a process of one, that is known to be dead. ``Claim.worker`` is the one that was lost.
    """
    token = uuid4()
    values = {"run_id": run_id, "token": token, "lease_secs": lease_secs, "worker": worker, "gone": gone}
    row = connection.execute(_TAKE_OVER, values).first()
    # Read after it: what a lost worker committed at its last moment is not seen by the statement that waited for that.
    return None if row is None else (to_claim(row, token), to_snapshot(row, open_calls(connection, run_id)))


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
    events: Sequence[NewEvent] = (),
) -> Again:
    """Give the step back undone, due again after ``delay_secs``; ``forgive`` does not count the attempt."""
    values = {"run_id": claim.run_id, "seq": claim.seq, "token": claim.token, "delay_secs": delay_secs}
    values |= {"patience_secs": patience_secs, "forgive": int(forgive), "events": len(events), "follows": claim.follows}
    row = connection.execute(_RELEASE, values).first()
    if row is None:
        return Again()
    if events:
        journal.add(connection, row.number, row.event_count, events)
    if row.cancel_requested:
        return Again(is_cancelled=True)
    wake_up = StepMessage(claim.run_id, claim.seq, row.queue, row.timeout_secs, row.priority)
    return Again(wake_up if delay_secs == 0 else None)


def open_calls(connection: Connection, run_id: str) -> tuple[OpenCall, ...]:
    """The calls of the open turn."""
    return to_open_calls(connection.execute(_OPEN_CALLS, {"run_id": run_id}).one())


def messages_after(connection: Connection, run_id: str, after: int) -> dict[int, Message]:
    """The run's own messages by position, of the journal's rows that are numbered higher than ``after``."""
    rows = connection.fetch(_MESSAGES, {"run_id": run_id, "after": after})
    return dict(journal.messages_in(row.messages for row in rows))


def reply(connection: Connection, run_id: str, *, token: UUID | None = None) -> AssistantMessage:
    """The reply whose calls are open. With the ``token`` of a lease that is not held any more it raises LeaseLost."""
    row = connection.execute(_REPLY, {"run_id": run_id, "token": token}).one()
    if not row.is_ours:
        raise LeaseLost(f"run {run_id}: what this process was to do was given to another one before it began")
    return last_reply(row.messages)


def last_reply(said: str) -> AssistantMessage:
    """The last reply among the messages of a row of the journal."""
    return [message for _, message in load_messages(said) if isinstance(message, AssistantMessage)][-1]
