"""Sub-agents: a run that has ended answers its parent's call, and does not leave children behind."""

from dataclasses import dataclass

from agentq.storage.rows import CallRef
from agentq.storage.sql import Connection, text

_LINK = text("""
    UPDATE agentq.tool_calls SET child_run_id = :child WHERE run_id = :run_id AND turn = :turn AND index = :index
""")
_ENDED = text("""
    SELECT status, parent_run_id, parent_turn, parent_index, thread_id, followed FROM agentq.runs
    WHERE id = :run_id AND status IN ('completed', 'failed', 'cancelled') AND sweep_at IS NOT NULL
""")
_CALL = text("SELECT call_id, tool FROM agentq.tool_calls WHERE run_id = :run_id AND turn = :turn AND index = :index")
# What is left to do then is to tell its hooks, see endings.py.
_TOLD = text("""
    UPDATE agentq.runs SET
        sweep_at = CASE WHEN on_end_at IS NOT NULL THEN greatest(sweep_at, on_end_at) END,
        sweep_look_at = CASE WHEN on_end_at IS NOT NULL THEN sweep_look_at END
    WHERE id = :run_id AND status IN ('completed', 'failed', 'cancelled')
""")


@dataclass(frozen=True)
class Ended:
    """A run that has ended, and whose parent, children or followers do not know it yet.

    ``parent`` is the call it answers, ``thread_id`` where other runs wait for its end.
    """

    is_completed: bool
    parent: CallRef | None
    thread_id: str | None


def link(connection: Connection, ref: CallRef, child_run_id: str) -> None:
    connection.execute(_LINK, ref.__dict__ | {"child": child_run_id})


def ended(connection: Connection, run_id: str) -> Ended | None:
    """None when there is nobody left to tell."""
    row = connection.execute(_ENDED, {"run_id": run_id}).first()
    if row is None:
        return None
    parent = CallRef(row.parent_run_id, row.parent_turn, row.parent_index) if row.parent_run_id else None
    return Ended(row.status == "completed", parent, row.thread_id if row.followed else None)


def call(connection: Connection, ref: CallRef) -> tuple[str, str] | None:
    """The model's id for the call, and the tool it named; None where its run was deleted."""
    row = connection.execute(_CALL, ref.__dict__).first()
    return None if row is None else (row.call_id, row.tool)


def told(connection: Connection, run_id: str) -> None:
    """The whole family knows of the run's end."""
    connection.execute(_TOLD, {"run_id": run_id})
