"""The line of a concurrency key: so many of its runs are at work, the others wait as rows, and who is next.

A run with a key has a place (``has_place``) while it is at work, stands in the line (false), or needs none (NULL): it
is not due yet, waits for a person, or has ended. Only ``let_in`` gives places, under a lock of the key that is held
until the commit: whoever comes second sees what the first has done. So each change is written first, then the lock is
taken, then the line is looked at, in this order and in one transaction; no key is left with a free place and a line.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from agentq.run import Snapshot
from agentq.storage import commits
from agentq.storage.sql import Connection, text
from agentq.storage.steps import BOUNDED, FIRST_PATIENCE, swept
from agentq.wire import StepMessage, WakeUp

# The first number is ours among the advisory locks of the database; two keys that share the second wait for each other.
_THE_KEY = "1634169969, hashtext(:key)"
_LOCK = text(f"WITH {BOUNDED} SELECT pg_advisory_xact_lock({_THE_KEY}) FROM bounded")
_TRY_LOCK = text(f"WITH {BOUNDED} SELECT pg_try_advisory_xact_lock({_THE_KEY}) FROM bounded")

# The newest of the open runs says how many may be at work.
_AT_WORK = "SELECT number, concurrency_limit FROM agentq.runs w WHERE w.concurrency_key = {key} AND w.has_place"
_LIMIT = f"""(
    SELECT concurrency_limit FROM (
        {_AT_WORK}
        UNION ALL
        SELECT newest.* FROM (VALUES (-1), (0), (1)) p (priority) CROSS JOIN LATERAL (
            SELECT number, concurrency_limit FROM agentq.runs l
            WHERE l.concurrency_key = {{key}} AND NOT l.has_place AND l.priority = p.priority
            ORDER BY l.number DESC LIMIT 1) newest) known
    ORDER BY number DESC LIMIT 1)"""
_FREE = f"greatest(0, {_LIMIT} - (SELECT count(*) FROM ({_AT_WORK}) w))"
# A row that somebody has locked is about to leave the line, or is let in by whoever looks next.
_LET_IN = text(f"""
    UPDATE agentq.runs SET
        has_place = true,
        -- Since when it may be claimed; a batch has no step that is due, but calls.
        due_at = CASE WHEN due_at IS NOT NULL THEN now() END,
        {swept(f"CASE WHEN due_at IS NOT NULL THEN {FIRST_PATIENCE} END")}
    WHERE id IN (
        SELECT id FROM agentq.runs WHERE concurrency_key = :key AND NOT has_place
        ORDER BY priority, number LIMIT (SELECT {_FREE.format(key=":key")}) FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING id, agent, seq, turn, queue, timeout_secs, priority, due_at, number
""")
_LEAVE = text("UPDATE agentq.runs SET has_place = NULL WHERE id = :run_id AND has_place IS NOT NULL")
_IN_LINE = "has_place = false, sweep_at = NULL, sweep_look_at = NULL"
_JOIN = text(f"UPDATE agentq.runs SET {_IN_LINE} WHERE id = :run_id AND has_place IS NULL")
_JOIN_DUE = text(f"""
    UPDATE agentq.runs SET {_IN_LINE} WHERE id IN (
        SELECT id FROM agentq.runs
        WHERE id = ANY(:run_ids) AND has_place IS NULL AND lease_token IS NULL AND sweep_at <= now() AND due_at <= now()
            AND status NOT IN ('completed', 'failed', 'cancelled')
        FOR NO KEY UPDATE SKIP LOCKED)
""")
_KEYS_OF = text("SELECT id, concurrency_key FROM agentq.runs WHERE id = ANY(:run_ids) AND concurrency_key IS NOT NULL")
# From key to key by the index, however long their lines are.
_STANDING = text(f"""
    WITH RECURSIVE keys (key) AS (
        SELECT min(concurrency_key) FROM agentq.runs WHERE NOT has_place
        UNION ALL
        SELECT (SELECT min(concurrency_key) FROM agentq.runs WHERE NOT has_place AND concurrency_key > key)
        FROM keys WHERE key IS NOT NULL)
    SELECT key FROM keys WHERE key IS NOT NULL AND {_FREE.format(key="keys.key")} > 0
""")


def let_in(connection: Connection, key: str, *, patience_secs: float) -> list[WakeUp]:
    """Give the free places of a key to the first in its line; the answer is to be sent after the commit."""
    connection.execute(_LOCK, {"key": key})
    return _let_in(connection, key, patience_secs)


def let_in_if_free(connection: Connection, key: str, *, patience_secs: float, due: Sequence[str] = ()) -> list[WakeUp]:
    """The same without waiting for the lock: who has it may be stuck, and the others of a sweep must not wait for it.

    The runs ``due`` go into the line before.
    """
    if not connection.execute(_TRY_LOCK, {"key": key}).scalar():
        return []
    if due:
        connection.execute(_JOIN_DUE, {"run_ids": list(due)})
    return _let_in(connection, key, patience_secs)


def _let_in(connection: Connection, key: str, patience_secs: float) -> list[WakeUp]:
    rows = connection.execute(_LET_IN, {"key": key, "patience_secs": patience_secs}).all()
    wake_ups: list[WakeUp] = []
    for row in sorted(rows, key=lambda row: (row.priority, row.number)):
        if row.due_at is not None:
            wake_ups.append(StepMessage(row.id, row.seq, row.queue, row.timeout_secs, row.priority))
        else:
            # It was in the middle of a batch when a person was asked.
            run = Snapshot(row.id, row.agent, seq=row.seq, turn=row.turn, priority=row.priority)
            wake_ups += commits.announce_first(connection, run, patience_secs=patience_secs)
    return wake_ups


def go_on(connection: Connection, run: Snapshot, wake_ups: list[WakeUp], *, patience_secs: float) -> list[WakeUp]:
    """After a change of a run with a key, in its transaction: what is to be sent, when ``wake_ups`` would be else.

    A run that needs its place no more leaves it to the next; one that needs one again stands in the line.
    """
    key, is_at_work = run.concurrency_key, run.status in ("queued", "running")
    if key is None or (run.has_place and is_at_work):
        return wake_ups
    if is_at_work:
        connection.execute(_JOIN, {"run_id": run.run_id})
        return let_in(connection, key, patience_secs=patience_secs)
    connection.execute(_LEAVE, {"run_id": run.run_id})
    return wake_ups + (let_in(connection, key, patience_secs=patience_secs) if run.has_place else [])


def keys_of(connection: Connection, run_ids: Sequence[str]) -> Mapping[str, list[str]]:
    """Runs by their keys."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in connection.execute(_KEYS_OF, {"run_ids": list(run_ids)}):
        found[row.concurrency_key].append(row.id)
    return found


def standing(connection: Connection) -> list[str]:
    """Keys with a free place and a line, such as after somebody has deleted a run that was at work."""
    return connection.execute(_STANDING, {}).scalars()
