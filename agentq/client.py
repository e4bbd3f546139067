"""The face for producers: enqueue runs, wait for them, decide on them, from any process."""

import logging
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import Any

from agentq import embedded
from agentq.agent import AgentSpec
from agentq.config import Settings, load
from agentq.control import Control
from agentq.dispatch import Dispatcher
from agentq.errors import ConfigError, RunCancelledError, RunFailedError, WaitTimeoutError
from agentq.heartbeat import Heartbeat
from agentq.ids import new_id
from agentq.inputs import (
    checked_key,
    checked_limits,
    checked_tags,
    checked_text,
    json_object,
    shown_name,
    shown_reason,
    whoami,
)
from agentq.messages import Message
from agentq.providers.registry import resolve
from agentq.registry import by_name, unknown
from agentq.results import to_text
from agentq.run import Approval, Event, Progress, Result, Run, Status
from agentq.services import Services, patience_secs
from agentq.storage import enqueue, queries
from agentq.storage import why as explained
from agentq.storage.database import Database
from agentq.storage.enqueue import NewRun
from agentq.text import clean
from agentq.tools import check_name
from agentq.why import Why
from agentq.wire import StepMessage, WakeUp

logger = logging.getLogger(__name__)

_NO_WORKER_SECS = 3.0
# Of runs enqueued together, so many are announced at once; the workers' sweeps announce the others as fast as they can.
ANNOUNCED = 500


class Client:
    """A connection to agentq's database and broker, for producers and operators; thread-safe, made once a process.

    Arguments that are not given come from ``AGENTQ_*``; where neither says anything, the embedded Postgres and broker
    under ``.agentq/`` are started. Raises ConfigError for wrong settings; UnavailableError and SchemaOutdatedError come
    from the calls that need the database.
    """

    def __init__(
        self,
        database_url: str | None = None,
        broker_url: str | None = None,
        *,
        settings: Settings | None = None,
        agents: Iterable[AgentSpec] = (),
    ) -> None:
        settings = settings or load(database_url=database_url, broker_url=broker_url)
        self._embedded = start_embedded(settings) if settings.is_embedded else None
        self.settings = with_embedded(settings, self._embedded)
        self.database = Database(str(self.settings.database_url), pool_size=settings.db_pool_size)
        if settings.database_url is None:
            # Imported here: what brings a schema up to date takes longer to import than all that a producer needs.
            import_module("agentq.storage.migrate").upgrade(self.database)
        self.agents = by_name(agents)

    @cached_property
    def dispatcher(self) -> Dispatcher:
        return _LateDispatcher(self.settings)

    @cached_property
    def control(self) -> Control:
        """For decisions made here: cancel, approve, reject."""
        return Control(
            Services(
                database=self.database,
                agents=self.agents,
                dispatcher=self.dispatcher,
                heartbeat=Heartbeat(self.database, self.settings.lease_secs),
                resolve=resolve,
                worker=f"client@{socket.gethostname()}",
                lease_secs=self.settings.lease_secs,
            )
        )

    def close(self) -> None:
        """Give back connections, and the embedded services where this client started them."""
        self.database.dispose()
        if self._embedded is not None:
            self._embedded.close()

    def __repr__(self) -> str:
        return f"Client({self.database.shown_url!r})"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ runs

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
    ) -> "Handle":
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
    ) -> list["Handle"]:
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

    def handle(self, run_id: str) -> "Handle":
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
        """Calls that wait for a person, the oldest first; ``status=None`` gives the decided ones too."""
        with self.database.autocommit() as connection:
            return queries.approvals(connection, run_id=clean(run_id) if run_id else run_id, status=status)

    def history(self, thread: str) -> tuple[Message, ...]:
        """Every message of a thread, oldest first."""
        with self.database.autocommit() as connection:
            return queries.thread_messages(connection, clean(thread))


