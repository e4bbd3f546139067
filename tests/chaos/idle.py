"""What the sweep costs when there is nothing for it to do: a table full of runs that ended, or wait for a person."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentq.run import Progress, dump_progress
from agentq.storage import leases
from agentq.storage.database import Database
from agentq.storage.sql import text

FINISHED, WAITING = 100_000, 10_000

_RUNS = text("""
    INSERT INTO agentq.runs (id, agent, status, phase, seq, turn, depth, progress, context, tags, message_count,
                             event_count, open_calls, queue, finished_at)
    SELECT CAST(:status AS text) || n, 'agent', CAST(:status AS text), 'tools', 4, 1, 0, :progress, '{}', '{}', 3, 5, 1,
           'agentq', CASE WHEN CAST(:status AS text) = 'completed' THEN now() END
    FROM generate_series(1, :count) n
""")
_CALLS = text("""
    INSERT INTO agentq.tool_calls (run_id, turn, index, position, call_id, tool, kind, queue, timeout_secs, on_unknown,
                                   needs_approval, status, code, finished_at)
    SELECT id, 1, 0, 2, 'call_0_0', 'refund', 'tool', 'agentq.tools', 60, 'report', true,
           CASE WHEN status = 'completed' THEN 'done' ELSE 'pending' END,
           CASE WHEN status = 'completed' THEN 'success' END, finished_at
    FROM agentq.runs
""")
_APPROVALS = text("""
    INSERT INTO agentq.approvals (run_id, turn, index, call_id, tool, arguments, arguments_sha256, status)
    SELECT id, 1, 0, 'call_0_0', 'refund', '{}', encode(sha256('{}'), 'hex'), 'pending'
    FROM agentq.runs WHERE status = 'waiting'
""")
_EXPLAIN = text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {leases._DUE.decode()}")


def fill(database: Database, *, finished: int = FINISHED, waiting: int = WAITING) -> None:
    """So many runs with a call each, and statistics as autovacuum would have made them."""
    progress = dump_progress(Progress())
    with database.transaction() as connection:
        for status, count in (("completed", finished), ("waiting", waiting)):
            connection.execute(_RUNS, {"status": status, "count": count, "progress": progress})
        connection.execute(_CALLS)
        connection.execute(_APPROVALS)
    with database.autocommit() as connection:
        connection.execute("ANALYZE agentq.runs, agentq.tool_calls")


@dataclass(frozen=True)
class Plan:
    """How the server does one look of the sweep."""

    scans: frozenset[tuple[str, str | None]]
    buffers: int
    milliseconds: float


def plan(database: Database, *, limit: int = 100) -> Plan:
    """The plan of the sweep's query, as it was done."""
    with database.autocommit() as connection:
        (found,) = connection.execute(_EXPLAIN, {"limit": limit, "mine": ["w/1", "w/2"], "fading_secs": 7.5}).scalar()
    root = found["Plan"]
    done = [node for node in _nodes(root) if node["Actual Loops"]]
    scans = {(node["Node Type"], node.get("Index Name")) for node in done if "Scan" in node["Node Type"]}
    buffers = root["Shared Hit Blocks"] + root["Shared Read Blocks"]
    return Plan(frozenset(scans), buffers, found["Planning Time"] + found["Execution Time"])


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from _nodes(below)


@dataclass(frozen=True)
class Cost:
    """How long looks took, in milliseconds: of the server's time, and with the way to it and back."""

    in_server: list[float]
    round_trip: list[float]


def measure(database: Database, *, times: int = 300) -> Cost:
    """So many looks of the sweep, one after the other."""
    round_trip = []
    with database.autocommit() as connection:
        for _ in range(times):
            started = time.perf_counter()
            found = leases.due(connection, mine=["w/1", "w/2"], fading_secs=7.5)
            round_trip.append((time.perf_counter() - started) * 1000)
            assert found == []
    return Cost([plan(database).milliseconds for _ in range(times)], round_trip)
