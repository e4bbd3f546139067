"""A message for a thread: what it does while another run of the thread has not ended, or waits for a person."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from agentq.errors import AgentqError, ApprovalNotPendingError, InputError, LockedError, RunNotFoundError
from agentq.intake import let_begin, tell_after_commit, write_one
from agentq.link import Link
from agentq.messages import UserMessage
from agentq.run import Snapshot
from agentq.storage import blobs, callers, enqueue, inbox, queries, threads
from agentq.storage.callers import Callers
from agentq.storage.enqueue import NewRun, Start
from agentq.storage.sql import Connection
from agentq.storage.threads import OpenRun
from agentq.wire import WakeUp

OnBusy = Literal["reject", "enqueue", "interrupt", "steer"]
OnWaiting = Literal["reject", "hold", "deny_and_continue"]

# What a person's answer would have been, where a message came instead.
_DENIED = "The user did not decide, but said something else."
_BY_A_MESSAGE = "the next message"
# Somebody may decide at the moment in which it is denied.
_TRIES = 5


@dataclass(frozen=True)
class WhenBusy:
    """What a message does on a thread whose run is at work, and on one whose run waits for a person.

    Raises InputError for what is no such thing.
    """

    on_busy: OnBusy = "reject"
    on_waiting: OnWaiting = "reject"

    def __post_init__(self) -> None:
        for name, known in (("on_busy", get_args(OnBusy)), ("on_waiting", get_args(OnWaiting))):
            if getattr(self, name) not in known:
                listed = ", ".join(map(repr, known))
                raise InputError(f"{name} is one of {listed}, not {getattr(self, name)!r}")

    def check(self, thread_id: str | None, connection: Any) -> None:
        """Raises InputError where it asks for what cannot be."""
        if thread_id is None and self != WhenBusy():
            raise InputError("on_busy and on_waiting are for a message on a thread; name it with thread=")
        undone = {"on_busy": ("interrupt", "steer"), "on_waiting": ("deny_and_continue",)}
        for name, taken in undone.items():
            if connection is not None and getattr(self, name) in taken:
                raise InputError(
                    f"{name}={getattr(self, name)!r} changes a run at work, which your transaction would hold up: "
                    "enqueue without connection=, or have the message wait for its turn"
                )


def take_on_thread(link: Link, new: NewRun, when: WhenBusy, connection: Any = None) -> str:
    """Write the run at the end of its thread; the answer is the run that has the message.

    Raises ThreadBusyError. ``connection`` is the caller's.
    """
    if connection is not None:
        theirs = callers.of(connection, link.database)
        theirs.check(has_media=bool(new.media))
        return _in_theirs(link, theirs, new, when)
    faster: AgentqError
    for _ in range(_TRIES):
        try:
            return _Message(link, new, when).take()
        except ApprovalNotPendingError as error:
            faster = error
        except LockedError as error:
            # The place of an interrupted run goes to others of its key, and the message stands in another's line.
            if not error.details.get("is_deadlock"):
                raise
            faster = error
    raise faster


def _in_theirs(link: Link, theirs: Callers, new: NewRun, when: WhenBusy) -> str:
    thread_id = str(new.thread_id)
    with theirs.undone_if_refused():
        threads.enter_theirs(theirs, thread_id)
        if found := enqueue.same(theirs, new) or _steered_before(link, new):
            return found
        open_runs = threads.open_runs(theirs, thread_id)
        is_waiting = bool(open_runs) and _waits_in_ours(link, open_runs[0].id)
        if open_runs and not (when.on_waiting == "hold" if is_waiting else when.on_busy == "enqueue"):
            raise threads.busy(thread_id, open_runs[0], is_waiting=is_waiting)
        start: Start = "behind" if open_runs else "guest"
        run_id = write_one(link, theirs, new, start, position=threads.next_position(theirs, thread_id))
    if not open_runs:
        tell_after_commit(link, theirs, [new], [run_id])
    return run_id


# Their role may not read what these ask for. What others have said and done before the thread was locked is seen.


def _steered_before(link: Link, new: NewRun) -> str | None:
    if new.idempotency_key is None:
        return None
    with link.database.autocommit() as connection:
        return enqueue.steered_into(connection, new)


def _waits_in_ours(link: Link, run_id: str) -> bool:
    with link.database.autocommit() as connection, suppress(RunNotFoundError):
        return _waits_for_people(connection, run_id)
    # Written in the caller's transaction itself.
    return False


class _Message:
    """One message on its way into its thread, in a transaction of ours; ``_afterwards`` is done when that is over."""

    def __init__(self, link: Link, new: NewRun, when: WhenBusy) -> None:
        self._link = link
        self._new = new
        self._when = when
        self._thread_id = str(new.thread_id)
        self._control = link.control
        self._afterwards: list[Callable[[], object]] = []

    def take(self) -> str:
        """Raises ApprovalNotPendingError where somebody decided on a call at the moment in which it was denied."""
        with self._link.database.transaction() as connection:
            run_id = self._write(connection)
        for act in self._afterwards:
            act()
        return run_id

    def _write(self, connection: Connection) -> str:
        new, control = self._new, self._control
        threads.enter(connection, self._thread_id)
        # Asked under the lock: the run with this key may be the one that keeps the thread busy.
        if found := enqueue.same(connection, new) or enqueue.steered_into(connection, new):
            return found
        open_runs = threads.open_runs(connection, self._thread_id)
        is_waiting = bool(open_runs) and _waits_for_people(connection, open_runs[0].id)
        verb = "begin" if not open_runs else self._when.on_waiting if is_waiting else self._when.on_busy
        if verb == "reject":
            raise threads.busy(self._thread_id, open_runs[0], is_waiting=is_waiting)
        if verb in ("interrupt", "deny_and_continue"):
            # No run is locked while bytes are on their way, or wait for who stores the same ones.
            blobs.put(connection, new.media)
        into = open_runs[0].id if verb in ("steer", "deny_and_continue") else None
        if verb == "deny_and_continue" and self._expire(connection, open_runs[0].id):
            open_runs = threads.open_runs(connection, self._thread_id)
        if verb == "interrupt":
            for run in open_runs:
                self._afterwards.append(partial(control.after_cancel, *control.cancel_in(connection, run.id)))
            # One that a worker is at ends with its next commit.
            open_runs = threads.open_runs(connection, self._thread_id)
        if into is not None and self._join(connection, into, denies=verb != "steer"):
            return into
        return self._insert(connection, open_runs)

    def _expire(self, connection: Connection, run_id: str) -> bool:
        """Do first what the rules say of calls that it is too late to deny; the answer is whether there were some."""
        asking = {asked.run_id for asked in queries.approvals(connection, run_id=run_id)}
        expired = [end for each in sorted(asking) for end in self._control.expire_approvals_in(connection, each)]
        self._go_on_afterwards(expired)
        return bool(expired)

    def _go_on_afterwards(self, ends: Iterable[tuple[Snapshot, list[WakeUp]]]) -> None:
        for after, wake_ups in ends:
            self._afterwards.append(partial(self._control.saver.send, wake_ups))
            self._afterwards.append(partial(self._control.after, after))

    def _join(self, connection: Connection, run_id: str, *, denies: bool) -> bool:
        """Send the message into the run; False where that has ended meanwhile, or is about to."""
        new, control = self._new, self._control
        message = UserMessage(text=new.text, media=new.media)
        blobs.put(connection, new.media)
        if not inbox.put(connection, run_id, message, key=inbox.key(new)):
            return False
        blobs.refer(connection, ("run_id", run_id, new.media))
        if denies:
            self._go_on_afterwards(control.deny(connection, run_id, _DENIED, decided_by=_BY_A_MESSAGE))
        return True

    def _insert(self, connection: Connection, open_runs: Sequence[OpenRun]) -> str:
        # Those that have ended since they were read do not hold it up.
        is_behind = any(threads.follow(connection, run.id) for run in reversed(open_runs))
        start: Start = "held" if is_behind else self._new.start
        position = threads.next_position(connection, self._thread_id)
        run_id = write_one(self._link, connection, self._new, start, position=position)
        if not is_behind:
            wake_ups = let_begin(self._link, connection, [self._new], [run_id])
            self._afterwards.append(partial(self._control.saver.send, wake_ups))
        return run_id


def _waits_for_people(connection: Connection, run_id: str) -> bool:
    """Not where it waits for the outside alone, which has calls of it."""
    if queries.status(connection, run_id) != "waiting":
        return False
    return any(asked.kind != "deferred" for asked in queries.approvals(connection, run_id=run_id))
