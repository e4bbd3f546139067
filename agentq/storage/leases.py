"""Leases and what the sweep looks for: renewals, work whose time has come, and who is there to do it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal
from uuid import UUID

from agentq.errors import LeaseLost
from agentq.storage.rows import CallRef, dump
from agentq.storage.sql import Connection, text
from agentq.storage.steps import IS_LOST, MAY_BEGIN, NO_FSYNC, Again, begun_at, leased, patience, swept
from agentq.wire import CallMessage, StepMessage

# So many a round; those that are left over are only read once more.
_EARLY = 500

_RENEW = text(f"""
    WITH {NO_FSYNC}, free_steps AS (
        SELECT id FROM agentq.runs WHERE lease_token = ANY(:tokens) AND id = ANY(:run_ids)
        FOR NO KEY UPDATE SKIP LOCKED
    ), free_calls AS (
        SELECT run_id, turn, index FROM agentq.tool_calls WHERE lease_token = ANY(:tokens) AND run_id = ANY(:run_ids)
        FOR NO KEY UPDATE SKIP LOCKED
    ), steps AS (
        UPDATE agentq.runs r SET {leased("now() + make_interval(secs => :lease_secs)")}
        FROM fast, free_steps f WHERE r.id = f.id AND r.lease_token = ANY(:tokens)
        RETURNING r.lease_token AS token, cancel_requested
    ), calls AS (
        UPDATE agentq.tool_calls c SET lease_until = now() + make_interval(secs => :lease_secs)
        FROM fast, free_calls f, agentq.runs r
        WHERE (c.run_id, c.turn, c.index) = (f.run_id, f.turn, f.index) AND r.id = c.run_id
            AND c.lease_token = ANY(:tokens)
        RETURNING c.lease_token AS token, r.cancel_requested
    )
    SELECT token FROM steps WHERE cancel_requested UNION ALL SELECT token FROM calls WHERE cancel_requested
    UNION ALL
    -- Read without a lock: a row that is only held by somebody is not a lease that is lost.
    SELECT token FROM unnest(CAST(:tokens AS uuid[])) token
    WHERE NOT EXISTS (SELECT 1 FROM agentq.runs WHERE lease_token = token AND id = ANY(:run_ids))
        AND NOT EXISTS (SELECT 1 FROM agentq.tool_calls WHERE lease_token = token AND run_id = ANY(:run_ids))
""")
# One query a second in every worker process: six short partial indexes, nothing else. Lost work comes first, and has a
# limit of its own, so that a long backlog of wake-ups does not stand before it. A lease is fading when its process
# should have renewed it before. Runs that were looked at in vain are moved on by the way.
_DUE = text(f"""
    WITH {NO_FSYNC}, early AS (
        SELECT id FROM agentq.runs WHERE lease_look_at <= now() AND (lease_until IS NULL OR lease_until > now())
        LIMIT {_EARLY} FOR NO KEY UPDATE SKIP LOCKED
    ), soon AS (
        SELECT id FROM agentq.runs WHERE sweep_look_at <= now() AND (sweep_at IS NULL OR sweep_at > now())
        LIMIT {_EARLY} FOR NO KEY UPDATE SKIP LOCKED
    ), moved AS (
        UPDATE agentq.runs SET
            lease_look_at = CASE WHEN lease_until <= now() THEN lease_look_at ELSE lease_until END,
            sweep_look_at = CASE WHEN sweep_at <= now() THEN sweep_look_at ELSE sweep_at END
        FROM fast WHERE id IN (SELECT id FROM early UNION ALL SELECT id FROM soon)
    )
    (SELECT 'run' AS kind, id AS run_id, 0 AS turn, 0 AS call_index, status, true AS leased
     FROM agentq.runs WHERE lease_look_at <= now() AND lease_until <= now() ORDER BY lease_look_at LIMIT :limit)
    UNION ALL
    (SELECT 'call', run_id, turn, index, status, true
     FROM agentq.tool_calls WHERE lease_until <= now() ORDER BY lease_until LIMIT :limit)
    UNION ALL
    (SELECT CASE WHEN status IN ('completed', 'failed', 'cancelled') THEN 'run' WHEN held THEN 'behind'
        WHEN {MAY_BEGIN} THEN 'run' ELSE 'line' END,
        id, 0, 0, status, false
     FROM agentq.runs WHERE sweep_look_at <= now() AND sweep_at <= now() ORDER BY sweep_look_at LIMIT :limit)
    UNION ALL
    (SELECT 'call', run_id, turn, index, status, false
     FROM agentq.tool_calls WHERE sweep_at <= now() ORDER BY sweep_at LIMIT :limit)
    UNION ALL
    (SELECT 'fading', id, 0, 0, status, true
     FROM agentq.runs WHERE lease_look_at < now() + make_interval(secs => :fading_secs)
        AND lease_until > now() AND lease_until < now() + make_interval(secs => :fading_secs) AND worker = ANY(:mine))
    UNION ALL
    (SELECT 'fading', run_id, turn, index, status, true
     FROM agentq.tool_calls WHERE lease_until > now() AND lease_until < now() + make_interval(secs => :fading_secs)
        AND worker = ANY(:mine))
    UNION ALL
    (SELECT 'late', id, 0, 0, status, false
     FROM agentq.runs WHERE deadline_at <= now() ORDER BY deadline_at LIMIT :limit)
    UNION ALL
    (SELECT 'undecided', run_id, turn, index, status, false
     FROM agentq.approvals WHERE status = 'pending' AND expires_at <= now() ORDER BY expires_at LIMIT :limit)
