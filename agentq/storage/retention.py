"""Retention: what ended long ago is deleted, runs with their sub-agents' and threads as a whole, a page at a time.

Runs are looked at in the order of their ids, which is by age (see ids.py): no index of its own, and nothing that a step
pays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agentq.storage.sql import Connection, text
from agentq.storage.steps import BOUNDED

# So many runs are looked at in a transaction.
PAGE = 500
# So many threads are deleted in one, with all of their runs.
FEW = 10

_CUTOFF = "now() - make_interval(secs => :keep_secs)"
# Whoever was to hear of its end has heard.
_IS_OVER = f"""status IN ('completed', 'failed', 'cancelled') AND finished_at < {_CUTOFF}
        AND sweep_at IS NULL AND on_end_at IS NULL"""
# A sub-agent's goes with the run it worked for, where nobody has deleted that by SQL.
_IS_ON_ITS_OWN = """(parent_run_id IS NULL OR NOT EXISTS (
        SELECT 1 FROM agentq.runs p WHERE p.id = r.parent_run_id))"""
_PAGE = text(f"""
    WITH {BOUNDED}
    SELECT id, thread_id, created_at < {_CUTOFF} AS is_old, {_IS_OVER} AND {_IS_ON_ITS_OWN} AS is_over
    FROM bounded, agentq.runs r WHERE id > :after ORDER BY id LIMIT {PAGE}
""")
# Looked at again under the lock: one may have been taken up again.
_DELETE_RUNS = text(f"""
    WITH RECURSIVE gone AS (
        SELECT id FROM agentq.runs WHERE id = ANY(:ids) AND thread_id IS NULL AND {_IS_OVER} FOR UPDATE SKIP LOCKED
    ), below AS (
        SELECT id FROM gone UNION ALL SELECT r.id FROM below JOIN agentq.runs r ON r.parent_run_id = below.id
    ), deleted AS (DELETE FROM agentq.runs WHERE id IN (SELECT id FROM below) RETURNING id)
    SELECT count(*) FROM deleted
""")
_LOCK_THREADS = text("""
    SELECT id FROM agentq.threads WHERE id = ANY(:ids) ORDER BY id FOR UPDATE SKIP LOCKED
""")
# A conversation is over when all of it is: a rewound run counts as well, whose worker may be at it still.
_OVER_THREADS = text(f"""
    SELECT t.id FROM agentq.threads t WHERE t.id = ANY(:ids) AND NOT EXISTS (
        SELECT 1 FROM agentq.runs WHERE thread_id = t.id AND NOT coalesce({_IS_OVER}, false))
""")
# Those that were copied from others and never went on.
_BARE_THREADS = text(f"""
    SELECT t.id FROM agentq.threads t
    WHERE t.id > :after AND created_at < {_CUTOFF} AND NOT EXISTS (SELECT 1 FROM agentq.runs WHERE thread_id = t.id)
    ORDER BY t.id LIMIT {PAGE}
""")


@dataclass(frozen=True)
class Page:
    """Some runs by their ids: those that may go, the threads that may, and where the next page begins.

    ``last`` is None where none of them is old: those behind them are younger still.
    """

    runs: Sequence[str]
    threads: Sequence[str]
    last: str | None


def page(connection: Connection, *, keep_secs: float, after: str) -> Page:
    rows = connection.execute(_PAGE, {"keep_secs": keep_secs, "after": after}).all()
    of_threads = sorted({row.thread_id for row in rows if row.is_over and row.thread_id is not None})
    alone = [row.id for row in rows if row.is_over and row.thread_id is None]
    # Those that live are not even locked.
    over = (
        connection.execute(_OVER_THREADS, {"ids": of_threads, "keep_secs": keep_secs}).scalars() if of_threads else []
    )
    return Page(alone, over, rows[-1].id if any(row.is_old for row in rows) else None)


def delete_runs(connection: Connection, run_ids: Sequence[str], *, keep_secs: float) -> int:
    """Delete runs of no thread, and those of their sub-agents; the answer is how many those were."""
    if not run_ids:
        return 0
    return int(connection.execute(_DELETE_RUNS, {"ids": list(run_ids), "keep_secs": keep_secs}).scalar())


def over_threads(connection: Connection, thread_ids: Sequence[str], *, keep_secs: float) -> list[str]:
    """Those of the threads in which nothing happens any more, locked; one that somebody has is left out."""
    if not thread_ids:
        return []
    locked = connection.execute(_LOCK_THREADS, {"ids": list(thread_ids)}).scalars()
    # Read after it: what the one before us in the thread has done is seen.
    return connection.execute(_OVER_THREADS, {"ids": locked, "keep_secs": keep_secs}).scalars()


def bare_threads(connection: Connection, *, keep_secs: float, after: str) -> list[str]:
    """Threads that no run is of, as many as a page has, by their ids; ``over_threads`` makes sure of it."""
    return connection.execute(_BARE_THREADS, {"keep_secs": keep_secs, "after": after}).scalars()