class Handle:
    """One run, from any process."""

    def __init__(self, client: Client, run_id: str) -> None:
        self.client = client
        self.id = run_id

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"

    def run(self) -> Run:
        """The run as it is now. Raises RunNotFoundError."""
        with self.client.database.autocommit() as connection:
            return queries.run(connection, self.id)

    def status(self) -> Status:
        """Raises RunNotFoundError."""
        with self.client.database.autocommit() as connection:
            return queries.status(connection, self.id)

    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the run has ended or waits for a person, ``timeout`` seconds at most (None: for ever).

        Raises WaitTimeoutError, RunCancelledError, or what the run failed with (RunFailedError; LimitExceededError for
        a limit). A run that waits for a person is a result with ``stop_reason == "needs_approval"``.
        """
        started, pause, warned = time.monotonic(), 0.01, False
        while (status := self.status()) in ("queued", "running"):
            waited = time.monotonic() - started
            if timeout is not None and waited >= timeout:
                raise WaitTimeoutError(
                    f"run {self.id} is still {status} after {timeout:g} s; it goes on", run_id=self.id
                )
            if waited > _NO_WORKER_SECS and not warned:
                warned = True
                self._warn_without_worker()
            left = float("inf") if timeout is None else timeout - waited
            time.sleep(min(pause, max(left, 0.001)))
            pause = min(pause * 1.3, 0.25)
        return self.result()

    def _warn_without_worker(self) -> None:
        with self.client.database.autocommit() as connection:
            workers = queries.workers(connection)
        if not any(self.client.settings.queue in worker.queues for worker in workers):
            logger.warning("run %s waits: no worker is running; start one with: agentq worker", self.id)

    def result(self) -> Result:
        """The result as it is now; raises as ``wait`` does where the run failed or was cancelled."""
        with self.client.database.autocommit() as connection:
            run = queries.run(connection, self.id)
            messages = queries.messages(connection, self.id)
            waiting = queries.approvals(connection, run_id=self.id) if run.status == "waiting" else []
        if run.status == "cancelled":
            raise RunCancelledError(f"run {self.id} was cancelled", run_id=self.id)
        if run.error is not None:
            error: RunFailedError = run.error.to_exception()
            raise error
        spec = self.client.agents.get(run.agent)
        typed = spec is not None and spec.output is not None and run.stop_reason == "output"
        return Result(
            run_id=self.id,
            status=run.status,
            stop_reason="needs_approval" if run.status == "waiting" else run.stop_reason,
            text=run.text,
            output=spec.output.load(run.output) if typed and spec and spec.output else run.output,
            usage=run.usage,
            approvals=tuple(waiting),
            messages=messages,
        )

    def events(self, *, after: int = 0, follow: bool = True, timeout: float | None = None) -> Iterator[Event]:
        """Events from number ``after`` + 1 on, then new ones until the run has ended or waits for a person.

        ``follow=False`` stops at the newest; ``timeout`` bounds the wait in seconds. Raises RunNotFoundError.
        """
        give_up = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            # The status is read first: what is written before a run ends is then never missed.
            status = self.status()
            with self.client.database.autocommit() as connection:
                events = queries.events(connection, self.id, after=after)
            yield from events
            after = events[-1].number if events else after
            if not follow or status not in ("queued", "running") or time.monotonic() >= give_up:
                return
            time.sleep(0.05 if events else 0.1)

    def why(self) -> Why:
        """Who or what the run waits for, since when, and what would move it. Raises RunNotFoundError."""
        with self.client.database.autocommit() as connection:
            return explained.why(connection, self.id, prefix=self.client.settings.queue)

    def messages(self) -> tuple[Message, ...]:
        """The transcript of this run."""
        with self.client.database.autocommit() as connection:
            return queries.messages(connection, self.id)

    def cancel(self) -> Status:
        """Ask for the run's end and return its status: a call that is running may still come back, nothing new starts.

        Raises RunNotFoundError. A run that has ended stays as it is.
        """
        return self.client.control.cancel(self.id).status

    def approve(self, call_id: str, *, by: str | None = None) -> None:
        """Let a waiting call run. Raises ApprovalNotPendingError when somebody was faster or the run has ended."""
        self.client.control.decide_call(self.id, clean(call_id), approved=True, decided_by=shown_name(by or whoami()))

    def settle(
        self,
        call_id: str,
        *,
        happened: bool | None,
        result: Any = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> None:
        """Say what became of a call whose worker was lost (an approval of kind ``"outcome"``).

        ``happened=True``: it took effect, and the model gets ``result`` as if the tool had returned it; False: it did
        not, and the tool runs again with the same idempotency key; None: nobody can tell, and the model gets
        ``interrupted`` with ``reason``. The reason is kept with the decision in any case. Raises
        ApprovalNotPendingError when somebody was faster or the run has ended; ConfigError for a result of a call that
        did not happen.
        """
        if happened not in (True, False, None):
            raise ConfigError(f"happened is True, False or None (nobody can tell), not {happened!r}")
        if happened is not True and result is not None:
            raise ConfigError("a call that did not take effect has no result; leave it out, or say that it happened")
        self.client.control.settle_call(
            self.id,
            clean(call_id),
            happened=happened,
            result=None if result is None else to_text(result),
            reason=shown_reason(reason),
            decided_by=shown_name(by or whoami()),
        )

    def reject(self, call_id: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Do not let a waiting call run; the model sees ``reason`` (its first 4,000 characters).

        Raises ApprovalNotPendingError.
        """
        self.client.control.decide_call(
            self.id,
            clean(call_id),
            approved=False,
            decided_by=shown_name(by or whoami()),
            reason=shown_reason(reason),
        )


class _LateDispatcher:
    """Imports Celery and connects at the first message: a process that only reads needs neither."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def send(self, wake_up: WakeUp) -> None:
        self._dispatcher.send(wake_up)

    @cached_property
    def _dispatcher(self) -> Dispatcher:
        from agentq import producer

        app = producer.make_app(str(self._settings.broker_url), queue=self._settings.queue)
        return producer.CeleryDispatcher(app, queue=self._settings.queue)


def start_embedded(settings: Settings) -> "embedded.Embedded":
    """What is not configured: Postgres and broker, or the broker alone."""
    return embedded.start(settings.home) if settings.database_url is None else embedded.broker_only(settings.home)


def with_embedded(settings: Settings, services: "embedded.Embedded | None") -> Settings:
    """The settings with the embedded services' URLs where none is configured."""
    if services is None:
        return settings
    urls = {
        "database_url": settings.database_url or services.database_url,
        "broker_url": settings.broker_url or services.broker_url,
    }
    return settings.model_copy(update=urls)
