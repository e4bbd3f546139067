"""Over all open runs: those that nothing will ever move, and those that wait for a worker that is not there."""

from dataclasses import dataclass
from datetime import datetime

from agentq.facts import Fleet, Gap
from agentq.run import Status
from agentq.storage import queries
from agentq.storage.journal import updated_at
from agentq.storage.sql import Connection, text
from agentq.storage.threads import awaited

# A queue that is only long has been looked at by then.
PATIENCE_SECS = 120.0

# The rule of ``agentq/why.py`` for all open runs at once; the codes are those of PROBLEMS there.
_STUCK = text(f"""
    WITH idle AS (
        SELECT id, agent, status, phase, turn, open_calls, lease_token, due_at, sweep_at,
            {updated_at("runs")} AS updated_at, concurrency_key, has_place, held, thread_id
        FROM agentq.runs
        WHERE status NOT IN ('completed', 'failed', 'cancelled') AND lease_until IS NULL
            AND NOT (status <> 'waiting' AND lease_token IS NULL AND due_at IS NOT NULL
                AND (sweep_at IS NOT NULL OR outdated_at IS NOT NULL))
    ), found AS (
        SELECT r.*, c.is_endless, CASE
            WHEN r.lease_token IS NOT NULL THEN 'endless_lease'
            WHEN r.held THEN CASE WHEN r.sweep_at IS NULL AND {awaited("r")} IS NULL THEN 'thread_stands' END
            WHEN r.has_place IS FALSE THEN CASE WHEN NOT EXISTS (
                SELECT 1 FROM agentq.runs w WHERE w.concurrency_key = r.concurrency_key AND w.has_place)
                THEN 'line_stands' END
            WHEN r.status = 'waiting' THEN CASE WHEN NOT EXISTS (
                SELECT 1 FROM agentq.approvals a
                WHERE a.run_id = r.id AND a.turn = r.turn AND a.status = 'pending') THEN 'nobody_asked' END
            WHEN r.due_at IS NOT NULL THEN 'not_announced'
            WHEN r.phase <> 'tools' THEN 'no_next_step'
            WHEN c.number = 0 THEN 'batch_over'
            WHEN c.problem IS NOT NULL THEN c.problem
            WHEN c.is_waiting AND NOT c.is_busy THEN 'call_no_lane'
            WHEN c.number <> r.open_calls THEN 'batch_miscounted' END AS problem
        FROM idle r CROSS JOIN LATERAL (
            SELECT count(*) AS number,
                coalesce(bool_or(c.status = 'running' AND c.lease_until IS NULL), false) AS is_endless,
                bool_or(c.kind <> 'agent' AND c.status NOT IN ('announced', 'running') AND a.index IS NULL)
                    AS is_waiting,
                bool_or(c.kind = 'tool' AND c.status IN ('announced', 'running')) AS is_busy,
                min(CASE
                    WHEN a.index IS NOT NULL THEN NULL
                    WHEN c.kind = 'agent' AND child.id IS NULL THEN 'child_missing'
                    WHEN c.kind = 'agent' AND child.sweep_at IS NULL
                        AND child.status IN ('completed', 'failed', 'cancelled') THEN 'child_untold'
                    WHEN c.kind = 'agent' THEN NULL
                    WHEN c.status = 'running' AND c.lease_until IS NULL THEN 'call_endless_lease'
                    WHEN c.status = 'announced' AND c.sweep_at IS NULL THEN 'call_not_announced' END) AS problem
            FROM agentq.tool_calls c
                LEFT JOIN agentq.runs child ON child.id = c.child_run_id
                LEFT JOIN agentq.approvals a ON (a.run_id, a.turn, a.index) = (c.run_id, c.turn, c.index)
                    AND a.status = 'pending'
            WHERE c.run_id = r.id AND c.turn = r.turn AND c.status <> 'done') c)
    SELECT id AS run_id, agent, status, problem, updated_at AS since,
        lease_token IS NULL AND NOT is_endless AS can_cancel
    FROM found WHERE problem IS NOT NULL ORDER BY id
""")
# Grouped, as a queue without a worker may hold any number of them. A worker without the agent puts the due time of a
# step off again and again, so that the last commit says better since when it waits.
_OVERDUE = text(f"""
    WITH work (id, agent, queue, since) AS (
        SELECT id, agent, queue, coalesce(lease_until, greatest(start_at, least(due_at, {updated_at("runs")})))
        FROM agentq.runs
        WHERE status NOT IN ('completed', 'failed', 'cancelled') AND (
            lease_until <= now()
            OR lease_until IS NULL AND sweep_at IS NOT NULL AND due_at < now() + interval '15 s')
        UNION ALL
        SELECT runs.id, agent, c.queue, coalesce(c.lease_until, least(c.announced_at, {updated_at("runs")}))
        FROM agentq.tool_calls c JOIN agentq.runs ON runs.id = c.run_id AND runs.turn = c.turn
        WHERE runs.status NOT IN ('completed', 'failed', 'cancelled') AND (
            c.lease_until <= now() OR c.status = 'announced' AND c.sweep_at IS NOT NULL))
    SELECT agent, queue, count(DISTINCT id) AS runs, min(since) AS since,
        (array_agg(id ORDER BY since, id))[1] AS oldest
    FROM work WHERE since < now() - make_interval(secs => :patience_secs)
    GROUP BY agent, queue ORDER BY min(since)
""")


# What waits by itself, and is as it should be. The open runs are few beside those that have ended.
_LATER = text("""
    SELECT count(*) FILTER (WHERE due_at > now()) AS later, min(due_at) FILTER (WHERE due_at > now()) AS first_at,
        count(*) FILTER (WHERE has_place IS FALSE) AS in_line,
        count(DISTINCT concurrency_key) FILTER (WHERE has_place IS FALSE) AS keys,
        count(*) FILTER (WHERE held AND finished_at IS NULL) AS held
    FROM agentq.runs
    WHERE has_place IS FALSE OR held AND finished_at IS NULL OR status = 'queued' AND start_at > now()
""")


@dataclass(frozen=True)
class Later:
    """Runs that were enqueued for ``later``, those ``in_line`` of so many concurrency keys, and those ``held`` on their
    threads.
    """

    later: int
    first_at: datetime | None
    in_line: int
    keys: int
    held: int


@dataclass(frozen=True)
class Stuck:
    """An open run without a live lease, a due time, or a person it waits for; ``problem`` is a code of PROBLEMS."""

    run_id: str
    agent: str
    status: Status
    problem: str
    since: datetime
    can_cancel: bool


@dataclass(frozen=True)
class Overdue:
    """Runs of one agent whose work on one queue no running worker takes; ``oldest`` is one of them."""

    agent: str
    queue: str
    runs: int
    since: datetime
    oldest: str
    gap: Gap


def stuck(connection: Connection) -> list[Stuck]:
    """The oldest first."""
    return [Stuck(**row._asdict()) for row in connection.execute(_STUCK)]


def later(connection: Connection) -> Later:
    return Later(**connection.execute(_LATER).one()._asdict())


def overdue(connection: Connection, *, prefix: str) -> list[Overdue]:
    """The longest wait first; a queue that workers do consume is only long, and not told."""
    fleet = Fleet(queries.workers(connection), prefix)
    rows = connection.execute(_OVERDUE, {"patience_secs": PATIENCE_SECS}).all()
    found = [(row, fleet.gap(row.queue, row.agent)) for row in rows]
    return [Overdue(**row._asdict(), gap=gap) for row, gap in found if gap is not None]
