"""The statements of threads: who is at work on one, read it, cut it, copy it, delete it. Its row is locked first.

One run of a thread is at work; others may be held behind it (``held``), in the order of their messages. Whoever is put
behind a run has ``followed`` set in that run's row: its last commit sees that, also where the two come together, and
the process that made it, or a sweep, lets the next one go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from agentq.errors import ThreadBusyError, ThreadNotFoundError
from agentq.messages import Message
from agentq.run import Snapshot, Status
from agentq.storage import journal
from agentq.storage.journal import Placed
from agentq.storage.rows import SNAPSHOT_COLUMNS, to_snapshot
from agentq.storage.sql import Connection, Row, Writer, text
from agentq.storage.steps import BOUNDED, FIRST_PATIENCE
from agentq.wire import StepMessage


def awaited(held: str) -> str:
    """The SQL for the run that a held one (``held`` is its alias) waits for: at work, or ended and about to let it go.

    NULL where there is none.
    """
    return f"""(SELECT w.id FROM agentq.runs w
        WHERE w.thread_id = {held}.thread_id AND w.id <> {held}.id
            AND (w.held IS NOT TRUE AND w.kept IS NULL AND w.status NOT IN ('completed', 'failed', 'cancelled')
                OR w.followed AND w.sweep_at IS NOT NULL)
        ORDER BY w.finished_at IS NOT NULL, w.thread_position DESC LIMIT 1)"""


# Of the locks of a row the one that foreign keys get along with: a second UPDATE of a run in one transaction has its
# thread looked at, by somebody who has the run's lock already.
_ENTER = "INSERT INTO agentq.threads (id) SELECT CAST(:id AS text) {from_bounded} ON CONFLICT DO NOTHING"
_ENTER_OURS = text(f"WITH {BOUNDED} {_ENTER.format(from_bounded='FROM bounded')}")
_ENTER_THEIRS = text(_ENTER.format(from_bounded=""))
_LOCK = text(f"WITH {BOUNDED} SELECT id FROM bounded, agentq.threads WHERE id = :id FOR NO KEY UPDATE OF threads")
# For who has other things to do.
_LOCK_SOON = text("""
    WITH bounded AS MATERIALIZED (SELECT set_config('idle_in_transaction_session_timeout', '8000', true),
                                         set_config('lock_timeout', '500', true))
    SELECT id FROM bounded, agentq.threads WHERE id = :id FOR NO KEY UPDATE OF threads
""")
_LOCK_THEIRS = text("SELECT id FROM agentq.threads WHERE id = :id FOR NO KEY UPDATE")
_NEXT_POSITION = text("""
    SELECT thread_position + 1 FROM agentq.runs WHERE thread_id = :id ORDER BY thread_position DESC LIMIT 1
""")
# A rewind has left nothing of it in the conversation, which ends with the run before it.
_IS_GONE = "kept IS NOT DISTINCT FROM 0"
# The last that has begun; one that a rewind has made void takes no part any more.
_LATEST = f"""
    SELECT id, status, thread_position, kept IS NOT NULL AS is_void, false AS is_held FROM agentq.runs
    WHERE thread_id = :id AND held IS NOT TRUE AND NOT {_IS_GONE} ORDER BY thread_position DESC LIMIT 1
"""
_LATEST_RUN = text(_LATEST)
_OPEN = text(f"""
    SELECT id, status, thread_position, is_held FROM (
        ({_LATEST}) UNION ALL
        SELECT id, status, thread_position, kept IS NOT NULL, true FROM agentq.runs
        WHERE thread_id = :id AND held AND finished_at IS NULL) r
    WHERE NOT is_void AND status NOT IN ('completed', 'failed', 'cancelled') ORDER BY thread_position
""")
_HAS_BEGUN_AFTER = text(f"""
    SELECT 1 FROM agentq.runs WHERE thread_id = :id AND held IS NOT TRUE AND NOT {_IS_GONE} AND thread_position > (
        SELECT thread_position FROM agentq.runs WHERE id = :run_id) LIMIT 1
