"""Messages that were sent into a run at work, until it takes them up with a step of its own."""

from agentq.messages import UserMessage, dump_message, load_user_message
from agentq.run import Snapshot
from agentq.storage import journal
from agentq.storage.enqueue import NewRun
from agentq.storage.journal import NewEvent
from agentq.storage.sql import Connection, text
from agentq.values import replace

_PUT = text("""
    WITH run AS (
        UPDATE agentq.runs SET steered = coalesce(steered, 0) + 1, event_count = event_count + 1
        WHERE id = :run_id AND status NOT IN ('completed', 'failed', 'cancelled') AND NOT cancel_requested
        RETURNING id, steered, number, event_count
    ), put AS (
        INSERT INTO agentq.inbox (run_id, number, idempotency_key, message)
        SELECT id, steered, :key, :message FROM run
    )
    SELECT number, event_count FROM run
""")
_UNHEARD = text("""
    SELECT number, message FROM agentq.inbox WHERE run_id = :run_id AND number > :heard ORDER BY number
""")
# Of part of a commit, which has the run's row as ``run``.
TAKEN_UP = "UPDATE agentq.inbox i SET message = NULL FROM run WHERE i.run_id = run.id AND i.number <= :heard"


def put(connection: Connection, run_id: str, message: UserMessage, *, key: str | None) -> bool:
    """Send a message into a run; False where it has ended, or is about to: nobody would answer it there."""
    row = connection.first(_PUT, {"run_id": run_id, "message": dump_message(message), "key": key})
    if row is None:
        return False
    journal.add(connection, row.number, row.event_count, [NewEvent("run.steered", {})])
    return True


def key(new: NewRun) -> str | None:
    """The idempotency key of a message as it is stored here: with the agent it is for, which need not be the run's."""
    return None if new.idempotency_key is None else f"{new.agent} {new.idempotency_key}"


def take_up(connection: Connection, snapshot: Snapshot) -> Snapshot:
    """The run with the messages that it has not taken up yet behind its own: its next commit saves them."""
    if snapshot.steered <= snapshot.heard:
        return snapshot
    rows = connection.execute(_UNHEARD, {"run_id": snapshot.run_id, "heard": snapshot.heard}).all()
    joined = tuple((at, load_user_message(row.message)) for at, row in enumerate(rows, snapshot.message_count))
    heard = max(snapshot.heard, *(row.number for row in rows))
    return replace(
        snapshot,
        message_count=snapshot.message_count + len(joined),
        joined=joined,
        heard=heard,
        steered=max(snapshot.steered, heard),
    )
