"""The face for producers: enqueue runs, and look at what there is, from any process."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentq.errors import ConfigError
from agentq.handle import Handle
from agentq.ids import new_id
from agentq.inputs import checked_key, checked_limits, checked_tags, checked_text, json_object
from agentq.link import Link
from agentq.messages import Message
from agentq.registry import unknown
from agentq.run import Approval, Progress, Run, Status
from agentq.services import patience_secs
from agentq.storage import enqueue, queries
from agentq.storage.enqueue import NewRun
from agentq.text import clean
from agentq.threads import StoredThread
from agentq.tools import check_name
from agentq.wire import StepMessage

logger = logging.getLogger(__name__)

# Of runs enqueued together, so many are announced at once; the workers' sweeps announce the others as fast as they can.
ANNOUNCED = 500


class Client(Link):
    """A connection to agentq's database and broker, for producers and operators; thread-safe, made once a process.

    Arguments that are not given come from ``AGENTQ_*``; where neither says anything, the embedded Postgres and broker
    under ``.agentq/`` are started. Raises ConfigError for wrong settings; UnavailableError and SchemaOutdatedError come
    from the calls that need the database.
    """

    def enqueue(
        self,
        agent: str,
        text: str,
        *,
        idempotency_key: str | None = None,
        tags: Mapping[str, str] | None = None,
        context: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        thread: str | None = None,
        allow_unknown: bool = False,
    ) -> Handle:
        """Store a run of ``agent`` for the message ``text`` and wake a worker; returns at once.

        ``idempotency_key``: the same agent and key give the same run, however often they are sent. ``tags``: text to
        text, searchable. ``context``: JSON values, for tools as ``ctx.context``. ``limits``: changes to the agent's.
        ``allow_unknown``: take a name that no worker ever had, and let the run wait for one that has it; for producers
        deployed before their workers.
        Raises UnknownAgentError, ConfigError for values that cannot be stored, ThreadBusyError, UnavailableError
        (nothing is stored then). A broker that is away does not matter: workers find the run.
        """
        new = self._new_run(agent, text, tags, context, limits, allow_unknown=allow_unknown)
        key, thread_id = checked_key("idempotency_key", idempotency_key), checked_key("thread", thread)
        new = replace(new, idempotency_key=key, thread_id=thread_id)
        # The lock of a thread lasts as long as a transaction.
        enough = self.database.autocommit if new.thread_id is None else self.database.transaction
        with enough() as connection:
            run_id = enqueue.insert(connection, new, patience_secs=patience_secs(self.settings.lease_secs))
        if run_id == new.id:
            self.control.saver.send([StepMessage(run_id, 0)])
        return self.handle(run_id)

    def enqueue_many(
        self,
        agent: str,
        texts: Sequence[str],
        *,
        tags: Mapping[str, str] | None = None,
        context: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        allow_unknown: bool = False,
    ) -> list[Handle]:
        """Store a run of ``agent`` for each of ``texts``, all or none, and wake workers; the handles are in that order.

        What else is given is the same for all: see ``enqueue``. Much faster than one by one: ten thousand runs are one
        statement. Raises what ``enqueue`` raises, for the first text that cannot be taken.
        """
        if isinstance(texts, str):
            raise ConfigError("enqueue_many takes a list of texts; for one text there is enqueue")
        if not texts:
            return []
        first = self._new_run(agent, texts[0], tags, context, limits, allow_unknown=allow_unknown)
        new = [first, *(replace(first, id=new_id("run"), text=checked_text(text)) for text in texts[1:])]
        with self.database.transaction() as connection:
            patience = patience_secs(self.settings.lease_secs)
            enqueue.insert_many(connection, new, announced=ANNOUNCED, patience_secs=patience)
        self.control.saver.send([StepMessage(run.id, 0) for run in new[:ANNOUNCED]])
        return [self.handle(run.id) for run in new]

    def _new_run(
        self,
        agent: str,
        text: str,
        tags: Mapping[str, str] | None,
        context: Mapping[str, Any] | None,
        limits: Mapping[str, Any] | None,
        *,
        allow_unknown: bool,
    ) -> NewRun:
        check_name("agent", agent)
        changed = checked_limits(limits)
        if not allow_unknown:
            self._check_agent(agent)
        return NewRun(
            id=new_id("run"),
            agent=agent,
            text=checked_text(text),
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
        before: str | None = None,
        limit: int = 50,
    ) -> list[Run]:
        """The newest runs first; ``before`` is the last id of the page already seen."""
        with self.database.autocommit() as connection:
            return queries.runs(
                connection,
                status=status,
                agent=clean(agent) if agent else agent,
                tags=checked_tags(tags) if tags else None,
                before=clean(before) if before else before,
                limit=limit,
            )

    def approvals(self, *, run_id: str | None = None, status: str | None = "pending") -> list[Approval]:
        """Calls that wait for a person, the oldest first; ``status=None`` gives the decided ones too.

        Those of a run include what its sub-agents ask.
        """
        with self.database.autocommit() as connection:
            return queries.approvals(connection, run_id=clean(run_id) if run_id else run_id, status=status)

    def thread(self, thread_id: str) -> StoredThread:
        """A stored conversation: its history, and cutting, copying and deleting it; nothing is read yet."""
        return StoredThread(self, clean(thread_id))

    def history(self, thread: str) -> tuple[Message, ...]:
        """Every message of a thread, oldest first."""
        return self.thread(thread).history()
