"""Sub-agents: a child run answers its parent's call once it has ended."""

from dataclasses import dataclass

from sqlalchemy import Connection, text

from agentq.storage.rows import CallRef

_LINK = text("""
    UPDATE agentq.tool_calls SET child_run_id = :child WHERE run_id = :run_id AND turn = :turn AND index = :index
""")
_ENDED = text("""
    SELECT id, status, parent_run_id, parent_turn, parent_index FROM agentq.runs
    WHERE id = :run_id AND parent_run_id IS NOT NULL AND status IN ('completed', 'failed', 'cancelled')
        AND sweep_at IS NOT NULL
""")
_CALL = text("SELECT call_id, tool FROM agentq.tool_calls WHERE run_id = :run_id AND turn = :turn AND index = :index")
_TOLD = text("UPDATE agentq.runs SET sweep_at = NULL WHERE id = :run_id")


@dataclass(frozen=True)
class EndedChild:
    """A child run whose parent has not been told yet."""

    run_id: str
    parent: CallRef


def link(connection: Connection, ref: CallRef, child_run_id: str) -> None:
    connection.execute(_LINK, ref.__dict__ | {"child": child_run_id})


def ended(connection: Connection, run_id: str) -> EndedChild | None:
    row = connection.execute(_ENDED, {"run_id": run_id}).first()
    if row is None:
        return None
    return EndedChild(row.id, CallRef(row.parent_run_id, row.parent_turn, row.parent_index))


def call(connection: Connection, ref: CallRef) -> tuple[str, str]:
    """The model's id for the call, and the tool it named."""
    row = connection.execute(_CALL, ref.__dict__).one()
    return row.call_id, row.tool


def told(connection: Connection, run_id: str) -> None:
    connection.execute(_TOLD, {"run_id": run_id})
