"""Keep what happened for so long and no longer: ended runs and idle threads are deleted, in small transactions."""

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
    keep_secs, after = keep_days * DAY_SECS, ""
    runs = gone = 0
    while True:
        with database.transaction() as connection:
            page = retention.page(connection, keep_secs=keep_secs, after=after)
            over = retention.over_threads(connection, page.threads, keep_secs=keep_secs)
            runs += retention.delete_runs(connection, page.runs, keep_secs=keep_secs)
            runs += threads.delete(connection, over) if over else 0
        gone += len(over)
        if page.last is None:
            break
        after = page.last
    after = ""
    while True:
        with database.transaction() as connection:
            bare = retention.bare_threads(connection, keep_secs=keep_secs, after=after)
            # One of them may have got its first message since that was read.
            over = retention.over_threads(connection, bare, keep_secs=keep_secs)
            runs += threads.delete(connection, over) if over else 0
        gone += len(over)
        if not bare:
            break
        after = bare[-1]
    with database.autocommit() as connection:
        cooldowns.purge(connection)
    return Purged(runs, gone, blobs.delete_unreferenced(database) if runs or gone else 0)