""")
_HELD_BY = text(f"""
    SELECT 'run' AS kind, id AS run_id, 0 AS turn, 0 AS call_index, status, true AS leased
    FROM agentq.runs WHERE lease_look_at IS NOT NULL AND {IS_LOST}
    UNION ALL
    SELECT 'call', run_id, turn, index, status, true FROM agentq.tool_calls WHERE {IS_LOST}
""")
_KEEP_STEP = text(f"""
    UPDATE agentq.runs SET {leased("now() + make_interval(secs => :lease_secs)")}
    WHERE id = (
        SELECT id FROM agentq.runs WHERE id = :run_id AND lease_until > now() AND worker = ANY(:mine)
            AND now() < {begun_at("runs")} + make_interval(secs => timeout_secs + :grace_secs)
        FOR NO KEY UPDATE SKIP LOCKED)
""")
# With a token that nobody has: a renewal may be under way.
_LET_GO_STEP = text(f"""
    UPDATE agentq.runs SET {leased("now()")}, lease_token = gen_random_uuid()
    WHERE id = :run_id AND lease_token = :token
""")
_LET_GO_CALL = text("""
    UPDATE agentq.tool_calls SET lease_until = now(), lease_token = gen_random_uuid()
    WHERE run_id = :run_id AND lease_token = :token
""")
_KEEP_CALL = text("""
    UPDATE agentq.tool_calls SET lease_until = now() + make_interval(secs => :lease_secs)
    WHERE (run_id, turn, index) = (
        SELECT run_id, turn, index FROM agentq.tool_calls
        WHERE run_id = :run_id AND turn = :turn AND index = :index AND lease_until > now() AND worker = ANY(:mine)
            AND now() < claimed_at + make_interval(secs => timeout_secs + :grace_secs) FOR NO KEY UPDATE SKIP LOCKED)
""")
_HOLDS = text("SELECT 1 FROM agentq.runs WHERE id = :run_id AND lease_token = :token")
_IS_HUNG = """lease_until > now() AND worker = ANY(:mine)
    AND now() >= {begun_at} + make_interval(secs => timeout_secs + :grace_secs)"""
_HUNG_STEP = text(f"""
    SELECT worker FROM agentq.runs WHERE id = :run_id AND {_IS_HUNG.format(begun_at=begun_at("runs"))}
""")
_HUNG_CALL = text(f"""
    SELECT worker FROM agentq.tool_calls WHERE run_id = :run_id AND turn = :turn AND index = :index
        AND {_IS_HUNG.format(begun_at="claimed_at")}
""")
_REANNOUNCE_STEPS = text(f"""
    UPDATE agentq.runs SET {swept(patience("due_at"))}
    WHERE id IN (SELECT id FROM agentq.runs
                 WHERE id = ANY(:run_ids) AND sweep_at <= now() AND lease_token IS NULL AND due_at <= now()
                    AND {MAY_BEGIN}
                 FOR UPDATE SKIP LOCKED)
    RETURNING id, seq, queue, timeout_secs, cancel_requested, priority
""")
_REANNOUNCE_CALL = text(f"""
    UPDATE agentq.tool_calls c SET
        sweep_at = {patience("announced_at")}
    FROM agentq.runs r
    WHERE r.id = c.run_id AND r.turn = c.turn AND (c.run_id, c.turn, c.index) = (
        SELECT run_id, turn, index FROM agentq.tool_calls
        WHERE run_id = :run_id AND turn = :turn AND index = :index AND sweep_at <= now() AND status = 'announced'
        FOR UPDATE SKIP LOCKED)
    RETURNING c.run_id, r.seq, c.index AS call_index, c.queue, c.timeout_secs, r.cancel_requested, r.priority
