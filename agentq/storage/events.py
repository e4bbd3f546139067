"""Events: what happened to a run, numbered without gaps, never a prompt or a result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from agentq.storage.rows import dump

# As JSON, because a list of values is slow to write as an array of Postgres; what is stored is text in it, for it may
# hold what Postgres' json refuses.
_ROWS = """ROWS FROM (json_to_recordset(CAST(:new_events AS json)) AS (type text, data text))
        WITH ORDINALITY e (type, data, n)"""

# For a statement that has the run's row, with its new count of events, as ``run``.
ADD_EVENTS = (
    """INSERT INTO agentq.events (run_id, number, type, data)
    SELECT run.id, run.event_count - :events + e.n, e.type, e.data FROM run, """
    + _ROWS
)

_INSERT = text(f"""
    INSERT INTO agentq.events (run_id, number, type, data)
    SELECT :run_id, :count - :events + e.n, e.type, e.data FROM {_ROWS}
""")


@dataclass(frozen=True)
class NewEvent:
    type: str
    data: dict[str, Any]


def event_values(events: Sequence[NewEvent]) -> dict[str, Any]:
    """The values of ADD_EVENTS."""
    rows = [{"type": event.type, "data": dump(event.data)} for event in events]
    return {"events": len(rows), "new_events": dump(rows)}


def add_events(connection: Connection, run_id: str, count: int, events: Sequence[NewEvent]) -> None:
    """Write events whose numbers end at ``count``, which the caller's UPDATE of the run has reserved."""
    if events:
        connection.execute(_INSERT, event_values(events) | {"run_id": run_id, "count": count})
