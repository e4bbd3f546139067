"""The statements of a single call of a batch: claim it, finish it, put the next one on the lane."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from agentq.errors import LeaseLost
from agentq.limits import MAX_LANES
from agentq.messages import AssistantMessage, ToolMessage, ToolResult, Usage, dump_message
from agentq.run import OpenCall, Snapshot
from agentq.storage import commits, journal
from agentq.storage.approvals import STANDING, Answer, Question
from agentq.storage.commits import CancelRequested
from agentq.storage.journal import NewEvent
from agentq.storage.rows import (
    SNAPSHOT_COLUMNS,
    CallRef,
    Claim,
    snapshot_columns,
    to_claim,
    to_open_call,
    to_snapshot,
    usage_values,
)
from agentq.storage.sql import Connection, Row, text
from agentq.storage.steps import (
    BOUNDED,
    FIRST_PATIENCE,
    FORGOT_AT,
    IS_LOST,
    NO_FSYNC,
    last_reply,
    open_calls,
    overdue,
)
from agentq.values import replace
from agentq.wire import CallMessage

_RUN = snapshot_columns("r")
_CALL = f"""c.index AS call_index, c.position, c.call_id, c.tool, c.kind, c.queue, c.timeout_secs, c.on_unknown,
    c.needs_approval, c.status AS call_status, c.attempt > 0 AS begun, c.attempt,
    c.announced_at <= {FORGOT_AT} AS forgotten"""

_CLAIM = text(f"""
    WITH {NO_FSYNC}
    UPDATE agentq.tool_calls c SET
        status = 'running', lease_token = :token, lease_until = now() + make_interval(secs => :lease_secs),
        worker = :worker, sweep_at = NULL, attempt = c.attempt + 1,
        claimed_at = now()
    FROM fast, (
        -- A cancel that ends the run waits for this lock, and then sees the call as running.
        SELECT * FROM agentq.runs WHERE id = :run_id AND seq = :seq AND NOT cancel_requested FOR KEY SHARE) r
    WHERE c.run_id = r.id AND c.turn = r.turn AND c.index = :index AND c.status = 'announced'
    RETURNING {_RUN}, {_CALL}, c.worker, false AS overdue,
        (SELECT j.messages FROM agentq.journal j WHERE j.run = r.number AND j.number = r.reply) AS said
""")
_TAKE_OVER = text(f"""
    UPDATE agentq.tool_calls c SET
        lease_token = :token, lease_until = now() + make_interval(secs => :lease_secs), claimed_at = now(),
        worker = :worker
    FROM (
        -- A run that somebody has locked could not be saved: the sweep goes on to others.
        SELECT * FROM agentq.runs WHERE id = :run_id FOR NO KEY UPDATE SKIP LOCKED) r, (
        SELECT lease_until AS old_until, claimed_at AS old_claimed_at, worker AS lost_worker FROM agentq.tool_calls
        WHERE run_id = :run_id AND turn = :turn AND index = :index AND status = 'running' AND {IS_LOST}
        FOR UPDATE SKIP LOCKED) old
    WHERE c.run_id = r.id AND c.turn = :turn AND c.turn = r.turn AND c.index = :index
    RETURNING {_RUN}, {_CALL}, lost_worker AS worker, {overdue("c.timeout_secs", "old_claimed_at")} AS overdue
""")
_REARM = text(f"""
    UPDATE agentq.tool_calls SET
        status = 'announced', lease_token = NULL, lease_until = NULL,
        announced_at = CASE WHEN announced_at <= {FORGOT_AT} THEN announced_at ELSE now() END,
        sweep_at = {FIRST_PATIENCE}, attempt = attempt - :forgive
    WHERE run_id = :run_id AND lease_token = :token
    RETURNING index AS call_index, queue, timeout_secs,
        (SELECT priority FROM agentq.runs WHERE id = run_id) AS priority
