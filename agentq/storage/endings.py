"""Runs that have ended and whose hooks have not heard of it: who tells them, and that it is done."""

from agentq.run import Snapshot
from agentq.storage.rows import SNAPSHOT_COLUMNS, to_snapshot
from agentq.storage.sql import Connection, text
from agentq.storage.steps import NO_FSYNC, swept

# A process that is telling hooks of an end has so long, see MAX_HOOKS_SECS; then it is taken for lost.
HOLD_SECS = 70.0

_HEARS_ENDS = text("SELECT hears_ends FROM agentq.agents WHERE name = :agent")
_UNTOLD = text("SELECT agent FROM agentq.runs WHERE id = :run_id AND on_end_at <= now()")
_TAKE = text(f"""
    UPDATE agentq.runs SET
        on_end_at = now() + make_interval(secs => {HOLD_SECS}),
        {swept(f"now() + make_interval(secs => {HOLD_SECS})")}
    WHERE id = (SELECT id FROM agentq.runs WHERE id = :run_id AND on_end_at <= now() FOR UPDATE SKIP LOCKED)
    RETURNING {SNAPSHOT_COLUMNS}
""")
_TOLD = text(f"""
    WITH {NO_FSYNC}
    UPDATE agentq.runs SET on_end_at = NULL, sweep_at = NULL, sweep_look_at = NULL
    FROM fast WHERE id = :run_id AND seq = :seq AND on_end_at IS NOT NULL
""")
_FOR_A_DAY = "CASE WHEN finished_at > now() - interval '1 day' THEN {} END"
_IN_A_MINUTE = _FOR_A_DAY.format("now() + interval '60 s'")
# A worker that has the agent has looked at it by then; and after a day nobody waits for it any more.
_LEAVE = text(f"""
    UPDATE agentq.runs SET
        on_end_at = {_FOR_A_DAY.format("on_end_at")}, sweep_at = {_IN_A_MINUTE}, sweep_look_at = {_IN_A_MINUTE}
    WHERE id = (SELECT id FROM agentq.runs WHERE id = :run_id AND on_end_at <= now()
                AND sweep_at < now() - interval '5 s' FOR UPDATE SKIP LOCKED)
""")


def hears_ends(connection: Connection, agent: str) -> bool:
    """Whether an agent has hooks that want to hear of the ends of its runs, as the last worker with it has said."""
    return bool(connection.execute(_HEARS_ENDS, {"agent": agent}).scalar())


def untold(connection: Connection, run_id: str) -> str | None:
    """The agent of a run whose hooks it is time to tell; None where nobody need be told now."""
    agent: str | None = connection.execute(_UNTOLD, {"run_id": run_id}).scalar()
    return agent


def take(connection: Connection, run_id: str) -> Snapshot | None:
    """The run, for the one process that is to tell its hooks now."""
    row = connection.execute(_TAKE, {"run_id": run_id}).first()
    return None if row is None else to_snapshot(row)


def told(connection: Connection, run_id: str, seq: int) -> None:
    """The hooks have heard of the end at ``seq``. Needs an autocommit connection: it waits for no fsync."""
    connection.execute(_TOLD, {"run_id": run_id, "seq": seq})


def leave(connection: Connection, run_id: str) -> None:
    """Leave it to a worker that has the agent; look again in a minute, for a day."""
    connection.execute(_LEAVE, {"run_id": run_id})
