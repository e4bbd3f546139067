"""Runs whose agent has changed and that wait for code of their version (``on_change="hold"``), or for a person's word.

Such a run is left by whoever comes by with other code (``leave``), which says since when, and for which version. While
a worker is alive that has its version, it is announced again soon, then more and more seldom; where there is none any
more it waits without messages, until one comes (``wake``), or somebody says that it goes on with the new code
(``adopt_run``). In a batch it is the calls that are left so, and looked at once a minute where there is none.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from agentq.agent import AgentSpec
from agentq.storage import journal
from agentq.storage.calls import ClaimedCall
from agentq.storage.journal import NewEvent
from agentq.storage.rows import Claim, dump
from agentq.storage.sql import Connection, text
from agentq.storage.steps import BOUNDED, FORGOT_AT, Again, patience, swept

_SOON_SECS, _SELDOM_SECS = 1.0, 60.0
# So many rows a statement.
_SOME = 1_000
# A worker that was not heard of for longer is not counted on; see queries.workers.
_HAS_WORKER = """EXISTS (
    SELECT 1 FROM agentq.workers w
    WHERE w.seen_at > now() - interval '45 s' AND w.versions ->> {run}.agent = {run}.agent_version)"""
_AGAIN_SECS = f"""CASE WHEN {_HAS_WORKER.format(run="r")} THEN least(greatest(
    EXTRACT(epoch FROM now() - coalesce(r.outdated_at, now())) / 2, {_SOON_SECS}), {_SELDOM_SECS}) END"""
_LEAVE = text(f"""
    WITH {BOUNDED}, run AS (
        UPDATE agentq.runs SET
            lease_token = NULL, lease_until = NULL, lease_look_at = NULL, attempt = attempt - 1,
            -- As when a step is given back: see steps.release.
            due_at = CASE WHEN due_at <= {FORGOT_AT} THEN due_at
                          ELSE now() + make_interval(secs => coalesce(again_secs, 0)) END,
            sweep_at = now() + make_interval(secs => again_secs),
            sweep_look_at = now() + make_interval(secs => again_secs),
            outdated_at = coalesce(outdated_at, now()), outdated_by = :now,
            event_count = event_count + CASE WHEN was_by IS DISTINCT FROM :now THEN 1 ELSE 0 END
        FROM bounded, (
            SELECT id AS old_id, outdated_by AS was_by, CAST({_AGAIN_SECS} AS float) AS again_secs
            FROM agentq.runs r WHERE id = :run_id FOR NO KEY UPDATE) old
        WHERE id = old_id AND seq = :seq AND lease_token = :token AND agent_version = :was
        RETURNING number, event_count, was_by, cancel_requested
    ), told AS (
        INSERT INTO agentq.journal (run, number, events)
        SELECT number, event_count, :happened FROM run WHERE was_by IS DISTINCT FROM :now
    )
    SELECT cancel_requested FROM run
""")
_MARK = text(f"""
    WITH {BOUNDED}, run AS (
        UPDATE agentq.runs SET
            outdated_at = coalesce(outdated_at, now()), outdated_by = :now, event_count = event_count + 1
        FROM bounded WHERE id = :run_id AND turn = :turn AND agent_version = :was AND outdated_by IS DISTINCT FROM :now
            AND status NOT IN ('completed', 'failed', 'cancelled')
        RETURNING number, event_count
    )
    INSERT INTO agentq.journal (run, number, events) SELECT number, event_count, :happened FROM run
""")
# Announced when it was: so where nobody has the version each look is more patient than the one before.
_LEAVE_CALL = text(f"""
    UPDATE agentq.tool_calls SET
        status = 'announced', lease_token = NULL, lease_until = NULL, attempt = attempt - 1,
        sweep_at = coalesce(
            now() + make_interval(secs => (SELECT {_AGAIN_SECS} FROM agentq.runs r WHERE r.id = run_id)),
            {patience("announced_at")})
    WHERE run_id = :run_id AND turn = :turn AND index = :index AND lease_token = :token
""")
_WAKE = text(f"""
    WITH {BOUNDED}
    UPDATE agentq.runs SET {swept("now()")}
    FROM bounded WHERE id IN (
        SELECT id
        FROM json_to_recordset(CAST(:agents AS json)) a (name text, version text, holds bool)
            JOIN agentq.runs r ON r.agent = a.name
        WHERE outdated_at IS NOT NULL AND sweep_at IS NULL AND lease_token IS NULL AND due_at IS NOT NULL
            AND (agent_version = a.version OR :is_new AND (outdated_by <> a.version OR NOT a.holds))
        ORDER BY id LIMIT {_SOME} FOR NO KEY UPDATE OF r SKIP LOCKED)
