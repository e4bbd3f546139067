"""One run, from any process: wait for it, watch it, decide on it, end it."""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentq.approvals import Approve, Complete, Decision, Fail, Reject, Respond, Settle
from agentq.errors import (
    ApprovalNotPendingError,
    InputError,
    RunCancelledError,
    RunFailedError,
    RunNotHeldError,
    WaitTimeoutError,
)
from agentq.facts import START_WORKER
from agentq.inputs import checked_by, checked_limits, shown_name, whoami
from agentq.link import Link
from agentq.messages import Message
from agentq.run import Approval, Event, Result, Run, Status
from agentq.storage import outdated, queries
from agentq.storage import why as explained
from agentq.text import clean
from agentq.verdicts import check_arguments
from agentq.why import Why

logger = logging.getLogger(__name__)

_NO_WORKER_SECS = 1.0


class Handle:
    """One run, from any process.

    ``is_new`` says whether the enqueue that gave this handle made the run: False where there was one with the same
    idempotency key, and for a handle that is made from an id.
    """

    def __init__(self, client: Link, run_id: str, *, is_new: bool = False) -> None:
        self.client = client
        self.id = run_id
        self.is_new = is_new

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"

    def run(self) -> Run:
        """The run as it is now. Raises RunNotFoundError."""
        with self.client.database.autocommit() as connection:
            return queries.run(connection, self.id)

    def status(self) -> Status:
        """How it stands: "waiting" also where only its sub-agents wait for a person. Raises RunNotFoundError."""
        with self.client.database.autocommit() as connection:
            return queries.status(connection, self.id)

    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the run has ended or waits for a person, ``timeout`` seconds at most (None: for ever).

        Raises WaitTimeoutError, RunCancelledError, or what the run failed with (RunFailedError; LimitExceededError for
        a limit). A run that waits for a person is a result with ``stop_reason == "needs_approval"``.
        """
        started, pause, warned = time.monotonic(), 0.01, False
        while True:
            if (status := self.status()) not in ("queued", "running") and not self._only_others_are_at_it(status):
                result = self.result()
                # Somebody may have decided meanwhile, and it goes on.
                asks = {approval.kind for approval in result.approvals} - {"deferred"}
                if asks or result.stop_reason not in (None, "needs_approval"):
                    return result
            waited = time.monotonic() - started
            is_over = timeout is not None and waited >= timeout
            if not warned and (is_over or waited > _NO_WORKER_SECS):
                warned = True
                self._warn_of_standstill()
            if is_over:
                raise WaitTimeoutError(
                    f"run {self.id} is still {status} after {timeout:g} s; it goes on", run_id=self.id
                )
            left = float("inf") if timeout is None else timeout - waited
            time.sleep(min(pause, max(left, 0.001)))
            pause = min(pause * 1.3, 0.25)

    def _only_others_are_at_it(self, status: Status) -> bool:
        """Whether it waits for nobody but the outside, which has calls of it."""
        return status == "waiting" and {approval.kind for approval in self.approvals()} == {"deferred"}

    def _warn_of_standstill(self) -> None:
        with self.client.database.autocommit() as connection:
            workers = queries.workers(connection)
            run = queries.run(connection, self.id)
        if run.outdated_at is not None:
            logger.warning("run %s is held, as its agent has changed; see: agentq why %s", self.id, self.id)
        if not any(self.client.settings.queue in worker.queues for worker in workers):
            logger.warning("run %s waits: no worker is running; start one with: %s", self.id, START_WORKER)

    def result(self) -> Result:
        """The result as it is now; raises as ``wait`` does where the run failed or was cancelled."""
        with self.client.database.autocommit() as connection:
            run = queries.run(connection, self.id)
            is_waiting = not run.is_terminal and queries.status(connection, self.id) == "waiting"
            messages = queries.messages(connection, self.id)
            waiting = queries.approvals(connection, run_id=self.id) if is_waiting else []
        if run.status == "cancelled":
            raise RunCancelledError(f"run {self.id} was cancelled", run_id=self.id)
        if run.error is not None:
            error: RunFailedError = run.error.to_exception()
            raise error
        # One read after the other, while others may decide: it waits only for what is there to be decided.
        is_waiting = bool(waiting)
        status: Status = "waiting" if is_waiting else "running" if run.status == "waiting" else run.status
        spec = self.client.agents.get(run.agent)
        typed = spec is not None and spec.output is not None and run.stop_reason == "output"
        return Result(
            run_id=self.id,
            status=status,
            stop_reason="needs_approval" if is_waiting else run.stop_reason,
            text=run.text,
            output=spec.output.load(run.output) if typed and spec and spec.output else run.output,
            usage=run.usage,
            approvals=tuple(waiting),
            messages=messages,
        )

    def events(self, *, after: int = 0, follow: bool = True, timeout: float | None = None) -> Iterator[Event]:
        """Events from number ``after`` + 1 on, then new ones until the run has ended or waits for a person.

        Numbers have no gaps, and all are kept as long as the run is. Of an agent with ``stream=True`` there are
        ``model.delta``, a piece of a reply: ``data`` has its ``seq`` (the step's), ``kind`` ("text", "reasoning", or
        "arguments" with ``call``, its number, and ``tool``) and ``text``; and ``model.reset``, which takes back all
        that was shown of the step so far. ``follow=False`` stops at the newest; ``timeout`` bounds the wait in
        seconds. Raises RunNotFoundError.
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

    def retry(self, *, limits: Mapping[str, Any] | None = None) -> None:
        """Let a run that failed or was cancelled go on where it stood: the same run, with its counts.

        ``limits``: changes to its limits, such as one that it has reached. Raises RunNotFoundError;
        RunNotFinishedError; RunFinishedError for a run that completed, has reached a limit, answered another agent's
        call, or is not the last of its thread any more; InputError.
        """
        self.client.control.retry(self.id, checked_limits(limits))

    def adopt(self, *, by: str | None = None) -> None:
        """Let a run go on that is held because its agent has changed (``on_change="hold"``): with the new code.

        A worker takes it within a second or two. ``by`` is kept in its events (None: the user of this machine). Raises
        RunNotFoundError; RunNotHeldError for a run that is not held so.
        """
        with self.client.database.transaction() as connection:
            adopted = outdated.adopt_run(connection, self.id, by=shown_name(by or whoami()))
        if adopted is None:
            run = self.run()
            hint = "" if run.is_terminal else f"; what it waits for says: agentq why {self.id}"
            raise RunNotHeldError(f"run {self.id} is {run.status}, and not held because its agent has changed{hint}")

    def approvals(self, *, status: str | None = "pending") -> list[Approval]:
        """The calls of the run, and of its sub-agents' runs, that wait for a person; None: the decided ones too."""
        with self.client.database.autocommit() as connection:
            return queries.approvals(connection, run_id=self.id, status=status)

    def decide(self, decisions: Mapping[str | Approval, Decision], *, by: str | None = None) -> None:
        """Decide on several waiting calls at once, all or none: Approve, Reject, Respond (or Settle).

        Each is named by its call id, or by its Approval. Calls of sub-agents may be among them. ``by`` is who decides
        (default: the user of this machine), kept with when and why. Raises ApprovalNotPendingError, which says who was
        faster, or that the deadline is over or the run has ended; InputError for what is no decision, changed
        arguments that do not fit the tool, where the agent is known here (else the call is put before a person again),
        a call that is named twice, and a call id that several sub-agents wait with.
        """
        decided_by = shown_name(checked_by(by) or whoami())
        of_runs: dict[str, dict[str, Decision]] = {}
        for approval, call_id, decision in self._named(decisions):
            if approval is not None and isinstance(decision, Approve) and decision.arguments is not None:
                check_arguments(self.client.agents.get(approval.agent), approval, decision.arguments)
            of_run = of_runs.setdefault(approval.run_id if approval else self.id, {})
            if call_id in of_run:
                raise InputError(f"call {call_id!r} is decided on twice; give one decision for each call")
            of_run[call_id] = decision
        self.client.control.decide(of_runs, decided_by=decided_by)

    def _named(self, decisions: Mapping[str | Approval, Decision]) -> Iterator[tuple[Approval | None, str, Decision]]:
        """Each decision with the call it is on, and that call's approval where there is one."""
        if not isinstance(decisions, Mapping):
            raise InputError(f"decisions map call ids to decisions, such as {{call_id: Approve()}}, not {decisions!r}")
        asked = self.approvals() if decisions else []
        for given, decision in decisions.items():
            if not isinstance(decision, Decision):
                raise InputError(f"{decision!r} is no decision; give Approve(), Reject('…'), Respond(…) or Settle(…)")
            if isinstance(given, Approval):
                yield given, given.call_id, decision
            elif isinstance(given, str):
                call_id = clean(given)
                # Decided on before, perhaps of a sub-agent: then it is to be said by whom.
                yield _asked(asked, self.id, call_id) or self._decided(call_id), call_id, decision
            else:
                raise InputError(f"a call is named by its id or its Approval, not by {given!r}")

    def _decided(self, call_id: str) -> Approval | None:
        """The last that was asked of a call with this id; of the run itself before those of the runs below it."""
        found = [approval for approval in self.approvals(status=None) if approval.call_id == call_id]
        return max(found, key=lambda each: (each.run_id == self.id, each.requested_at), default=None)

    def approve(
        self,
        call_id: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        reason: str | None = None,
        sticky: bool = False,
        by: str | None = None,
    ) -> None:
        """Let a waiting call run, with changed ``arguments`` where they are given; see ``Approve`` and ``decide``."""
        self.decide({call_id: Approve(arguments, reason, sticky)}, by=by)

    def complete(self, call_id: str, result: Any = None, *, by: str | None = None, timeout: float = 10.0) -> None:
        """Give the result of a call that its tool has handed to the outside (``Deferred``).

        One that is not waiting yet is waited for: whoever has it may be faster than the worker that handed it over.
        Raises ApprovalNotPendingError when it was completed before, its deadline is over, or the run has ended.
        """
        self._finish_deferred(call_id, Complete(result), by, timeout)

    def fail(self, call_id: str, message: str, *, by: str | None = None, timeout: float = 10.0) -> None:
        """Say that such a call has failed; the model sees ``message``. The rest as for ``complete``."""
        self._finish_deferred(call_id, Fail(message), by, timeout)

    def _finish_deferred(self, call_id: str, decision: Decision, by: str | None, timeout: float) -> None:
        give_up = time.monotonic() + timeout
        while True:
            try:
                return self.decide({call_id: decision}, by=by)
            except ApprovalNotPendingError as error:
                is_early = "status" not in error.details and self.status() in ("queued", "running")
                if not is_early or time.monotonic() > give_up:
                    raise
                time.sleep(0.05)

    def respond(self, call_id: str, result: Any, *, reason: str | None = None, by: str | None = None) -> None:
        """Answer in the place of a waiting call's tool, which is not run; see ``Respond`` and ``decide``."""
        self.decide({call_id: Respond(result, reason)}, by=by)

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
        ApprovalNotPendingError when somebody was faster or the run has ended; InputError for a result of a call that
        did not happen.
        """
        self.decide({call_id: Settle(happened, result, reason)}, by=by)

    def reject(self, call_id: str, *, reason: str | None = None, sticky: bool = False, by: str | None = None) -> None:
        """Do not let a waiting call run; the model sees ``reason`` (its first 4,000 characters); see ``decide``."""
        self.decide({call_id: Reject(reason, sticky)}, by=by)


def _asked(asked: Iterable[Approval], run_id: str, call_id: str) -> Approval | None:
    """The waiting call that is meant: one of the run itself before those of the runs below it."""
    found = [approval for approval in asked if approval.call_id == call_id]
    own = [approval for approval in found if approval.run_id == run_id]
    if len(found) > 1 and not own:
        runs = ", ".join(sorted(approval.run_id for approval in found))
        raise InputError(f"several runs wait with a call {call_id!r}: {runs}; name it by its Approval")
    return next(iter(own or found), None)
