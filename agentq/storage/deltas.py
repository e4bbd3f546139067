"""What is being written to replies under way, put into the journals of their runs: of many runs in one statement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from agentq.storage import journal
from agentq.storage.journal import NewEvent
from agentq.storage.rows import dump
from agentq.storage.sql import Connection, text
from agentq.storage.steps import NO_FSYNC

# A row that somebody has locked is left for the next time: one run must not keep others from being seen.
_WRITE = text(f"""
    WITH {NO_FSYNC}, given AS (
        SELECT * FROM json_to_recordset(CAST(:given AS json)) AS g(run_id text, token uuid, events int, happened text)
    ), ours AS (
        SELECT r.id, g.events, g.happened FROM agentq.runs r JOIN given g ON r.id = g.run_id
        WHERE r.lease_token = g.token AND (SELECT true FROM fast) IS NOT NULL
        FOR NO KEY UPDATE OF r SKIP LOCKED
    ), run AS (
        UPDATE agentq.runs r SET event_count = event_count + ours.events FROM ours WHERE r.id = ours.id
        RETURNING r.id, r.number, r.event_count, ours.happened
    ), told AS (
        INSERT INTO agentq.journal (run, number, events) SELECT number, event_count, happened FROM run
    )
    SELECT id FROM run
""")


# Not by the attempts that are counted: one that a worker gave back as it was stopped is not.
_LAST = text("""
    SELECT e.type FROM agentq.runs r
    JOIN agentq.journal j ON j.run = r.number AND j.number > coalesce(r.reply, 0)
    CROSS JOIN agentq.events_of(j) e
    WHERE r.id = :run_id AND e.type IN ('model.delta', 'model.reset') ORDER BY e.number DESC LIMIT 1
""")


@dataclass(frozen=True)
class Written:
    """What was written to a reply of a run, whose lease has this token."""

    token: UUID
    events: Sequence[NewEvent]


def write(connection: Connection, written: Mapping[str, Written]) -> set[str]:
    """Add the events of each run (by id) that is still ours and not locked; the runs it did that for. Autocommit."""
    given = [
        {
            "run_id": run_id,
            "token": str(each.token),
            "events": len(each.events),
            "happened": journal.happened(each.events, None),
        }
        for run_id, each in written.items()
    ]
    return {row.id for row in connection.execute(_WRITE, {"given": dump(given)})}


def was_shown(connection: Connection, run_id: str) -> bool:
    """Whether an attempt at the reply that is due has shown something that was not taken back."""
    row = connection.execute(_LAST, {"run_id": run_id}).first()
    return row is not None and row.type == "model.delta"
