"""Reads for people and callers: runs, events, approvals, workers. Nothing here changes a row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

from agentq.errors import RunNotFoundError, ThreadNotFoundError
from agentq.messages import AssistantMessage, Message
from agentq.run import Approval, Event, Run, Status, ThreadInfo
from agentq.storage import journal, tree
from agentq.storage.rows import COUNTS, dump, to_run
from agentq.storage.sql import Connection, text

_COLUMNS = f"""id, agent, status, phase, seq, turn, attempt, created_at, {journal.updated_at("runs")} AS updated_at,
    thread_id, parent_run_id, tags, finished_at, due_at, lease_until, worker, cancel_requested, stop_reason, output,
    error, start_at, priority, concurrency_key, concurrency_limit, has_place, held,
    agent_version, outdated_at, outdated_by,
    {", ".join(COUNTS)}"""
_RUN = text(f"SELECT {_COLUMNS} FROM agentq.runs WHERE id = :run_id")
_STATUS = text(f"SELECT {tree.STATUS} AS status FROM agentq.runs WHERE id = :run_id")
_LIST = f"""
    SELECT {_COLUMNS} FROM agentq.runs
    WHERE (CAST(:status AS text) IS NULL OR status = :status) AND (CAST(:agent AS text) IS NULL OR agent = :agent)
        AND (CAST(:tags AS jsonb) IS NULL OR tags @> CAST(:tags AS jsonb) AND tags <> '{{{{}}}}')
        AND (CAST(:thread AS text) IS NULL OR thread_id = :thread)
        AND (CAST(:before AS text) IS NULL OR id < :before){{more}}
    ORDER BY id DESC LIMIT :limit  -- which is by age, see agentq/ids.py
"""
_LIST_ALL = text(_LIST.format(more=""))
# Apart, for the index of those.
_LIST_OUTDATED = text(_LIST.format(more=" AND outdated_at IS NOT NULL"))
# The runs of those that are shown only.
_THREADS = """
    SELECT t.id, t.created_at, r.runs, last.id AS last_run_id, last.agent, last.status
    FROM (SELECT id, created_at FROM agentq.threads WHERE {which}) t
        CROSS JOIN LATERAL (SELECT count(*) AS runs FROM agentq.runs WHERE thread_id = t.id) r
        LEFT JOIN LATERAL (
            SELECT id, agent, status FROM agentq.runs WHERE thread_id = t.id ORDER BY thread_position DESC LIMIT 1
        ) last ON true
    ORDER BY t.created_at DESC, t.id DESC
"""
_ALL_THREADS = text(
    _THREADS.format(
        which="""CAST(:before AS text) IS NULL
            OR (created_at, id) < (SELECT created_at, id FROM agentq.threads WHERE id = :before)
        ORDER BY created_at DESC, id DESC LIMIT :limit"""
    )
)
_THREAD = text(_THREADS.format(which="id = :thread"))
_MESSAGES = text(f"SELECT messages FROM agentq.journal j WHERE {journal.IS_OF_RUN} AND messages IS NOT NULL")
_APPROVALS = """
    {tree}
    SELECT a.run_id, call_id, tool, arguments, a.status, requested_at, kind, decided_by, reason, decided_at, r.agent,
        question, arguments_sha256, edited, sticky, expires_at, on_expiry,
        concat_ws(':', run_id, a.turn, index) AS idempotency_key, concat_ws(':', run_id, a.turn, index, a.number) AS id
    FROM agentq.approvals a JOIN agentq.runs r ON r.id = a.run_id
    WHERE {which} AND (CAST(:status AS text) IS NULL OR a.status = :status)
    ORDER BY requested_at, run_id, a.turn, index, a.number LIMIT :limit
"""
# Of a run and of all that its sub-agents do for it.
_BELOW = {"tree": f"WITH RECURSIVE {tree.BELOW}", "which": "run_id IN (SELECT id FROM below)"}
_AFTER = "(requested_at, run_id, a.turn, index, a.number) > (:at, :after_run, :turn, :index, :number)"
_ALL_APPROVALS = text(_APPROVALS.format(tree="", which="true"))
_APPROVALS_BELOW = text(_APPROVALS.format(**_BELOW))
_ALL_APPROVALS_AFTER = text(_APPROVALS.format(tree="", which=_AFTER))
_APPROVALS_BELOW_AFTER = text(_APPROVALS.format(tree=_BELOW["tree"], which=f"{_BELOW['which']} AND {_AFTER}"))
_PLACE = text("""
    SELECT requested_at AS at, run_id AS after_run, turn, index, number FROM agentq.approvals
    WHERE run_id = split_part(:id, ':', 1) AND concat_ws(':', run_id, turn, index, number) = :id
""")
_WORKERS = text("""
    SELECT id, pool, queues, agents, started_at, seen_at, versions FROM agentq.workers
    WHERE seen_at > now() - make_interval(secs => :alive_secs) ORDER BY id
""")


_SERVER = text("""
    SELECT CAST(current_setting('server_version_num') AS int) AS version,
        CAST(current_setting('max_connections') AS int)
        - CAST(current_setting('superuser_reserved_connections') AS int) AS connections
