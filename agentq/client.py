"""The face for producers: enqueue runs, and look at what there is, from any process."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from agentq.budgets import unpriced
from agentq.busy import OnBusy, OnWaiting, WhenBusy, take_on_thread
from agentq.content import Content, File, Image
from agentq.errors import ConfigError, ContentError, InputError
from agentq.handle import Handle
from agentq.ids import new_id
from agentq.inputs import (
    checked_days,
    checked_due,
    checked_key,
    checked_keys,
    checked_limits,
    checked_message,
    checked_page,
    checked_place,
    checked_priority,
    checked_status,
    checked_tags,
    json_object,
    shown_name,
    whoami,
)
from agentq.intake import take_in
from agentq.link import Link
from agentq.messages import Message
from agentq.registry import unknown
from agentq.retention import Purged, purge
from agentq.run import Approval, Progress, Run, Status, ThreadInfo
from agentq.storage import blobs, queries
from agentq.storage.enqueue import NewRun
from agentq.storage.outdated import adopt_some
from agentq.text import clean
from agentq.threads import StoredThread
from agentq.tools import check_name
from agentq.wire import Priority

logger = logging.getLogger(__name__)


class Client(Link):
    """A connection to agentq's database and broker, for producers and operators; thread-safe, made once a process.

    Arguments that are not given come from ``AGENTQ_*``; where neither says anything, the embedded Postgres and broker
    under ``.agentq/`` are started. Raises ConfigError for wrong settings; UnavailableError and SchemaOutdatedError come
    from the calls that need the database.
    """

    def enqueue(  # noqa: PLR0913 - what a run may be given
        self,
        agent: str,
        text: Content,
        *,
        idempotency_key: str | None = None,
        tags: Mapping[str, str] | None = None,
        context: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        thread: str | None = None,
        delay_secs: float | None = None,
        due_at: datetime | None = None,
        priority: Priority = "normal",
        concurrency_key: str | None = None,
        concurrency_limit: int | None = None,
        connection: Any = None,
        allow_unknown: bool = False,
        on_busy: OnBusy = "reject",
        on_waiting: OnWaiting = "reject",
    ) -> Handle:
        """Store a run of ``agent`` for the message ``text`` and wake a worker; returns at once.

        ``text`` may also be a list of texts, images (``Image.from_path(…)``) and files (``File``), in this order.
        ``idempotency_key``: the same agent and key give the same run, however often they are sent; the first message
        counts, what is sent with the key later is not looked at, and ``handle.is_new`` is False.
        ``tags``: text to text, searchable. ``context``: JSON values, for tools as ``ctx.context``. ``limits``: changes
        to the agent's.
        ``delay_secs``, ``due_at`` (a datetime with a time zone): it begins then, or later, by the database's clock.
        ``priority``: "high", "normal" or "low"; of steps and calls that wait for a worker the higher ones go first.
        ``concurrency_key`` with ``concurrency_limit``: so many runs of the key are at work at once, whatever agent they
        are of; the others wait, and begin by priority and age. The newest of a key's open runs says how many.
        ``connection``: the run is written in your own open transaction (a SQLAlchemy Connection or Session, or a
        psycopg Connection, of the same database): it is there, and begins, when you commit, and never was when you
        roll back. The handle can be used after the commit.
        ``allow_unknown``: take a name that no worker ever had, and let the run wait for one that has it; for producers
        deployed before their workers.
        ``thread``: the conversation that the message continues. One run of a thread is at work at a time. What a
        message does while another one is: ``on_busy="reject"`` raises ThreadBusyError; ``"enqueue"`` has it wait for
        its turn, from which its time limit counts; ``"interrupt"`` cancels that run, and those that wait for their
        turn, and begins when they have ended; ``"steer"`` sends it into the run, whose next model call sees it: the
        handle is that of this run, which takes nothing else of what is given here. What it does while the run waits
        for a person: ``on_waiting="reject"``; ``"hold"`` has it wait for its turn; ``"deny_and_continue"`` answers no
        to all that people are asked, and sends it into the run. With ``connection`` it is rejected or waits, no more.
        Raises UnknownAgentError, InputError for values that cannot be stored (ContentError for an image or a file),
        ThreadBusyError, UnavailableError (nothing is stored then). A broker that is away does not matter: workers find
        the run.
        """
        when = WhenBusy(on_busy, on_waiting)
        when.check(thread, connection)
        new = replace(
            self._new_run(agent, text, tags, context, limits, allow_unknown=allow_unknown),
            idempotency_key=checked_key("idempotency_key", idempotency_key),
            thread_id=checked_key("thread", thread),
            priority=checked_priority(priority),
            **checked_due(delay_secs, due_at),
            **checked_place(concurrency_key, concurrency_limit),
        )
        if new.thread_id is None:
            return self._take_in([new], connection)[0]
        run_id = take_on_thread(self, new, when, connection)
        return Handle(self, run_id, is_new=new.id == run_id)

    def enqueue_many(  # noqa: PLR0913 - what runs may be given
        self,
        agent: str,
        texts: Sequence[Content],
        *,
        idempotency_keys: Sequence[str | None] | None = None,
        tags: Mapping[str, str] | None = None,
        context: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        delay_secs: float | None = None,
        due_at: datetime | None = None,
        priority: Priority = "normal",
        concurrency_key: str | None = None,
        concurrency_limit: int | None = None,
        connection: Any = None,
        allow_unknown: bool = False,
    ) -> list[Handle]:
        """Store a run of ``agent`` for each of ``texts``, all or none, and wake workers; the handles are in that order.

        ``idempotency_keys`` has one for each text, or None; what else is given is the same for all: see ``enqueue``.
        Much faster than one by one: ten thousand runs are one statement. Raises what ``enqueue`` raises, for the first
        text that cannot be taken.
        """
        if isinstance(texts, str | Image | File):
            raise InputError("enqueue_many takes a list of texts; for one text there is enqueue")
        keys = checked_keys(idempotency_keys, len(texts))
        if not texts:
            return []
        first = replace(
            self._new_run(agent, texts[0], tags, context, limits, allow_unknown=allow_unknown),
            priority=checked_priority(priority),
            **checked_due(delay_secs, due_at),
            **checked_place(concurrency_key, concurrency_limit),
        )
        new = [
            replace(first, id=new_id("run"), idempotency_key=key, **checked_message(text))
            for text, key in zip(texts, keys, strict=True)
        ]
        return self._take_in(new, connection)

    def _take_in(self, new: Sequence[NewRun], connection: Any) -> list[Handle]:
        ids = take_in(self, new, connection)
        return [Handle(self, run_id, is_new=run.id == run_id) for run, run_id in zip(new, ids, strict=True)]

    def _new_run(
        self,
        agent: str,
        text: Content,
        tags: Mapping[str, str] | None,
        context: Mapping[str, Any] | None,
        limits: Mapping[str, Any] | None,
        *,
        allow_unknown: bool,
    ) -> NewRun:
        check_name("agent", agent)
        changed = checked_limits(limits)
        if changed.get("usd") is not None and agent in self.agents and (problem := unpriced(self.agents[agent])):
            raise ConfigError(f"agent {agent!r}: {problem}")
        if not allow_unknown:
            self._check_agent(agent)
        return NewRun(
            id=new_id("run"),
            agent=agent,
            **checked_message(text),
            progress=Progress(limit_overrides=changed),
            run_secs=self._run_secs(agent, changed),
            context=json_object("context", context),
            tags=checked_tags(tags),
        )

    def _run_secs(self, agent: str, changed: Mapping[str, Any]) -> float | None:
        known = self.agents[agent].limits.run_secs if agent in self.agents else None
        limit = changed.get("run_secs", known)
        return None if limit is None else float(limit)

    def _check_agent(self, name: str) -> None:
        if name in self.agents:
            return
        with self.database.autocommit() as connection:
            known = set(queries.known_agents(connection)) | set(self.agents)
        if not known:
            logger.warning("no worker has ever been started, so nobody knows agent %r yet", name)
        elif name not in known:
            raise unknown(name, known)

    def handle(self, run_id: str) -> Handle:
        """A handle to a run by its id; nothing is read yet."""
        return Handle(self, clean(run_id))

    def runs(
        self,
        *,
        status: Status | None = None,
        agent: str | None = None,
        tags: Mapping[str, str] | None = None,
        thread: str | None = None,
        outdated: bool = False,
        before: str | None = None,
        limit: int = 50,
    ) -> list[Run]:
        """The newest runs first, ``limit`` at most; ``before`` is the last id of the page already seen.

        ``outdated``: only those that are held because their agent has changed. Raises InputError for a status that
        there is not and a limit that is no positive number.
        """
        with self.database.autocommit() as connection:
            return queries.runs(
                connection,
                status=checked_status(status),
                agent=clean(agent) if agent else agent,
                tags=checked_tags(tags) if tags else None,
                thread=clean(thread) if thread else thread,
                outdated=outdated,
                before=clean(before) if before else before,
                limit=checked_page(limit),
            )

    def adopt(self, agent: str, *, by: str | None = None) -> int:
        """``Handle.adopt`` for all runs of ``agent`` that are held because it has changed; the answer is their number.

        A thousand are one transaction: where it is broken off, those before have been adopted.
        """
        adopted = 0
        while True:
            with self.database.transaction() as connection:
                some = adopt_some(connection, clean(agent), by=shown_name(by or whoami()))
            if not some:
                return adopted
            adopted += len(some)

    def approvals(
        self,
        *,
        run_id: str | None = None,
        status: str | None = "pending",
        after: str | None = None,
        limit: int | None = None,
    ) -> list[Approval]:
        """Calls that wait for a person, the oldest first; ``status=None`` gives the decided ones too.

        Those of a run include what its sub-agents ask. All of them, or ``limit`` at most; ``after`` is the last ``id``
        of the page already seen, which may have been decided on meanwhile. Raises RunNotFoundError for an ``after``
        that is not there, as its run was deleted; InputError for a limit that is no positive number.
        """
        with self.database.autocommit() as connection:
            return queries.approvals(
                connection,
                run_id=clean(run_id) if run_id else run_id,
                status=status,
                after=clean(after) if after else after,
                limit=None if limit is None else checked_page(limit),
            )

    def threads(self, *, before: str | None = None, limit: int = 50) -> list[ThreadInfo]:
        """The conversations, those begun last first, ``limit`` at most; ``before`` is the last id already seen.

        Raises ThreadNotFoundError for a ``before`` that is not there; InputError for a limit that is no positive
        number.
        """
        with self.database.autocommit() as connection:
            return queries.threads(connection, before=clean(before) if before else before, limit=checked_page(limit))

    def thread(self, thread_id: str) -> StoredThread:
        """A stored conversation: its history, and cutting, copying and deleting it; nothing is read yet."""
        return StoredThread(self, clean(thread_id))

    def history(self, thread: str) -> tuple[Message, ...]:
        """Every message of a thread, oldest first; () where there is no such thread."""
        return self.thread(thread).history()

    def read(self, media: Image | File) -> bytes:
        """The bytes of an image or a file of a transcript.

        Raises ContentError for one that is known by its URL only; ContentMissingError.
        """
        if media.data is not None:
            return media.data
        if not media.sha256:
            raise ContentError(f"{media} was given by its URL and is not stored; get it from there", problem="url")
        with self.database.autocommit() as connection:
            return blobs.load(connection, [media.sha256])[media.sha256]

    def purge(self, *, keep_days: float) -> Purged:
        """Delete runs that ended more than ``keep_days`` ago, and threads in which nothing has happened since.

        Open runs stay, however old, and so does a thread with one. Workers do it by themselves where
        ``AGENTQ_KEEP_DAYS`` is set. Raises ConfigError for a number that is not positive.
        """
        return purge(self.database, keep_days=checked_days(keep_days))

    def delete_unreferenced(self) -> int:
        """Delete stored images and files that no run and no thread refers to any more; the answer is how many.

        For after you have deleted runs by SQL; ``thread(…).delete()`` does it by itself.
        """
        return blobs.delete_unreferenced(self.database)