""")
_IS_VOID = text("SELECT kept IS NOT NULL FROM agentq.runs WHERE id = :run_id")
_FOLLOW = text("""
    UPDATE agentq.runs SET followed = true
    WHERE id = :run_id AND status NOT IN ('completed', 'failed', 'cancelled') RETURNING id
""")
_STAY_BEHIND = text(
    "UPDATE agentq.runs SET sweep_at = NULL, sweep_look_at = NULL WHERE id = :run_id AND held AND finished_at IS NULL"
)
# A run of an older release does not know who waits for its end.
_STANDING = text(f"""
    SELECT DISTINCT thread_id FROM agentq.runs h
    WHERE held AND finished_at IS NULL AND sweep_at IS NULL AND {awaited("h")} IS NULL
""")
# Its time limit counts from here, or from the time it was enqueued for.
_STARTS = "greatest(start_at, now())"
_RELEASE = text(f"""
    UPDATE agentq.runs SET
        held = false, due_at = {_STARTS}, start_at = {_STARTS},
        sweep_at = CASE WHEN start_at > now() THEN start_at ELSE {FIRST_PATIENCE} END,
        sweep_look_at = CASE WHEN start_at > now() THEN start_at ELSE {FIRST_PATIENCE} END,
        lease_look_at = {FIRST_PATIENCE},
        deadline_at = {_STARTS} + make_interval(
            secs => CAST(CAST(progress AS json) #>> '{{limit_overrides,run_secs}}' AS float))
    WHERE id = :run_id AND held AND finished_at IS NULL
    RETURNING {SNAPSHOT_COLUMNS}, start_at > now() AS is_for_later, queue
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
# Also of calls that a person answered in the tool's place, which nobody has run.
_BELOW = text("""
    WITH RECURSIVE below AS (
        SELECT id, CAST(NULL AS text) AS parent_run_id, 0 AS parent_turn, 0 AS parent_index
        FROM agentq.runs WHERE id = ANY(:run_ids)
        UNION ALL
        SELECT r.id, r.parent_run_id, r.parent_turn, r.parent_index
        FROM below JOIN agentq.runs r ON r.parent_run_id = below.id)
    SELECT b.parent_run_id AS run_id, c.call_id, b.id AS child FROM below b
    JOIN agentq.tool_calls c ON (c.run_id, c.turn, c.index) = (b.parent_run_id, b.parent_turn, b.parent_index)
    UNION ALL
    SELECT a.run_id, a.call_id, NULL FROM below b JOIN agentq.approvals a ON a.run_id = b.id AND a.status = 'responded'
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

    @property
    def place(self) -> tuple[str, int]:
        """What is said there stays the same, whatever comes before it."""
        return self.run_id, self.position


def lock(connection: Connection, thread_id: str, *, soon: bool = False) -> None:
    """Nobody else changes the thread until the transaction ends. Raises ThreadNotFoundError.

    LockedError where somebody holds it for seconds, with ``soon`` for half of one.
    """
    if connection.execute(_LOCK_SOON if soon else _LOCK, {"id": thread_id}).first() is None:
        raise ThreadNotFoundError(f"there is no thread {thread_id!r}; see: agentq threads ls", thread=thread_id)


def enter(connection: Connection, thread_id: str) -> None:
    """``lock`` for a thread that may be new."""
    connection.execute(_ENTER_OURS, {"id": thread_id})
    while connection.execute(_LOCK, {"id": thread_id}).first() is None:
        # Deleted by who had it locked.
        connection.execute(_ENTER_OURS, {"id": thread_id})


def enter_theirs(connection: Writer, thread_id: str) -> None:
    """``enter`` in the caller's transaction, whose settings are left as they are."""
    connection.execute(_ENTER_THEIRS, {"id": thread_id})
    while connection.first(_LOCK_THEIRS, {"id": thread_id}) is None:
        connection.execute(_ENTER_THEIRS, {"id": thread_id})


def next_position(connection: Writer, thread_id: str) -> int:
    return int(connection.execute(_NEXT_POSITION, {"id": thread_id}).scalar() or 0)


@dataclass(frozen=True)
class OpenRun:
    """A run of a thread that has not ended; ``is_held``: it waits for those before it."""

    id: str
    status: Status
    position: int
    is_held: bool


def open_runs(connection: Writer, thread_id: str) -> list[OpenRun]:
    """The run at work, then those behind it; one that a rewind has made void is not among them."""
    rows = connection.execute(_OPEN, {"id": thread_id}).all()
    return [OpenRun(row.id, row.status, row.thread_position, row.is_held) for row in rows]


def before(connection: Writer, thread_id: str, run_id: str) -> list[OpenRun]:
    """The open runs that a held one waits for; all of them where it has begun or ended meanwhile."""
    found = open_runs(connection, thread_id)
    place = next((at for at, run in enumerate(found) if run.id == run_id), len(found))
    return found[:place]


def latest_run(connection: Connection, thread_id: str) -> str | None:
    """The last run that has begun; None where there is none, or a rewind has made it void."""
    row = connection.execute(_LATEST_RUN, {"id": thread_id}).first()
    return None if row is None or row.is_void else str(row.id)


def may_reopen(connection: Connection, thread_id: str, run_id: str) -> bool:
    """Whether a run that has ended is still the last of its thread, apart from such as have not begun."""
    where = {"id": thread_id, "run_id": run_id}
    is_void = connection.execute(_IS_VOID, where).scalar()
    return not is_void and connection.execute(_HAS_BEGUN_AFTER, where).first() is None


def check_idle(connection: Writer, thread_id: str) -> None:
    """Raises ThreadBusyError."""
    if found := open_runs(connection, thread_id):
        raise busy(thread_id, found[0])


def busy(thread_id: str, run: OpenRun, *, is_waiting: bool = False) -> ThreadBusyError:
    """``is_waiting``: for a person."""
    if is_waiting:
        why, option = f"run {run.id} waits for a person (status waiting); decide", "on_waiting"
    else:
        why, option = f"it is busy with run {run.id} ({run.status}); wait for it", "on_busy"
    message = f"thread {thread_id!r}: {why}, or cancel it, or say with {option}= what a message does meanwhile"
    return ThreadBusyError(message, run_id=run.id)


def follow(connection: Connection, run_id: str) -> bool:
    """Have the run's end let the next one go; False where it has ended meanwhile."""
    return connection.execute(_FOLLOW, {"run_id": run_id}).first() is not None


def stay_behind(connection: Connection, run_id: str) -> None:
    """Take a held run out of the sweep's sight: the run before it lets it go."""
    connection.execute(_STAY_BEHIND, {"run_id": run_id})


def standing(connection: Connection) -> list[str]:
    """Threads where runs are held and nobody is at work, or about to let them go."""
    return connection.execute(_STANDING, {}).scalars()


def release(connection: Connection, run_id: str, *, patience_secs: float) -> tuple[Snapshot, StepMessage | None] | None:
    """Let a held run begin; the answer is the run, and its wake-up where it is not for later. None: it has ended."""
    row = connection.execute(_RELEASE, {"run_id": run_id, "patience_secs": patience_secs}).first()
    if row is None:
        return None
    wake_up = StepMessage(row.id, row.seq, row.queue, priority=row.priority)
    return to_snapshot(row), None if row.is_for_later else wake_up


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


def below(connection: Connection, run_ids: Sequence[str]) -> dict[tuple[str, str], str | None]:
    """The sub-agents' runs under these runs, by the run and the id of the call that each is for.

    None for a call that a person answered in its tool's place.
    """
    rows = connection.execute(_BELOW, {"run_ids": list(run_ids)}).all()
    return {(row.run_id, row.call_id): row.child for row in rows}


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
