"""New runs: one statement writes the run, its message and its first event, or nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Literal

from agentq.content import File, Image
from agentq.errors import RunFinishedError
from agentq.messages import UserMessage
from agentq.run import Progress
from agentq.storage import journal
from agentq.storage.journal import NewEvent
from agentq.storage.rows import CallRef, dump, of_progress
from agentq.storage.sql import Writer, text
from agentq.storage.steps import FIRST_PATIENCE
from agentq.wire import STEP_QUEUE

# Who has the run's first step begun: the caller of ``insert``, who sends the wake-up; a sweep, as soon as the run is
# due; the line of its concurrency key, which the caller looks at; a sweep after the commit of a transaction that is not
# ours ("guest"); or the end of a run that is before it on its thread ("held": that run knows; "behind": a sweep tells
# it, after the commit of a transaction that is not ours).
Start = Literal["caller", "sweep", "line", "guest", "held", "behind"]

_GUESTS: tuple[Start, ...] = ("guest", "behind")

_COLUMNS = """id, agent, status, phase, seq, turn, depth, progress, context, tags, idempotency_key,
                                 thread_id, thread_position, parent_run_id, parent_turn, parent_index, message_count,
                                 event_count, queue, priority, concurrency_key, concurrency_limit, has_place,
                                 created_at, due_at, start_at, sweep_at, sweep_look_at, lease_look_at, deadline_at,
                                 held"""
_KEY = "WHERE idempotency_key IS NOT NULL"
# Only where there is a key: Postgres logs one record more for a row that might have met another.
_OTHER = f"ON CONFLICT (agent, idempotency_key) {_KEY} DO NOTHING"
# Of what is due at once, what is more urgent is looked at before what came up to ten minutes earlier.
_FIRST_LOOK = "make_interval(mins => :head_start)"


def _later(now: str) -> str:
    given = f"coalesce(CAST(:due_at AS timestamptz), {now} + make_interval(secs => CAST(:delay_secs AS float)))"
    return f"greatest({now}, {given})"


_NULL = "CAST(NULL AS timestamptz)"


def _times(start: Start, *, later: bool, announced: str | None = None) -> str:
    """The columns from has_place on. ``announced`` is the SQL for whether one of many is."""
    # A guest's transaction may have begun long ago.
    now = "statement_timestamp()" if start in ("guest", "behind") else "now()"
    due = _later(now) if later else now
    first_look = due if later else f"{due} - {_FIRST_LOOK}"
    if start in ("held", "behind"):
        # Its time begins when its turn comes.
        look = now if start == "behind" else _NULL
        start_at = due if later else _NULL
        return f"CAST(NULL AS boolean), {now}, {_NULL}, {start_at}, {look}, {look}, {_NULL}, {_NULL}, true"
    match start:
        case "line":
            looks = f"{_NULL}, {_NULL}, {_NULL}"
        case "sweep" | "guest":
            looks = f"{due}, {first_look}, {_NULL}"
        case "caller" if announced:
            cases = f"CASE WHEN {announced} THEN {FIRST_PATIENCE} ELSE {{}} END"
            looks = f"{cases.format(due)}, {cases.format(first_look)}, {_NULL}"
        case "caller":
            # Looked at for its lease before it has one, so that the first claim need not change that.
            looks = f"{FIRST_PATIENCE}, {FIRST_PATIENCE}, {FIRST_PATIENCE}"
    has_place = f"CAST({'false' if start == 'line' else 'NULL'} AS boolean)"
    start_at = f"nullif({due}, {now})" if later else _NULL
    none = "CAST(NULL AS boolean)"
    return f"{has_place}, {now}, {due}, {start_at}, {looks}, {due} + make_interval(secs => :run_secs), {none}"


# The key of a message that was sent into a run is stored with the agent it was for, which need not be the run's.
_STEERED_KEY = "concat(CAST(:agent AS text), ' ', CAST({key} AS text))"


def _unless_steered(start: Start, key: str) -> str:
    """Of a guest, whose role may not read this, the caller has looked before."""
    if start in _GUESTS:
        return ""
    steered = _STEERED_KEY.format(key=key)
    return f"WHERE NOT EXISTS (SELECT 1 FROM agentq.inbox WHERE idempotency_key = {steered})"


@cache
def _insert(start: Start, *, later: bool, has_key: bool) -> bytes:
    """Of the parts that a run needs."""
    return text(f"""
        WITH run AS (
            INSERT INTO agentq.runs ({_COLUMNS})
            SELECT :id, :agent, 'queued', 'recall', 0, 0, :depth, :progress, :context, CAST(:tags AS jsonb),
                    :idempotency_key, :thread_id, :thread_position, :parent_run_id, :parent_turn, :parent_index, 1, 1,
                    :queue, :priority, :concurrency_key, :concurrency_limit, {_times(start, later=later)}
            {_unless_steered(start, ":idempotency_key") if has_key else ""}
            {_OTHER if has_key else ""}
            RETURNING id, number, event_count
        ), told AS (
            {journal.ADD}
        )
        SELECT id FROM run
    """)


MANY = 10_000


@cache
def _insert_many(start: Start, *, later: bool, has_key: bool) -> bytes:
    """Only the first are announced by who enqueues them: the sweep looks for the others at once."""
    told = """INSERT INTO agentq.journal (run, number, events, messages)
        SELECT run.number, 1, :happened, new.said FROM run JOIN new USING (id)"""
    return text(f"""
        WITH new AS MATERIALIZED (
            SELECT r.id, r.said, r.key, r.n
            FROM ROWS FROM (json_to_recordset(CAST(:runs AS json)) AS (id text, said text, key text))
                WITH ORDINALITY r (id, said, key, n)
        ), run AS (
            INSERT INTO agentq.runs ({_COLUMNS})
            SELECT id, :agent, 'queued', 'recall', 0, 0, 0, :progress, :context, CAST(:tags AS jsonb), key, NULL, NULL,
                NULL, NULL, NULL, 1, 1, :queue, CAST(:priority AS smallint), CAST(:concurrency_key AS text),
                CAST(:concurrency_limit AS integer), {_times(start, later=later, announced="n <= :announced")}
            -- Who gives the same keys at the same time does so in the same order.
            FROM new {f"{_unless_steered(start, 'key')} ORDER BY key, n" if has_key else ""}
            {_OTHER if has_key else ""}
            RETURNING id, number
        ){f", told AS ({told}) SELECT id FROM run" if has_key else told}
    """)


_SAME_KEY = text("SELECT id FROM agentq.runs WHERE agent = :agent AND idempotency_key = :key")
_SAME_KEYS = text(f"""
    SELECT idempotency_key AS key, id FROM agentq.runs
    {_KEY} AND agent = :agent AND idempotency_key IN (SELECT json_array_elements_text(CAST(:keys AS json)))
