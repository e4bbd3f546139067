"""New runs are taken in: written in a transaction of ours, or in the caller's, and begun once that is committed."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from agentq.link import Link
from agentq.services import patience_secs
from agentq.storage import blobs, callers, enqueue, line
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
    theirs.check(has_media=any(run.media for run in new))
    known = _steered_before(link, new)
    unknown = [run for run in new if run.idempotency_key not in known]
    ids = iter(_in_theirs(link, theirs, unknown) if unknown else ())
    return [known.get(run.idempotency_key) or next(ids) for run in new]


def _in_theirs(link: Link, theirs: Callers, new: Sequence[NewRun]) -> list[str]:
    # Nothing in it waits for a line, whose others would wait for the caller's commit then.
    with theirs.undone_if_refused() if any(run.media for run in new) else nullcontext():
        ids = _write(link, theirs, new, "guest")
    tell_after_commit(link, theirs, new, ids)
    return ids


def _steered_before(link: Link, new: Sequence[NewRun]) -> dict[str | None, str]:
    """By key. Their role may not read what this asks for."""
    if all(run.idempotency_key is None for run in new):
        return {}
    with link.database.autocommit() as connection:
        return enqueue.steered(connection, new)


def _in_ours(link: Link, new: Sequence[NewRun]) -> list[str]:
    first, database = new[0], link.database
    # The lock of a line lasts as long as a transaction.
    is_one = len(new) == 1 and first.start != "line" and not first.media
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
    if len(new) == 1:
        return [write_one(link, connection, new[0], start)]
    patience = patience_secs(link.settings.lease_secs)
    if has_media := any(run.media for run in new):
        blobs.put(connection, (one for run in new for one in run.media))
    ids = enqueue.insert_many(connection, new, announced=ANNOUNCED, patience_secs=patience, start=start)
    if has_media:
        made = (run for run, run_id in zip(new, ids, strict=True) if run.id == run_id)
        blobs.refer(connection, *(("run_id", run.id, run.media) for run in made))
    return ids


def write_one(link: Link, connection: Writer, new: NewRun, start: Start, *, position: int | None = None) -> str:
    """Write a run, at its ``position`` on its thread; the answer is its id, or that of the one with the same key."""
    blobs.put(connection, new.media)
    patience = patience_secs(link.settings.lease_secs)
    run_id = enqueue.insert(connection, new, patience_secs=patience, start=start, position=position)
    if run_id == new.id:
        blobs.refer(connection, ("run_id", run_id, new.media))
    return run_id


def _wake_ups(new: Sequence[NewRun], ids: Sequence[str]) -> list[WakeUp]:
    """Of those that are new and due."""
    if new[0].is_for_later:
        return []
    made = [run for run, run_id in zip(new, ids, strict=True) if run.id == run_id]
    return [StepMessage(run.id, 0, priority=run.priority) for run in made[:ANNOUNCED]]
