"""Keep what happened for so long and no longer: ended runs and idle threads are deleted, in small transactions."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentq.storage import blobs, cooldowns, retention, threads
from agentq.storage.database import Database

DAY_SECS = 86_400.0


@dataclass(frozen=True)
class Purged:
    """How much was deleted: ``runs`` with those of sub-agents and of threads, ``threads``, and ``blobs`` (their images
    and files that nobody refers to any more).
    """

    runs: int = 0
    threads: int = 0
    blobs: int = 0


def purge(database: Database, *, keep_days: float) -> Purged:
    """Delete runs that ended more than ``keep_days`` ago, and threads in which nothing has happened since.

    What waits or works is left alone, however old, and so is a thread with it as a whole. Any number of processes may
    do it at the same time, and one that dies has deleted what it had done.
    """
    keep_secs = keep_days * DAY_SECS
    runs = gone = 0
    after: str | None = ""
    while after is not None:
        with database.transaction() as connection:
            page = retention.page(connection, keep_secs=keep_secs, after=after)
            runs += retention.delete_runs(connection, page.runs, keep_secs=keep_secs)
        deleted = _delete_threads(database, page.threads, keep_secs=keep_secs)
        runs, gone, after = runs + deleted.runs, gone + deleted.threads, page.last
    after = ""
    while after is not None:
        with database.autocommit() as connection:
            bare = retention.bare_threads(connection, keep_secs=keep_secs, after=after)
        # One of them may have got its first message since that was read.
        deleted = _delete_threads(database, bare, keep_secs=keep_secs)
        runs, gone, after = runs + deleted.runs, gone + deleted.threads, bare[-1] if bare else None
    with database.autocommit() as connection:
        cooldowns.purge(connection)
    # Also those of one that died before it came to them.
    return Purged(runs, gone, blobs.delete_unreferenced(database))


def _delete_threads(database: Database, thread_ids: Sequence[str], *, keep_secs: float) -> Purged:
    """A few at a time: a message on one of them, or on one that turns out to live, waits for no more than these."""
    runs = gone = 0
    for at in range(0, len(thread_ids), retention.FEW):
        with database.transaction() as connection:
            few = thread_ids[at : at + retention.FEW]
            over = retention.over_threads(connection, few, keep_secs=keep_secs)
            runs += threads.delete(connection, over) if over else 0
        gone += len(over)
    return Purged(runs, gone)