""")
_STEERED = text(f"""
    SELECT key, run_id FROM json_array_elements_text(CAST(:keys AS json)) key
        JOIN agentq.inbox ON idempotency_key = {_STEERED_KEY.format(key="key")}
""")


@dataclass(frozen=True)
class NewRun:
    """What a producer asks for. ``tags`` are searchable; ``context`` is handed to tools.

    ``media`` are the images and files of its message, which the caller stores: see blobs.py.
    It is due after ``delay_secs``, or at the time ``due_at``, or at once. ``priority`` is a rank: see wire.py.
    """

    id: str
    agent: str
    text: str
    progress: Progress
    context: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    thread_id: str | None = None
    depth: int = 0
    parent: CallRef | None = None
    # The run's time limit as far as the producer knows it; a worker that has the agent may set it with the first step.
    run_secs: float | None = None
    delay_secs: float | None = None
    due_at: datetime | None = None
    priority: int = 0
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    media: tuple[Image | File, ...] = ()

    @property
    def is_for_later(self) -> bool:
        return self.delay_secs is not None or self.due_at is not None

    @property
    def start(self) -> Start:
        """Who has it begun when it is written in a transaction of ours."""
        if self.is_for_later:
            return "sweep"
        return "caller" if self.concurrency_key is None else "line"

    def _values(self) -> dict[str, Any]:
        """What several runs may have in common."""
        return {
            "agent": self.agent,
            "progress": of_progress(self.progress)["progress"],
            "context": dump(self.context),
            "tags": dump(self.tags),
            "queue": STEP_QUEUE,
            "run_secs": self.run_secs,
            "delay_secs": self.delay_secs,
            "due_at": None if self.due_at is None else self.due_at.isoformat(),
            "priority": self.priority,
            "head_start": 10 * (1 - self.priority),
            "concurrency_key": self.concurrency_key,
            "concurrency_limit": self.concurrency_limit,
        }


def insert(
    connection: Writer, new: NewRun, *, patience_secs: float, start: Start = "caller", position: int | None = None
) -> str:
    """Write the run and return its id: an earlier run's id where agent and idempotency key are the same.

    A run of a thread has its ``position`` there, under the thread's lock. Needs a transaction only for that, or where
    the run goes into a line.
    """
    parent = new.parent
    values = new._values() | {
        "id": new.id,
        "depth": new.depth,
        "idempotency_key": new.idempotency_key,
        "thread_id": new.thread_id,
        "thread_position": position,
        "parent_run_id": parent.run_id if parent else None,
        "parent_turn": parent.turn if parent else None,
        "parent_index": parent.index if parent else None,
        "patience_secs": patience_secs,
    }
    values |= _told(new)
    statement = _insert(start, later=new.is_for_later, has_key=new.idempotency_key is not None)
    if connection.first(statement, values) is None:
        found = same(connection, new) or (None if start in _GUESTS else steered_into(connection, new))
        if found is None:
            raise RunFinishedError(
                f"the run with idempotency key {new.idempotency_key!r} was deleted just now; try again"
            )
        return found
    return new.id


def insert_many(
    connection: Writer, new: Sequence[NewRun], *, announced: int, patience_secs: float, start: Start = "caller"
) -> list[str]:
    """Write runs that differ in nothing but id, text and idempotency key, and are of no thread and no parent.

    Ten thousand are one statement. The answer is their ids, in their order, with those of earlier runs where keys are
    the same. The first ``announced`` are announced by the caller, the others by the sweep.
    """
    first = new[0]
    has_key = any(run.idempotency_key is not None for run in new)
    statement = _insert_many(start, later=first.is_for_later, has_key=has_key)
    values = first._values() | {"patience_secs": patience_secs, "happened": _told(first)["happened"]}
    ids: list[str] = []
    for begin in range(0, len(new), MANY):
        some = new[begin : begin + MANY]
        runs = [{"id": run.id, "said": _told(run)["said"], "key": run.idempotency_key} for run in some]
        found = connection.execute(statement, values | {"runs": dump(runs), "announced": max(0, announced - begin)})
        written = {row.id for row in found.all()} if has_key else {run.id for run in some}
        ids += _ids(connection, some, written, start)
    return ids


def _ids(connection: Writer, new: Sequence[NewRun], written: set[str], start: Start) -> list[str]:
    others = [run.idempotency_key for run in new if run.id not in written]
    if not others:
        return [run.id for run in new]
    found = connection.execute(_SAME_KEYS, {"agent": new[0].agent, "keys": dump(others)}).all()
    same = {row.key: row.id for row in found}
    if start not in _GUESTS and set(others) - same.keys():
        same = steered(connection, new) | same
    if gone := set(others) - same.keys():
        raise RunFinishedError(f"the run with idempotency key {gone.pop()!r} was deleted just now; try again")
    return [run.id if run.id in written else same[run.idempotency_key] for run in new]


def _told(new: NewRun) -> dict[str, Any]:
    return journal.entry(
        [NewEvent("run.enqueued", {"agent": new.agent})], [(0, UserMessage(text=new.text, media=new.media))]
    )


def same(connection: Writer, new: NewRun) -> str | None:
    """The earlier run with its agent and idempotency key."""
    if new.idempotency_key is None:
        return None
    found: str | None = connection.execute(_SAME_KEY, {"agent": new.agent, "key": new.idempotency_key}).scalar()
    return found


def steered(connection: Writer, new: Sequence[NewRun]) -> dict[str | None, str]:
    """The runs that messages with their agent and idempotency keys were sent into before, on any thread, by key."""
    keys = [run.idempotency_key for run in new if run.idempotency_key is not None]
    if not keys:
        return {}
    rows = connection.execute(_STEERED, {"agent": new[0].agent, "keys": dump(keys)}).all()
    return {row.key: row.run_id for row in rows}


def steered_into(connection: Writer, new: NewRun) -> str | None:
    """The same for one."""
    return steered(connection, [new]).get(new.idempotency_key)