""")
_FORGET_CALL = text("""
    UPDATE agentq.tool_calls SET sweep_at = NULL
    WHERE run_id = :run_id AND turn = :turn AND index = :index AND sweep_at <= now()
        AND NOT EXISTS (SELECT 1 FROM agentq.runs r WHERE r.id = run_id AND r.turn = tool_calls.turn
                        AND r.status NOT IN ('completed', 'failed', 'cancelled'))
""")
_POSTPONE_RUN = text(f"""
    UPDATE agentq.runs SET
        {leased("CASE WHEN lease_until <= now() THEN now() + interval '60 s' ELSE lease_until END")},
        {swept("CASE WHEN sweep_at <= now() THEN now() + interval '60 s' ELSE sweep_at END")},
        deadline_at = CASE WHEN deadline_at <= now() THEN now() + interval '60 s' ELSE deadline_at END
    WHERE id = (SELECT id FROM agentq.runs WHERE id = :run_id FOR NO KEY UPDATE SKIP LOCKED)
""")
_POSTPONE_CALL = text("""
    UPDATE agentq.tool_calls SET
        lease_until = CASE WHEN lease_until <= now() THEN now() + interval '60 s' ELSE lease_until END,
        sweep_at = CASE WHEN sweep_at <= now() THEN now() + interval '60 s' ELSE sweep_at END
    WHERE (run_id, turn, index) = (
        SELECT run_id, turn, index FROM agentq.tool_calls WHERE run_id = :run_id AND turn = :turn AND index = :index
        FOR NO KEY UPDATE SKIP LOCKED)
""")
_POSTPONE_APPROVALS = text("""
    UPDATE agentq.approvals SET expires_at = now() + interval '60 s'
    WHERE run_id = :run_id AND turn = :turn AND status = 'pending' AND expires_at <= now()
""")
_HASTEN_STEPS = text(f"UPDATE agentq.runs SET {swept('now()')} WHERE id = ANY(:run_ids) AND sweep_at > now()")
_HASTEN_CALL = text("""
    UPDATE agentq.tool_calls SET sweep_at = now()
    WHERE run_id = :run_id AND turn = :turn AND index = :index AND sweep_at > now()
""")
_SEEN = text("""
    INSERT INTO agentq.workers (id, pool, queues, agents, versions)
    VALUES (:id, :pool, CAST(:queues AS jsonb), CAST(:agents AS jsonb), CAST(:versions AS jsonb))
    ON CONFLICT (id) DO UPDATE SET
        seen_at = now(), queues = excluded.queues, agents = excluded.agents, versions = excluded.versions
""")
_KNOW_AGENTS = text("""
    INSERT INTO agentq.agents (name, hears_ends)
    SELECT name, name = ANY(:hearing) FROM jsonb_array_elements_text(CAST(:agents AS jsonb)) name
    ON CONFLICT (name) DO UPDATE SET seen_at = now(), hears_ends = excluded.hears_ends
""")
_GONE = text("DELETE FROM agentq.workers WHERE id = :id OR seen_at < now() - interval '1 day'")


def renew(connection: Connection, held: dict[UUID, str], *, lease_secs: float) -> set[UUID]:
    """Prolong the leases in ``held`` (token to run id) that are ours; the answer: those whose work is in vain.

    Their run is to be cancelled, or has ended, or somebody else has taken the work over.

    A row that somebody has locked is left for the next round: one that is stuck must not cost all others their leases.
    """
    values = {"tokens": list(held), "run_ids": list(set(held.values())), "lease_secs": lease_secs}
    return set(connection.execute(_RENEW, values).scalars())


@dataclass(frozen=True)
class Due:
    """Something the sweep has to look at; ``turn`` and ``index`` are a call's, and 0 for a step.

    "line": it is due, and has to stand in the line of its concurrency key. "behind": it waits for another run of its
    thread, which does not know it yet. "late": the run's time limit is over.
    "undecided": nobody has decided on a call in time. "fading": a lease that its process should have renewed, but did
    not.
    """

    kind: Literal["run", "call", "line", "behind", "late", "undecided", "fading"]
    run_id: str
    turn: int
    index: int
    status: str
    leased: bool

    @property
    def ref(self) -> CallRef:
        return CallRef(self.run_id, self.turn, self.index)


def due(connection: Connection, *, limit: int = 500, mine: Sequence[str] = (), fading_secs: float = 0.0) -> list[Due]:
    """What has waited longer than it should: lost wake-ups, expired leases, backoffs, time limits and deadlines of
    approvals that are over, untold parents; and leases of the processes ``mine`` that end within ``fading_secs``.
    """
    values = {"limit": limit, "mine": list(mine), "fading_secs": fading_secs}
    return [
        Due(row.kind, row.run_id, row.turn, row.call_index, row.status, row.leased)
        for row in connection.execute(_DUE, values)
    ]


def keep(connection: Connection, due: Due, *, mine: Sequence[str], lease_secs: float, grace_secs: float) -> str | None:
    """Prolong the lease of a tool whose process lives but does not say so, no longer than it may run, with a grace.

    The answer is the process whose tool has outlived that.
    """
    values = due.ref.__dict__ | {"mine": list(mine), "lease_secs": lease_secs, "grace_secs": grace_secs}
    # A call's turn is 1 at least.
    if connection.execute(_KEEP_CALL if due.turn else _KEEP_STEP, values).rowcount:
        return None
    hung: str | None = connection.execute(_HUNG_CALL if due.turn else _HUNG_STEP, values).scalar()
    return hung


def let_go(connection: Connection, run_id: str, token: UUID) -> None:
    """End a lease now: the next sweep settles what it was for, as that of a lost worker."""
    for statement in (_LET_GO_STEP, _LET_GO_CALL):
        connection.execute(statement, {"run_id": run_id, "token": token})


def check(connection: Connection, run_id: str, token: UUID) -> None:
    """Raises LeaseLost where a step's lease is not held by ``token`` any more."""
    if connection.execute(_HOLDS, {"run_id": run_id, "token": token}).first() is None:
        raise LeaseLost(f"run {run_id}: what this process was to do was given to another one before it began")