""")
# Locks the run first, so that of calls ending together exactly one sees that it was the last.
_FINISHED = f"""
    WITH {BOUNDED}, run AS (
        UPDATE agentq.runs SET
            open_calls = open_calls - 1, asked_calls = asked_calls - :asked,
            -- Where only calls are left that a person is asked about, the run waits.
            status = CASE WHEN open_calls > 1 AND open_calls - 1 = asked_calls - :asked THEN 'waiting'
                          ELSE 'running' END,
            event_count = event_count + 1,
            -- Who had it has its version; where another call is left still, the next look at that says so again.
            outdated_at = CASE WHEN CAST(:token AS uuid) IS NULL THEN outdated_at END,
            outdated_by = CASE WHEN CAST(:token AS uuid) IS NULL THEN outdated_by END{{used}}
        FROM bounded
        WHERE id = :run_id AND turn = :turn AND phase = 'tools' AND lease_token IS NULL
            AND status NOT IN ('completed', 'failed', 'cancelled')
        RETURNING {SNAPSHOT_COLUMNS}, open_calls, number
    ), done AS (
        UPDATE agentq.tool_calls c SET
            status = 'done', code = :code, lease_token = NULL, lease_until = NULL, sweep_at = NULL, finished_at = now()
        FROM run
        WHERE c.run_id = run.id AND c.turn = :turn AND c.index = :index AND c.status <> 'done'
            AND c.lease_token IS NOT DISTINCT FROM :token
        RETURNING c.position
    ), told AS (
        INSERT INTO agentq.journal (run, number, events, messages)
        SELECT run.number, run.event_count, :happened, '[[' || done.position || ',' || :message || ']]' FROM run, done
    )
    SELECT run.*, done.position FROM run LEFT JOIN done ON true
"""
_FINISH = text(_FINISHED.format(used=""))
# What a sub-agent used, its own sub-agents included, is used by the run that called it.
_USED = "".join(
    f", {name} = coalesce({name} + coalesce({given}, 0), {given})"
    for name, given in {name: f"CAST(:{name} AS numeric)" for name in Usage.model_fields if name != "unpriced"}.items()
)
# As in Usage: a sum with a cost in it says where another part of it has none.
_USED += """, unpriced = nullif(coalesce(unpriced, false) OR coalesce(:unpriced, false)
    OR known_cost IS NOT NULL AND CAST(:known_cost AS numeric) IS NULL
        AND coalesce(CAST(:input_tokens AS numeric), CAST(:output_tokens AS numeric)) IS NOT NULL
    OR known_cost IS NULL AND CAST(:known_cost AS numeric) IS NOT NULL
        AND coalesce(input_tokens, output_tokens) IS NOT NULL, false)"""
_FINISH_AGENT = text(_FINISHED.format(used=_USED))
_ASK_RUN = text(f"""
    WITH {BOUNDED}
    UPDATE agentq.runs SET
        asked_calls = asked_calls + 1,
        status = CASE WHEN open_calls = asked_calls + 1 THEN 'waiting' ELSE 'running' END,
        event_count = event_count + 1, outdated_at = NULL, outdated_by = NULL
    FROM bounded
    WHERE id = :run_id AND turn = :turn AND phase = 'tools' AND runs.lease_token IS NULL
        AND status NOT IN ('completed', 'failed', 'cancelled')
    RETURNING number, event_count, cancel_requested, status, has_place
""")
_PARK = text(f"""
    UPDATE agentq.tool_calls SET status = 'asked', lease_token = NULL, lease_until = NULL, sweep_at = NULL
    WHERE run_id = :run_id AND turn = :turn AND index = :index AND lease_token = :token
    RETURNING {STANDING.format(tool="tool_calls.tool")} AS standing
""")
# Back on a lane where one is free; else the next lane that becomes free takes it. A run without a place begins nothing.
_RESTART = text(f"""
    UPDATE agentq.tool_calls SET
        (status, sweep_at) = (
            SELECT CASE WHEN count(*) < :lanes THEN 'announced' ELSE 'pending' END,
                CASE WHEN count(*) < :lanes THEN {FIRST_PATIENCE} END
            FROM agentq.tool_calls WHERE run_id = :run_id AND turn = :turn AND status IN ('announced', 'running')),
        announced_at = now()
    WHERE run_id = :run_id AND turn = :turn AND index = :index AND status = 'asked'
    RETURNING status, queue, timeout_secs
""")
_RESUME_RUN = text("""
    UPDATE agentq.runs SET asked_calls = asked_calls - 1, status = 'running' WHERE id = :run_id
""")
# Stronger than the lock of a claim: who is claiming now is waited for and seen as running.
_NO_MORE_CLAIMS = text("SELECT 1 FROM agentq.runs WHERE id = :run_id FOR UPDATE")
_ANNOUNCE_NEXT = text(f"""
    UPDATE agentq.tool_calls c SET status = 'announced', announced_at = now(), sweep_at = {FIRST_PATIENCE}
    WHERE run_id = :run_id AND turn = :turn AND index = (
        SELECT min(index) FROM agentq.tool_calls
        WHERE run_id = :run_id AND turn = :turn AND status = 'pending' AND kind = 'tool')
    RETURNING {_CALL}