""")
_ADOPT = f"""
    WITH {BOUNDED}, old AS (
        SELECT id AS old_id, agent_version AS was FROM bounded, agentq.runs
        WHERE outdated_at IS NOT NULL AND {{which}} ORDER BY id LIMIT {_SOME} FOR NO KEY UPDATE OF runs
    ), run AS (
        UPDATE agentq.runs SET
            agent_version = outdated_by, outdated_at = NULL, outdated_by = NULL, event_count = event_count + 1,
            due_at = CASE WHEN due_at > now() AND lease_token IS NULL THEN now() ELSE due_at END,
            {swept("CASE WHEN due_at IS NOT NULL AND lease_token IS NULL THEN now() END")}
        FROM old WHERE id = old_id
        RETURNING id, number, event_count, turn, was, agent_version
    ), told AS (
        INSERT INTO agentq.journal (run, number, events)
        SELECT number, event_count, CAST(json_build_array(json_build_array('agent.adopted', json_build_object(
            'from', was, 'to', agent_version, 'by', CAST(:by AS text)))) AS text)
        FROM run
    ), calls AS (
        UPDATE agentq.tool_calls c SET sweep_at = now() FROM run
        WHERE c.run_id = run.id AND c.turn = run.turn AND c.status = 'announced'
    )
    SELECT id AS run_id, was, agent_version AS now FROM run ORDER BY id
"""
_ADOPT_RUN = text(_ADOPT.format(which="id = :run_id"))
_ADOPT_AGENT = text(_ADOPT.format(which="agent = :agent"))
_OUTDATED = text(f"""
    SELECT r.*, {_HAS_WORKER.format(run="r")} AS has_worker FROM (
        SELECT agent, agent_version, outdated_by, count(*) AS runs, min(outdated_at) AS since,
            (array_agg(id ORDER BY outdated_at, id))[1] AS oldest
        FROM agentq.runs WHERE outdated_at IS NOT NULL GROUP BY agent, agent_version, outdated_by) r
    ORDER BY since
""")


@dataclass(frozen=True)
class Adopted:
    """A run that goes on with the version ``now``, and ``was`` held with another one."""

    run_id: str
    was: str
    now: str


@dataclass(frozen=True)
class Outdated:
    """Runs of one agent and version that the present code, ``outdated_by``, leaves alone; ``oldest`` is one of them.

    ``has_worker``: a worker with their version is alive.
    """

    agent: str
    agent_version: str
    outdated_by: str
    runs: int
    since: datetime
    oldest: str
    has_worker: bool


def leave(connection: Connection, claim: Claim, *, was: str, now: str) -> Again | None:
    """Give a step back that needs the version ``was``, where this process has ``now``; the attempt does not count.

    None where it needs another one meanwhile, or is not ours any more.
    """
    values = {"run_id": claim.run_id, "seq": claim.seq, "token": claim.token, "was": was, "now": now}
    row = connection.execute(_LEAVE, values | {"happened": _held(was, now)}).first()
    return None if row is None else Again(is_cancelled=row.cancel_requested)


def leave_call(connection: Connection, claimed: ClaimedCall, *, now: str, patience_secs: float) -> None:
    """The same for a call of a batch. Needs a transaction."""
    ref, was = claimed.ref.__dict__, str(claimed.snapshot.agent_version)
    connection.execute(_MARK, ref | {"was": was, "now": now, "happened": _held(was, now)})
    connection.execute(_LEAVE_CALL, ref | {"token": claimed.claim.token, "patience_secs": patience_secs})


def _held(was: str, now: str) -> str:
    return journal.happened([NewEvent("agent.held", {"from": was, "to": now})], None)


def wake(connection: Connection, agents: Iterable[AgentSpec], *, is_new: bool) -> int:
    """Let the sweep announce runs that a worker with these agents goes on with; the answer is how many there were.

    A worker ``is_new`` once: then it also looks at what it would say of those that others have left.
    """
    given = [{"name": agent.name, "version": agent.version, "holds": agent.on_change == "hold"} for agent in agents]
    return connection.execute(_WAKE, {"agents": dump(given), "is_new": is_new}).rowcount


def adopt_run(connection: Connection, run_id: str, *, by: str | None) -> Adopted | None:
    """Let a run go on with the code that has left it; None where there is none. A sweep announces it at once."""
    row = connection.execute(_ADOPT_RUN, {"run_id": run_id, "by": by}).first()
    return None if row is None else Adopted(**row._asdict())


def adopt_some(connection: Connection, agent: str, *, by: str | None) -> list[Adopted]:
    """The same for a thousand of an agent's runs, if there are so many."""
    rows = connection.execute(_ADOPT_AGENT, {"agent": agent, "by": by})
    return [Adopted(**row._asdict()) for row in rows]


def outdated(connection: Connection) -> list[Outdated]:
    """Those that have waited the longest first."""
    return [Outdated(**row._asdict()) for row in connection.execute(_OUTDATED)]
