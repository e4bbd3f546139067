"""New runs are taken in: written in a transaction of ours, or in the caller's, and begun once that is committed."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from agentq.link import Link
from agentq.services import patience_secs
from agentq.storage import blobs, callers, enqueue, line
from agentq.storage.enqueue import NewRun, Start, Writer
from agentq.wire import StepMessage, WakeUp

# Of runs enqueued together, so many are announced at once; the workers' sweeps announce the others as fast as they can.
ANNOUNCED = 500


def take_in(link: Link, new: Sequence[NewRun], connection: Any = None) -> list[str]:
    """Write runs that differ in no more than id, text and idempotency key, all or none, and wake workers.

    ``connection`` is the caller's. The answer is their ids, with those of earlier runs where keys are the same.
    """
    return _in_ours(link, new) if connection is None else _in_theirs(link, new, connection)


def _in_ours(link: Link, new: Sequence[NewRun]) -> list[str]:
    first, database = new[0], link.database
    # The locks of a thread and of a line last as long as a transaction.
    is_one = len(new) == 1 and first.thread_id is None and first.start != "line" and not first.media
    with (database.autocommit if is_one else database.transaction)() as connection:
        ids = _write(link, connection, new, first.start)
        wake_ups = _wake_ups(new, ids)
        if first.concurrency_key is not None:
            in_line = wake_ups and first.start == "line"
            patience = patience_secs(link.settings.lease_secs)
            wake_ups = line.let_in(connection, first.concurrency_key, patience_secs=patience) if in_line else []
    link.control.saver.send(wake_ups)
    return ids


def _in_theirs(link: Link, new: Sequence[NewRun], connection: Any) -> list[str]:
    theirs = callers.of(connection, link.database)
    has_media = any(run.media for run in new)
    theirs.check(has_media=has_media)
    # Nothing in it waits for a line, whose others would wait for the caller's commit then.
    with theirs.undone_if_refused() if has_media or new[0].thread_id is not None else nullcontext():
        ids = _write(link, theirs, new, "guest")
    if new[0].concurrency_key is None and (wake_ups := _wake_ups(new, ids)):
        saver = link.control.saver
        theirs.after_commit(lambda: saver.send(wake_ups))
    return ids


def _write(link: Link, connection: Writer, new: Sequence[NewRun], start: Start) -> list[str]:
    patience = patience_secs(link.settings.lease_secs)
    if has_media := any(run.media for run in new):
        blobs.put(connection, (one for run in new for one in run.media))
    if len(new) == 1:
        ids = [enqueue.insert(connection, new[0], patience_secs=patience, start=start)]
    else:
        ids = enqueue.insert_many(connection, new, announced=ANNOUNCED, patience_secs=patience, start=start)
    if has_media:
        made = (run for run, run_id in zip(new, ids, strict=True) if run.id == run_id)
        blobs.refer(connection, *(("run_id", run.id, run.media) for run in made))
    return ids


def _wake_ups(new: Sequence[NewRun], ids: Sequence[str]) -> list[WakeUp]:
    """Of those that are new and due."""
    if new[0].is_for_later:
        return []
    made = [run for run, run_id in zip(new, ids, strict=True) if run.id == run_id]
    return [StepMessage(run.id, 0, priority=run.priority) for run in made[:ANNOUNCED]]
