"""Leases and what the sweep looks for: renewals, work whose time has come, and who is there to do it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from sqlalchemy import Connection, text

from agentq.storage.rows import CallRef, dump
from agentq.storage.steps import NO_FSYNC, patience
from agentq.wire import CallMessage, StepMessage

_RENEW = text(f"""
    WITH {NO_FSYNC}, steps AS (
        UPDATE agentq.runs SET lease_until = now() + make_interval(secs => :lease_secs),
                               sweep_at = now() + make_interval(secs => :lease_secs)
        FROM fast WHERE lease_token = ANY(:tokens) AND id = ANY(:run_ids)
        RETURNING lease_token AS token, cancel_requested
    ), calls AS (
        UPDATE agentq.tool_calls c SET lease_until = now() + make_interval(secs => :lease_secs),
                                       sweep_at = now() + make_interval(secs => :lease_secs)
        FROM fast, agentq.runs r WHERE c.lease_token = ANY(:tokens) AND c.run_id = ANY(:run_ids) AND r.id = c.run_id
        RETURNING c.lease_token AS token, r.cancel_requested
    )
    SELECT token, cancel_requested FROM steps UNION ALL SELECT token, cancel_requested FROM calls
""")
# One query a second in every worker process: two short partial indexes, nothing else.
_DUE = text("""
    (SELECT 'run' AS kind, id AS run_id, seq AS turn, 0 AS call_index, sweep_at,
            status, lease_token IS NOT NULL AS leased, agent
     FROM agentq.runs WHERE sweep_at <= now() ORDER BY sweep_at LIMIT :limit)
    UNION ALL
    (SELECT 'call', run_id, turn, index, sweep_at, status, lease_token IS NOT NULL, ''
     FROM agentq.tool_calls WHERE sweep_at <= now() ORDER BY sweep_at LIMIT :limit)
    ORDER BY sweep_at LIMIT :limit
""")
_REANNOUNCE_STEP = text(f"""
    UPDATE agentq.runs SET sweep_at = {patience("due_at")}
    WHERE id = (SELECT id FROM agentq.runs
                WHERE id = :run_id AND sweep_at <= now() AND lease_token IS NULL AND due_at <= now()
                FOR UPDATE SKIP LOCKED)
    RETURNING id, seq, queue, timeout_secs
""")
_REANNOUNCE_CALL = text(f"""
    UPDATE agentq.tool_calls c SET
        sweep_at = {patience("announced_at")}
    FROM agentq.runs r
    WHERE r.id = c.run_id AND r.turn = c.turn AND (c.run_id, c.turn, c.index) = (
        SELECT run_id, turn, index FROM agentq.tool_calls
        WHERE run_id = :run_id AND turn = :turn AND index = :index AND sweep_at <= now() AND status = 'announced'
        FOR UPDATE SKIP LOCKED)
    RETURNING c.run_id, r.seq, c.index AS call_index, c.queue, c.timeout_secs
""")
_FORGET_CALL = text("""
    UPDATE agentq.tool_calls SET sweep_at = NULL
    WHERE run_id = :run_id AND turn = :turn AND index = :index AND sweep_at <= now()
        AND NOT EXISTS (SELECT 1 FROM agentq.runs r WHERE r.id = run_id AND r.turn = tool_calls.turn
                        AND r.status NOT IN ('completed', 'failed', 'cancelled'))
""")
_SEEN = text("""
    INSERT INTO agentq.workers (id, pool, queues, agents)
    VALUES (:id, :pool, CAST(:queues AS jsonb), CAST(:agents AS jsonb))
    ON CONFLICT (id) DO UPDATE SET seen_at = now(), queues = excluded.queues, agents = excluded.agents
""")
_KNOW_AGENTS = text("""
    INSERT INTO agentq.agents (name) SELECT jsonb_array_elements_text(CAST(:agents AS jsonb))
    ON CONFLICT (name) DO UPDATE SET seen_at = now()
""")
_GONE = text("DELETE FROM agentq.workers WHERE id = :id OR seen_at < now() - interval '1 day'")


def renew(connection: Connection, held: dict[UUID, str], *, lease_secs: float) -> dict[UUID, bool]:
    """Prolong the leases in ``held`` (token to run id). The answer maps those that still are ours to "cancel asked"."""
    values = {"tokens": list(held), "run_ids": list(set(held.values())), "lease_secs": lease_secs}
    return {row.token: row.cancel_requested for row in connection.execute(_RENEW, values)}


@dataclass(frozen=True)
class Due:
    """Something the sweep has to look at. For a run ``turn`` holds its seq."""

    kind: Literal["run", "call"]
    run_id: str
    turn: int
    index: int
    status: str
    leased: bool

    @property
    def ref(self) -> CallRef:
        return CallRef(self.run_id, self.turn, self.index)


def due(connection: Connection, *, limit: int = 100) -> list[Due]:
    """What has waited longer than it should: lost wake-ups, expired leases, backoffs that are over, untold parents."""
    return [
        Due(row.kind, row.run_id, row.turn, row.call_index, row.status, row.leased)
        for row in connection.execute(_DUE, {"limit": limit})
    ]


def reannounce_step(connection: Connection, run_id: str) -> StepMessage | None:
    """The wake-up to send again, for one sweeper only; None when another one did it or the step is under way."""
    row = connection.execute(_REANNOUNCE_STEP, {"run_id": run_id}).first()
    return None if row is None else StepMessage(row.id, row.seq, row.queue, row.timeout_secs)


def reannounce_call(connection: Connection, ref: CallRef) -> CallMessage | None:
    """The same for a call of a batch."""
    row = connection.execute(_REANNOUNCE_CALL, ref.__dict__).first()
    return None if row is None else CallMessage(row.run_id, row.seq, row.call_index, row.queue, row.timeout_secs)


def forget_call(connection: Connection, ref: CallRef) -> None:
    """Stop looking at a call whose run has ended or gone on."""
    connection.execute(_FORGET_CALL, ref.__dict__)


def seen(connection: Connection, worker: str, *, pool: str, queues: Sequence[str], agents: Sequence[str]) -> None:
    """Note that a worker is alive, and what it can do."""
    values = {"id": worker, "pool": pool, "queues": dump(list(queues)), "agents": dump(list(agents))}
    connection.execute(_SEEN, values)


def know_agents(connection: Connection, agents: Sequence[str]) -> None:
    """Note the agents of a starting worker, for producers that do not import them."""
    connection.execute(_KNOW_AGENTS, {"agents": dump(list(agents))})


def gone(connection: Connection, worker: str) -> None:
    """Note that a worker has stopped, and forget those not heard of for a day."""
    connection.execute(_GONE, {"id": worker})