""")
_AGENTS = text("SELECT name FROM agentq.agents ORDER BY name")


@dataclass(frozen=True)
class Server:
    """The database server: its version as a number such as 170002, and how many connections it gives to us."""

    version: int
    connections: int


@dataclass(frozen=True)
class Worker:
    """A worker process that was heard of lately; ``versions`` are those of its agents, by name."""

    id: str
    pool: str
    queues: tuple[str, ...]
    agents: tuple[str, ...]
    started_at: datetime
    seen_at: datetime
    versions: Mapping[str, str]


def run(connection: Connection, run_id: str) -> Run:
    """Raises RunNotFoundError."""
    row = connection.execute(_RUN, {"run_id": run_id}).first()
    if row is None:
        raise RunNotFoundError(f"there is no run {run_id!r}; see: agentq runs ls", run_id=run_id)
    if row.stop_reason not in ("final_answer", "output", "hook_end"):
        return to_run(row)
    found = to_run(row)
    if found.stop_reason == "hook_end":
        return to_run(row, text=found.output if isinstance(found.output, str) else None)
    return to_run(row, text=_answer(messages(connection, run_id)))


def _answer(transcript: Sequence[Message]) -> str | None:
    replies = [message for message in transcript if isinstance(message, AssistantMessage)]
    return replies[-1].text or None if replies else None


def status(connection: Connection, run_id: str) -> Status:
    """One indexed read, for waiting: "waiting" also where it is its sub-agents that do. Raises RunNotFoundError."""
    row = connection.execute(_STATUS, {"run_id": run_id}).first()
    if row is None:
        raise RunNotFoundError(f"there is no run {run_id!r}; see: agentq runs ls", run_id=run_id)
    found: Status = row.status
    return found


def runs(
    connection: Connection,
    *,
    status: Status | None = None,
    agent: str | None = None,
    tags: Mapping[str, str] | None = None,
    thread: str | None = None,
    outdated: bool = False,
    before: str | None = None,
    limit: int = 50,
) -> list[Run]:
    """The newest runs first; ``before`` is the last id of the page already seen."""
    values = {"status": status, "agent": agent, "tags": dump(tags) if tags else None, "before": before, "limit": limit}
    values |= {"thread": thread}
    return [to_run(row) for row in connection.execute(_LIST_OUTDATED if outdated else _LIST_ALL, values)]


def threads(connection: Connection, *, before: str | None = None, limit: int = 50) -> list[ThreadInfo]:
    """The newest first; ``before`` is the last id of the page already seen. Raises ThreadNotFoundError for that."""
    if before is not None:
        thread(connection, before)
    rows = connection.execute(_ALL_THREADS, {"before": before, "limit": limit})
    return [ThreadInfo(**row._asdict()) for row in rows]


def thread(connection: Connection, thread_id: str) -> ThreadInfo:
    """Raises ThreadNotFoundError."""
    row = connection.execute(_THREAD, {"thread": thread_id}).first()
    if row is None:
        raise ThreadNotFoundError(f"there is no thread {thread_id!r}; see: agentq threads ls", thread=thread_id)
    return ThreadInfo(**row._asdict())


def messages(connection: Connection, run_id: str) -> tuple[Message, ...]:
    placed = journal.messages_in(connection.execute(_MESSAGES, {"run_id": run_id}).scalars())
    return tuple(message for _, message in sorted(placed, key=itemgetter(0)))


def events(connection: Connection, run_id: str, *, after: int = 0) -> list[Event]:
    return journal.events(connection, run_id, after=after)


def approvals(
    connection: Connection,
    *,
    run_id: str | None = None,
    status: str | None = "pending",
    after: str | None = None,
    limit: int | None = None,
) -> list[Approval]:
    """The oldest first; of one run with what its sub-agents ask. ``after`` is the last id of the page already seen.

    Raises RunNotFoundError for an ``after`` that is not there (any more).
    """
    values: dict[str, Any] = {"run_id": run_id, "status": status, "limit": limit}
    if after is None:
        rows = connection.execute(_ALL_APPROVALS if run_id is None else _APPROVALS_BELOW, values)
    else:
        values |= _place(connection, after)
        rows = connection.execute(_ALL_APPROVALS_AFTER if run_id is None else _APPROVALS_BELOW_AFTER, values)
    return [Approval(**row._asdict()) for row in rows]


def _place(connection: Connection, approval_id: str) -> dict[str, Any]:
    row = connection.execute(_PLACE, {"id": approval_id}).first()
    if row is None:
        raise RunNotFoundError(f"there is no approval {approval_id!r}; begin with the first page", id=approval_id)
    return dict(row._asdict())


def workers(connection: Connection, *, alive_secs: float = 45.0) -> list[Worker]:
    return [
        Worker(row.id, row.pool, tuple(row.queues), tuple(row.agents), row.started_at, row.seen_at, row.versions)
        for row in connection.execute(_WORKERS, {"alive_secs": alive_secs})
    ]


def known_agents(connection: Connection) -> tuple[str, ...]:
    """Every agent that a worker ever had."""
    return tuple(connection.execute(_AGENTS).scalars())


def server(connection: Connection) -> Server:
    """What the server says of itself; works without our schema."""
    row = connection.execute(_SERVER).one()
    return Server(row.version, row.connections)
