"""One run, from any process: wait for it, watch it, decide on it, end it."""

import logging
import time
from collections.abc import Iterator
from typing import Any

from agentq.errors import ConfigError, RunCancelledError, RunFailedError, WaitTimeoutError
from agentq.inputs import shown_name, shown_reason, whoami
from agentq.link import Link
from agentq.messages import Message
from agentq.results import to_text
from agentq.run import Event, Result, Run, Status
from agentq.storage import queries
from agentq.storage import why as explained
from agentq.text import clean
from agentq.why import Why

logger = logging.getLogger(__name__)

_NO_WORKER_SECS = 3.0


class Handle:
    """One run, from any process."""

    def __init__(self, client: Link, run_id: str) -> None:
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
