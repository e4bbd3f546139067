"""New runs are taken in: written in a transaction of ours, or in the caller's, and begun once that is committed."""

from collections.abc import Sequence
from typing import Any

from agentq.link import Link
from agentq.services import patience_secs
from agentq.storage import callers, enqueue, line
from agentq.storage.callers import Callers
from agentq.storage.enqueue import NewRun, Start
from agentq.storage.sql import Writer
from agentq.wire import StepMessage, WakeUp

# Of runs enqueued together, so many are announced at once; the workers' sweeps announce the others as fast as they can.
ANNOUNCED = 500


def take_in(link: Link, new: Sequence[NewRun], connection: Any = None) -> list[str]:
    """Write runs that differ in no more than id, text and idempotency key, all or none, and wake workers.

    They are of no thread: see busy.py. ``connection`` is the caller's. The answer is their ids, with those of earlier
    runs where keys are the same.
    """
    if connection is None:
        return _in_ours(link, new)
    theirs = callers.of(connection, link.database)
    theirs.check()
    # Nothing in it waits for a line, whose others would wait for the caller's commit then.
    ids = _write(link, theirs, new, "guest")
    tell_after_commit(link, theirs, new, ids)
    return ids


def _in_ours(link: Link, new: Sequence[NewRun]) -> list[str]:
    first, database = new[0], link.database
    # The lock of a line lasts as long as a transaction.
    is_one = len(new) == 1 and first.start != "line"
    with (database.autocommit if is_one else database.transaction)() as connection:
        ids = _write(link, connection, new, first.start)
        wake_ups = let_begin(link, connection, new, ids)
    link.control.saver.send(wake_ups)
    return ids


def let_begin(link: Link, connection: Any, new: Sequence[NewRun], ids: Sequence[str]) -> list[WakeUp]:
    """In the transaction that wrote the runs, one of ours: what is to be sent once it is committed."""
    first, wake_ups = new[0], _wake_ups(new, ids)
    if first.concurrency_key is None or not wake_ups:
        return wake_ups
    return line.let_in(connection, first.concurrency_key, patience_secs=patience_secs(link.settings.lease_secs))


def tell_after_commit(link: Link, theirs: Callers, new: Sequence[NewRun], ids: Sequence[str]) -> None:
    """Have the runs that were written in the caller's transaction announced, where its commit can be known."""
    if new[0].concurrency_key is None and (wake_ups := _wake_ups(new, ids)):
        saver = link.control.saver
        theirs.after_commit(lambda: saver.send(wake_ups))


def _write(link: Link, connection: Writer, new: Sequence[NewRun], start: Start) -> list[str]:
    patience = patience_secs(link.settings.lease_secs)
    if len(new) == 1:
        return [enqueue.insert(connection, new[0], patience_secs=patience, start=start)]
    return enqueue.insert_many(connection, new, announced=ANNOUNCED, patience_secs=patience, start=start)


def _wake_ups(new: Sequence[NewRun], ids: Sequence[str]) -> list[WakeUp]:
    """Of those that are new and due."""
    if new[0].is_for_later:
        return []
    made = [run for run, run_id in zip(new, ids, strict=True) if run.id == run_id]
    return [StepMessage(run.id, 0, priority=run.priority) for run in made[:ANNOUNCED]]
