"""The statements of threads: read a conversation, cut it, copy it, delete it. A thread's row is locked first."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from agentq.errors import ThreadBusyError, ThreadNotFoundError
from agentq.messages import Message
from agentq.run import TERMINAL
from agentq.storage import journal
from agentq.storage.journal import Placed
from agentq.storage.sql import Connection, Row, text

_LOCK = text("SELECT id FROM agentq.threads WHERE id = :id FOR UPDATE")
_LATEST = text("""
    SELECT id, status, kept IS NOT NULL AS is_void FROM agentq.runs
    WHERE thread_id = :id ORDER BY thread_position DESC LIMIT 1
""")
# What was copied from another thread comes before the runs; of a run that was cut, only its first messages are left.
_SAID = """
    SELECT -1 AS thread_position, '' AS run_id, CAST(NULL AS integer) AS kept, prefix AS messages
    FROM agentq.threads WHERE id = :thread_id AND prefix IS NOT NULL
    UNION ALL
    SELECT r.thread_position, r.id, r.kept, j.messages FROM agentq.journal j JOIN agentq.runs r ON r.number = j.run
    WHERE r.thread_id = :thread_id AND j.messages IS NOT NULL AND (r.kept IS NULL OR r.kept > 0) {which}
    ORDER BY 1
"""
_ALL = text(_SAID.format(which=""))
_EARLIER = text(
    _SAID.format(
        which="AND r.thread_position < (SELECT thread_position FROM agentq.runs WHERE id = :run_id)",
    )
)
_CUT_PREFIX = text("UPDATE agentq.threads SET prefix = :prefix WHERE id = :id")
_CUT_RUN = text("""
    UPDATE agentq.runs SET kept = CASE WHEN id = :run_id THEN CAST(:kept AS integer) ELSE 0 END
    WHERE thread_id = :id AND thread_position >= coalesce(
            (SELECT thread_position FROM agentq.runs WHERE id = :run_id), -1)
        AND (kept IS NULL OR kept > 0)
""")
_FORK = text("INSERT INTO agentq.threads (id, prefix) VALUES (:id, :prefix) ON CONFLICT DO NOTHING RETURNING id")
_DELETE = text("""
    WITH RECURSIVE below AS (
        SELECT id FROM agentq.runs WHERE thread_id = ANY(:ids)
        UNION ALL
        SELECT r.id FROM below JOIN agentq.runs r ON r.parent_run_id = below.id
    ), gone AS (DELETE FROM agentq.runs WHERE id IN (SELECT id FROM below) RETURNING id)
    SELECT count(*) FROM gone
""")
_DELETE_THREADS = text("DELETE FROM agentq.threads WHERE id = ANY(:ids)")


@dataclass(frozen=True)
class Said:
    """A message of a thread, the run it is of ('' for one that was copied), and its place there."""

    run_id: str
    position: int
    message: Message


def lock(connection: Connection, thread_id: str) -> None:
    """Nobody else changes the thread until the transaction ends. Raises ThreadNotFoundError."""
    if connection.execute(_LOCK, {"id": thread_id}).first() is None:
        raise ThreadNotFoundError(f"there is no thread {thread_id!r}", thread=thread_id)


def open_run(connection: Connection, thread_id: str) -> str | None:
    """The run that keeps the thread busy; one that a rewind has made void does not."""
    row = connection.execute(_LATEST, {"id": thread_id}).first()
    return None if row is None or row.is_void or row.status in TERMINAL else str(row.id)


def latest_run(connection: Connection, thread_id: str) -> str | None:
    """The run of the latest message; None where there is none, or a rewind has made it void."""
    row = connection.execute(_LATEST, {"id": thread_id}).first()
    return None if row is None or row.is_void else str(row.id)


def check_idle(connection: Connection, thread_id: str) -> None:
    """Raises ThreadBusyError."""
    if busy := open_run(connection, thread_id):
        raise ThreadBusyError(f"thread {thread_id!r} is busy with run {busy}; wait for it or cancel it", run_id=busy)


def said(connection: Connection, thread_id: str) -> list[Said]:
    """Every message of the thread, in order, with where it comes from."""
    return _said(connection.execute(_ALL, {"thread_id": thread_id}).all())


def earlier(connection: Connection, run_id: str, thread_id: str) -> tuple[Message, ...]:
    """The messages that are before those of the run on its thread."""
    rows = connection.execute(_EARLIER, {"run_id": run_id, "thread_id": thread_id}).all()
    return tuple(each.message for each in _said(rows))


def _said(rows: Sequence[Row]) -> list[Said]:
    found: list[Said] = []
    for (_, run_id, kept), of_run in groupby(rows, key=lambda row: (row.thread_position, row.run_id, row.kept)):
        placed = sorted(journal.messages_in(row.messages for row in of_run), key=itemgetter(0))
        found += [Said(run_id, at, message) for at, message in placed if kept is None or at < kept]
    return found


def cut(connection: Connection, thread_id: str, left: Sequence[Said], dropped: Said) -> None:
    """Leave the messages ``left`` in the thread; the runs that have others are void from there on."""
    if not dropped.run_id:
        connection.execute(_CUT_PREFIX, {"id": thread_id, "prefix": _copied(left)})
    connection.execute(_CUT_RUN, {"id": thread_id, "run_id": dropped.run_id, "kept": dropped.position})


def fork(connection: Connection, thread_id: str, messages: Sequence[Said]) -> bool:
    """A new thread that begins with copies of the messages; False where there is one of that name."""
    values = {"id": thread_id, "prefix": _copied(messages)}
    return connection.execute(_FORK, values).first() is not None


def _copied(messages: Sequence[Said]) -> str | None:
    placed: list[Placed] = [(at, each.message) for at, each in enumerate(messages)]
    return journal.dump_messages(placed) if placed else None


def delete(connection: Connection, thread_ids: Sequence[str]) -> int:
    """Delete threads and all of their runs, with those of their sub-agents; the answer is how many runs those were."""
    runs = int(connection.execute(_DELETE, {"ids": list(thread_ids)}).scalar())
    connection.execute(_DELETE_THREADS, {"ids": list(thread_ids)})
    return runs