""")
_TAKE_NEXT = text(f"""
    UPDATE agentq.tool_calls c SET
        status = 'running', announced_at = now(), lease_token = :token,
        lease_until = now() + make_interval(secs => :lease_secs), worker = :worker, attempt = attempt + 1,
        claimed_at = now()
    WHERE run_id = :run_id AND turn = :turn AND queue = :queue AND timeout_secs <= :timeout_secs AND index = (
        SELECT min(index) FROM agentq.tool_calls
        WHERE run_id = :run_id AND turn = :turn AND status = 'pending' AND kind = 'tool')
    RETURNING {_CALL}
""")


@dataclass(frozen=True)
class ClaimedCall:
    """A call that is ours to run, or to settle; ``reply`` asks for it, where that came along."""

    claim: Claim
    snapshot: Snapshot
    call: OpenCall
    reply: AssistantMessage | None = None

    @property
    def ref(self) -> CallRef:
        return CallRef(self.snapshot.run_id, self.snapshot.turn, self.call.index)


@dataclass(frozen=True)
class Lane:
    """A process that has time for one more call, of the same queue, which may take no longer than the one before."""

    token: UUID
    worker: str
    lease_secs: float
    queue: str
    timeout_secs: float
    reply: AssistantMessage | None = None


def claim(
    connection: Connection,
    run_id: str,
    seq: int,
    index: int,
    *,
    lease_secs: float,
    worker: str,
    token: UUID | None = None,
) -> ClaimedCall | None:
    """Take one announced call; None when it is taken, done, or history. Needs an autocommit connection."""
    token = token or uuid4()
    values = {"run_id": run_id, "seq": seq, "index": index, "token": token, "lease_secs": lease_secs, "worker": worker}
    row = connection.first(_CLAIM, values)
    return None if row is None else _asked(_claimed(row, token), last_reply(row.said))


def take_over(
    connection: Connection, ref: CallRef, *, lease_secs: float, worker: str, gone: str | None = None
) -> ClaimedCall | None:
    """Take a call whose lease ran out, to settle what became of it; None when its owner is alive or it came back."""
    token = uuid4()
    values = ref.__dict__ | {"token": token, "lease_secs": lease_secs, "worker": worker, "gone": gone}
    row = connection.execute(_TAKE_OVER, values).first()
    return None if row is None else _claimed(row, token)


def _claimed(row: Row, token: UUID) -> ClaimedCall:
    return ClaimedCall(to_claim(row, token), to_snapshot(row), to_open_call(row))


def _asked(claimed: ClaimedCall, reply: AssistantMessage) -> ClaimedCall:
    call = replace(claimed.call, arguments=reply.calls[claimed.call.index].arguments)
    return replace(claimed, call=call, reply=reply)


def rearm(
    connection: Connection, claimed: ClaimedCall, *, patience_secs: float, forgive: bool = False
) -> CallMessage | None:
    """Put a call that may run again back on its lane; ``forgive`` does not count the attempt."""
    claim = claimed.claim
    return unclaim(connection, claim.run_id, claim.seq, claim.token, patience_secs=patience_secs, forgive=forgive)


def unclaim(
    connection: Connection, run_id: str, seq: int, token: UUID, *, patience_secs: float, forgive: bool
) -> CallMessage | None:
    """The same for a call of which only the claim's token is known; nothing happens where that holds nothing."""
    values: dict[str, Any] = {"run_id": run_id, "token": token}
    values |= {"patience_secs": patience_secs, "forgive": int(forgive)}
    row = connection.execute(_REARM, values).first()
    return None if row is None else CallMessage(run_id, seq, *row)


@dataclass(frozen=True)
class Finished:
    """The run after one call came back, its row locked. ``open_calls`` is how many are still out."""

    snapshot: Snapshot
    open_calls: int


def finish(
    connection: Connection,
    ref: CallRef,
    result: ToolResult,
    *,
    token: UUID | None,
    event: NewEvent,
    was_asked: bool = False,
    used: Usage | None = None,
) -> Finished:
    """Save one call's result in the caller's transaction, which is to be rolled back when this raises LeaseLost.

    ``was_asked``: a person was asked about the call, and has answered. ``used`` is what a sub-agent used for it.
    """
    message = ToolMessage(result=result)
    values = ref.__dict__ | {"asked": int(was_asked), "token": token, "code": result.code or "success"}
    values |= {"happened": journal.happened([event], message), "message": dump_message(message)}
    row = (
        connection.first(_FINISH, values)
        if used is None
        else connection.first(_FINISH_AGENT, values | usage_values(used))
    )
    if row is None:
        raise LeaseLost(f"run {ref.run_id}: the batch of turn {ref.turn} is history")
    if row.position is None:
        raise LeaseLost(f"run {ref.run_id}: call {ref.index} of turn {ref.turn} belongs to another process or is done")
    return Finished(to_snapshot(row), row.open_calls)