def held_by(connection: Connection, gone: str) -> list[Due]:
    """What a worker, or a process of one, that is known to be dead still holds."""
    return [
        Due(row.kind, row.run_id, row.turn, row.call_index, row.status, row.leased)
        for row in connection.execute(_HELD_BY, {"gone": gone})
    ]


def reannounce_steps(connection: Connection, run_ids: Sequence[str], *, patience_secs: float) -> dict[str, Again]:
    """The wake-ups to send again, for one sweeper only; without those that another one sends, or that are under way."""
    rows = connection.execute(_REANNOUNCE_STEPS, {"run_ids": list(run_ids), "patience_secs": patience_secs})
    return {
        row.id: Again(is_cancelled=True)
        if row.cancel_requested
        else Again(StepMessage(row.id, row.seq, row.queue, row.timeout_secs, row.priority))
        for row in rows
    }


def reannounce_call(connection: Connection, ref: CallRef, *, patience_secs: float) -> Again:
    """The same for a call of a batch."""
    row = connection.execute(_REANNOUNCE_CALL, ref.__dict__ | {"patience_secs": patience_secs}).first()
    if row is None:
        connection.execute(_FORGET_CALL, ref.__dict__)
        return Again()
    if row.cancel_requested:
        return Again(is_cancelled=True)
    return Again(CallMessage(row.run_id, row.seq, row.call_index, row.queue, row.timeout_secs, row.priority))


def hasten_steps(connection: Connection, run_ids: Sequence[str]) -> None:
    """Look at these again in the next round: their wake-ups could not be sent."""
    connection.execute(_HASTEN_STEPS, {"run_ids": list(run_ids)})


def hasten_call(connection: Connection, ref: CallRef) -> None:
    """The same for a call of a batch."""
    connection.execute(_HASTEN_CALL, ref.__dict__)


def postpone(connection: Connection, due: Due) -> None:
    """Look at this again in a minute: something about it cannot be handled now, and the others must not wait for it."""
    statements = {"call": _POSTPONE_CALL, "undecided": _POSTPONE_APPROVALS}
    connection.execute(statements.get(due.kind, _POSTPONE_RUN), due.ref.__dict__)


def seen(
    connection: Connection,
    worker: str,
    *,
    pool: str,
    queues: Sequence[str],
    agents: Sequence[str],
    versions: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Note that a worker is alive, and what it can do: ``versions`` are those of its agents."""
    values = {"id": worker, "pool": pool, "queues": dump(list(queues)), "agents": dump(list(agents))}
    connection.execute(_SEEN, values | {"versions": dump(dict(versions))})


def know_agents(connection: Connection, agents: Sequence[str], *, hearing: Sequence[str] = ()) -> None:
    """Note the agents of a starting worker, for producers that do not import them.

    ``hearing`` are those with hooks that want to hear of the ends of runs.
    """
    connection.execute(_KNOW_AGENTS, {"agents": dump(list(agents)), "hearing": list(hearing)})


def gone(connection: Connection, worker: str) -> None:
    """Note that a worker has stopped, and forget those not heard of for a day."""
    connection.execute(_GONE, {"id": worker})
