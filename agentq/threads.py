"""Stored conversations: read them, cut them back, copy them, delete them; the messages come from runs of agents."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from agentq.errors import InputError, RunNotFoundError, UnavailableError
from agentq.handle import Handle
from agentq.history import Below, Effect, Rewound, border, effects
from agentq.inputs import checked_thread
from agentq.link import Link
from agentq.messages import Message, media_of
from agentq.output import OUTPUT_TOOL
from agentq.run import ThreadInfo
from agentq.storage import blobs, queries, threads
from agentq.storage.threads import Said


class StoredThread:
    """A conversation, whichever agents take part in it; nothing is read before it is asked for."""

    def __init__(self, client: Link, thread_id: str) -> None:
        self.client = client
        self.id = checked_thread(thread_id)

    def __repr__(self) -> str:
        return f"StoredThread({self.id!r})"

    def info(self) -> ThreadInfo:
        """When it began, and its runs. Raises ThreadNotFoundError."""
        with self.client.database.autocommit() as connection:
            return queries.thread(connection, self.id)

    def history(self) -> tuple[Message, ...]:
        """Every message of the thread, oldest first; () where there is no such thread yet: the first run begins it."""
        with self.client.database.autocommit() as connection:
            return tuple(each.message for each in threads.said(connection, self.id))

    def rewind(self, to: int) -> Rewound:
        """Leave the first ``to`` messages of ``history()`` in the thread; a negative number takes away that many.

        The cut moves back to where no call is left without its result. A run that is under way and has messages behind
        the cut is cancelled and takes no part in the thread any more, which is free at once. What tools have done
        outside, those of sub-agents too, stays done: ``Rewound.effects`` lists it. Raises ThreadNotFoundError;
        InputError where the thread is not so long.
        """
        control = self.client.control
        with self.client.database.transaction() as connection:
            threads.lock(connection, self.id)
            said = threads.said(connection, self.id)
            at = self._border(said, to)
            if at == len(said):
                return Rewound(at, ())
            behind = {each.run_id for each in said[at:]}
            is_open = [run.id for run in threads.open_runs(connection, self.id) if run.id in behind]
            ended = [control.cancel_in(connection, run_id) for run_id in is_open]
            # What those behind the cut have added up to their ends; one before it may have gone on as well.
            first, said = said[at], threads.said(connection, self.id)
            at = next(place for place, each in enumerate(said) if each.place == first.place)
            threads.cut(connection, self.id, said[:at], first)
        for each in ended:
            control.after_cancel(*each)
        return Rewound(at, self._effects(said, at))

    def fork(self, thread_id: str, *, at: int | None = None) -> "StoredThread":
        """A new thread that begins with a copy of this one: of all of it, or as ``rewind`` would leave it.

        Raises ThreadNotFoundError; InputError where there is a thread of that name, or this one is not so long.
        """
        other = StoredThread(self.client, thread_id)
        with self.client.database.transaction() as connection:
            threads.lock(connection, self.id)
            said = threads.said(connection, self.id)
            kept = said[: self._border(said, len(said) if at is None else at)]
            media = [one for each in kept for one in media_of(each.message)]
            blobs.put(connection, media)
            if not threads.fork(connection, other.id, kept):
                raise InputError(f"there is a thread {other.id!r} already; choose another name, or delete it")
            blobs.refer(connection, ("thread_id", other.id, media))
        return other

    def retry(self, *, limits: Mapping[str, Any] | None = None) -> Handle:
        """Let the thread's last run go on, which failed or was cancelled; see ``Handle.retry``."""
        with self.client.database.autocommit() as connection:
            latest = threads.latest_run(connection, self.id)
        if latest is None:
            raise RunNotFoundError(f"thread {self.id!r} has no run to retry")
        handle = Handle(self.client, latest)
        handle.retry(limits=limits)
        return handle

    def delete(self) -> int:
        """Delete the thread with all of its runs; the answer is how many those were, sub-agents' included.

        Raises ThreadNotFoundError; ThreadBusyError while a run of it has not ended.
        """
        with self.client.database.transaction() as connection:
            threads.lock(connection, self.id)
            threads.check_idle(connection, self.id)
            deleted = threads.delete(connection, [self.id])
        with suppress(UnavailableError):
            # Left to the next one who deletes something.
            blobs.delete_unreferenced(self.client.database)
        return deleted

    def _border(self, said: list[Said], to: object) -> int:
        if isinstance(to, bool) or not isinstance(to, int):
            raise InputError(f"thread {self.id!r} is cut at a number of messages, not at {to!r}")
        try:
            return border([each.message for each in said], to)
        except IndexError as error:
            raise InputError(f"thread {self.id!r}: {error}, so it cannot be cut at {to}") from error

    def _effects(self, said: list[Said], at: int) -> tuple[Effect, ...]:
        run_ids = [each.run_id for each in said]
        with self.client.database.autocommit() as connection:
            found = {
                call: None if run_id is None else Below(run_id, queries.messages(connection, run_id))
                for call, run_id in threads.below(connection, run_ids[at:]).items()
            }
        done = effects(run_ids, [each.message for each in said], at, found)
        return tuple(effect for effect in done if effect.tool != OUTPUT_TOOL)