def ask(
    connection: Connection, claimed: ClaimedCall, asked: Question, *, event: NewEvent
) -> tuple[Snapshot, Answer | None]:
    """Put a call of a batch before a person; its lane is free. The answer is how the run stands then, and what somebody
    has decided meanwhile of all calls of the tool: that is on record, and the call is to be settled with it.

    Raises LeaseLost or CancelRequested; the caller's transaction writes nothing then.
    """
    ref = claimed.ref
    row = connection.execute(_ASK_RUN, ref.__dict__ | {"token": claimed.claim.token}).first()
    if row is None:
        raise LeaseLost(f"run {ref.run_id}: the batch of turn {ref.turn} is history")
    if row.cancel_requested:
        raise CancelRequested
    # Asked under the run's lock, by an UPDATE: another sweep may have taken the call over meanwhile.
    parked = connection.execute(_PARK, ref.__dict__ | {"token": claimed.claim.token}).first()
    if parked is None:
        raise LeaseLost(f"run {ref.run_id}: call {ref.index} of turn {ref.turn} belongs to another process or is done")
    answer = Answer(**parked.standing, sticky=True) if parked.standing and asked.kind == "approval" else None
    commits.ask(connection, claimed.snapshot, replace(claimed.call, status="asked"), replace(asked, answer=answer))
    journal.add(connection, row.number, row.event_count, [event])
    return replace(claimed.snapshot, status=row.status, has_place=row.has_place), answer


def restart(connection: Connection, snapshot: Snapshot, call: OpenCall, *, patience_secs: float) -> CallMessage | None:
    """Let a call that a person was asked about run again; None when it has to wait."""
    where = {"run_id": snapshot.run_id, "turn": snapshot.turn, "index": call.index}
    lanes = MAX_LANES if snapshot.concurrency_key is None or snapshot.has_place else 0
    row = connection.execute(_RESTART, where | {"patience_secs": patience_secs, "lanes": lanes}).one()
    connection.execute(_RESUME_RUN, {"run_id": snapshot.run_id})
    if row.status == "pending":
        return None
    return CallMessage(snapshot.run_id, snapshot.seq, call.index, row.queue, row.timeout_secs, snapshot.priority)


def with_calls(connection: Connection, snapshot: Snapshot) -> Snapshot:
    """The snapshot with the calls of its open turn."""
    calls = open_calls(connection, snapshot.run_id)
    return Snapshot(**{**snapshot.__dict__, "calls": calls})


def refuse_claims(connection: Connection, run_id: str) -> None:
    """Before a run ends with calls still out: none is claimed from now on, and what is claimed is seen as running.

    First of all in its transaction: a claim locks the run and then the call, which may be one that was just saved.
    """
    connection.execute(_NO_MORE_CLAIMS, {"run_id": run_id})


def announce_next(connection: Connection, snapshot: Snapshot, *, patience_secs: float) -> CallMessage | None:
    """Put the next pending call on the lane that has become free; None when there is none."""
    values = {"run_id": snapshot.run_id, "turn": snapshot.turn, "patience_secs": patience_secs}
    row = connection.execute(_ANNOUNCE_NEXT, values).first()
    if row is None:
        return None
    return CallMessage(snapshot.run_id, snapshot.seq, row.call_index, row.queue, row.timeout_secs, snapshot.priority)


def take_next(connection: Connection, snapshot: Snapshot, lane: Lane) -> ClaimedCall | None:
    """Claim the next pending call for the process whose lane has become free; None when it is not for that process."""
    values = {name: value for name, value in lane.__dict__.items() if name != "reply"}
    values |= {"run_id": snapshot.run_id, "turn": snapshot.turn}
    row = connection.first(_TAKE_NEXT, values)
    if row is None:
        return None
    call = to_open_call(row)
    claim = Claim(snapshot.run_id, snapshot.seq, lane.token, row.attempt, lane.worker, lane.queue)
    claimed = ClaimedCall(claim, snapshot, call)
    return claimed if lane.reply is None else _asked(claimed, lane.reply)
