"""The read behind ``why``: a run and the runs below it, in one statement, so that they are of one moment."""

from datetime import datetime

from pydantic import BaseModel

from agentq.errors import RunNotFoundError
from agentq.facts import Fleet, RunFacts
from agentq.storage import queries, threads
from agentq.storage.journal import updated_at
from agentq.storage.sql import Connection, text
from agentq.why import Scene, Why, explain

# How many levels of sub-agents are looked at; deeper ones are named.
DEPTH = 3

_TREE = text(f"""
    WITH RECURSIVE tree (id, level) AS (
        SELECT id, 0 FROM agentq.runs WHERE id = :run_id
        UNION
        SELECT c.child_run_id, t.level + 1
        FROM tree t JOIN agentq.runs r ON r.id = t.id
            JOIN agentq.tool_calls c ON c.run_id = r.id AND c.turn = r.turn AND c.status <> 'done'
        WHERE c.child_run_id IS NOT NULL AND t.level < :depth)
    SELECT now() AS now, jsonb_agg(
        to_jsonb(r) - CAST('{{progress,context,output,tags}}' AS text[]) || jsonb_build_object(
            'updated_at', {updated_at("r")},
            'claimed_at', greatest(r.claimed_at, {updated_at("r")}),
            'at_work', (SELECT count(*) FROM agentq.runs w WHERE w.concurrency_key = r.concurrency_key AND w.has_place),
            'behind', CASE WHEN r.held THEN {threads.awaited("r")} END,
            'calls', CASE WHEN r.on_unknown IS NULL THEN (
                SELECT coalesce(jsonb_agg(to_jsonb(c) ORDER BY c.index), '[]') FROM agentq.tool_calls c
                WHERE c.run_id = r.id AND c.turn = r.turn)
            ELSE (
                SELECT jsonb_build_array(to_jsonb(r) || jsonb_build_object(
                    'index', 0, 'status', 'pending', 'kind', 'tool', 'child_run_id', NULL, 'announced_at', NULL,
                    'call_id', CAST(j.messages AS json) #> '{{-1,1,calls,0}}' ->> 'id',
                    'tool', CAST(j.messages AS json) #> '{{-1,1,calls,0}}' ->> 'name'))
                FROM agentq.journal j WHERE j.run = r.number AND j.number = r.reply) END,
            'approvals', (SELECT coalesce(jsonb_agg(to_jsonb(a) - 'arguments' ORDER BY a.index), '[]')
                          FROM agentq.approvals a
                          WHERE a.run_id = r.id AND a.turn = r.turn AND a.status = 'pending'),
            'last_event', (SELECT to_jsonb(e) FROM agentq.journal j CROSS JOIN agentq.events_of(j) e
                           WHERE j.run = r.number AND j.number = r.event_count AND e.number = r.event_count))) AS runs
    FROM tree JOIN agentq.runs r USING (id)
""")


class _Read(BaseModel):
    now: datetime
    runs: tuple[RunFacts, ...] | None


def why(connection: Connection, run_id: str, *, prefix: str) -> Why:
    """Raises RunNotFoundError. ``prefix`` is what the queues of this installation begin with."""
    row = connection.execute(_TREE, {"run_id": run_id, "depth": DEPTH}).one()
    read = _Read.model_validate(row._asdict())
    if not read.runs:
        raise RunNotFoundError(f"there is no run {run_id!r}; see: agentq runs ls", run_id=run_id)
    fleet = Fleet(queries.workers(connection), prefix)
    return explain(Scene(read.now, {run.id: run for run in read.runs}, fleet, DEPTH), run_id)
