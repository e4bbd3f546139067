"""What happens to a run from outside its steps: a person's decision, a cancel, a sub-agent's answer, and its end."""

import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from agentq.agent import AgentSpec
from agentq.approvals import Decision, Reject, Settle
from agentq.errors import (
    AgentqError,
    ErrorInfo,
    LeaseLost,
    LockedError,
    RunFinishedError,
    RunNotFoundError,
    ThreadNotFoundError,
)
from agentq.messages import ToolResult, Usage
from agentq.outcomes import Cancelled, Decided, Failed
from agentq.reached import time_is_over
from agentq.reopen import reopen
from agentq.results import to_text
from agentq.run import OpenCall, Snapshot
from agentq.saving import Saver
from agentq.services import Services
from agentq.steps.base import context
from agentq.steps.hooked import Notes, let_pass
from agentq.steps.tool_batch import CallDone, tell_of_edit
from agentq.storage import approvals, children, control, endings, queries, threads
from agentq.storage.journal import NewEvent
from agentq.storage.rows import CallRef
from agentq.storage.sql import Connection
from agentq.storage.steps import Again
from agentq.transition import decide
from agentq.values import replace
from agentq.verdicts import Verdict, check_task, expired
from agentq.wire import WakeUp

logger = logging.getLogger(__name__)

# So many ends the hooks of one process hear of at once from the sweep; the others wait for its next rounds.
MAX_TELLING = 16
_ON_END = "agentq-on-end"


class Control:
    """Decisions on runs, from any process: it needs the database, and a broker only to be quick."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.saver = Saver(services)

    def decide(self, decisions: Mapping[str, Mapping[str, Decision]], *, decided_by: str) -> None:
        """Record what a person decided of waiting calls, by run and call id, all or none; the runs go on from there.

        Raises RunNotFoundError, or ApprovalNotPendingError when somebody was faster, it is too late, or the run has
        ended; ConfigError for a changed task that is none.
        """
        with self.services.database.transaction() as connection:
            # In one order, so that two people who decide at once wait for each other and not both.
            ends = [self._decide(connection, run_id, decisions[run_id], decided_by) for run_id in sorted(decisions)]
        for after, wake_ups in ends:
            self.saver.send(wake_ups)
            self.after(after)

    def _decide(
        self, connection: Connection, run_id: str, decisions: Mapping[str, Decision], decided_by: str
    ) -> tuple[Snapshot, list[WakeUp]]:
        snapshot, _ = control.lock(connection, run_id)
        verdicts = [Verdict.of(call_id, decision, decided_by) for call_id, decision in decisions.items()]
        made = [(approvals.decide(connection, snapshot, v.call_id, v.kind, v.answer), v) for v in verdicts]
        for call, verdict in tuple(made):
            check_task(call, verdict.answer)
            if verdict.answer.sticky:
                alike = approvals.decide_alike(connection, snapshot, call.tool, verdict.answer)
                made += [(other, replace(verdict, call_id=other.call_id)) for other in alike]
        events = [NewEvent("approval.decided", verdict.told) for _, verdict in made]
        answered = [(call, _told(connection, snapshot, call, verdict)) for call, verdict in made]
        return self._go_on(connection, snapshot, events, answered)

    def _go_on(
        self,
        connection: Connection,
        snapshot: Snapshot,
        events: list[NewEvent],
        answered: list[tuple[OpenCall, ToolResult | None]],
    ) -> tuple[Snapshot, list[WakeUp]]:
        """What follows from answers to calls: their results, None where they run; the last of a turn takes it on."""
        run_id = snapshot.run_id
        if snapshot.phase == "review":
            said = [control.close(connection, snapshot, call, result) for call, result in answered if result]
            control.note(connection, run_id, events, said)
            if approvals.pending(connection, run_id) > 0:
                return snapshot, []
            snapshot, _ = control.lock(connection, run_id)
            return self.saver.apply(connection, decide(snapshot, Decided()), None, [])
        control.note(connection, run_id, events)
        wake_ups, after = [], snapshot
        for call, result in answered:
            if not after.is_terminal:
                more, after = self.saver.settle_asked(connection, after, call, result)
                wake_ups += more
        return after, wake_ups

    def expire_approvals(self, run_id: str) -> None:
        """Do what the rules say of waiting calls on which nobody has decided in time."""
        with self.services.database.transaction() as connection:
            ended = self.expire_approvals_in(connection, run_id)
        for after, wake_ups in ended:
            self.saver.send(wake_ups)
            self.after(after)

    def expire_approvals_in(self, connection: Connection, run_id: str) -> list[tuple[Snapshot, list[WakeUp]]]:
        """The same in the caller's transaction; the answer is the run as it goes on and what is to be sent, if any."""
        snapshot, _ = control.lock(connection, run_id)
        late = approvals.expire(connection, snapshot)
        if not late:
            return []
        events = [NewEvent("approval.expired", {"call_id": call.call_id, "then": then}) for call, then in late]
        failing = next((call for call, then in late if then == "fail"), None)
        if failing is None:
            answered = [(call, None if then == "approve" else expired(call)) for call, then in late]
            return [self._go_on(connection, snapshot, events, answered)]
        control.note(connection, run_id, events)
        transition = decide(snapshot, Failed(_undecided(failing)))
        return [self.saver.apply(connection, transition, None, [], even_if_cancelled=True)]

    def expire(self, run_id: str) -> None:
        """End a run whose time limit is over, where nobody is at it; else its next step does."""
        with self.services.database.transaction() as connection:
            snapshot, at_work = control.lock(connection, run_id)
            limit = control.time_limit(connection, run_id)
            if at_work or limit is None:
                return
            transition = decide(snapshot, Failed(time_is_over(limit)))
            _, wake_ups = self.saver.apply(connection, transition, None, [], even_if_cancelled=True)
        self.saver.send(wake_ups)
        self.after(transition.snapshot)

    def cancel(self, run_id: str) -> Snapshot:
        """End the run now where nobody is at it, else with the next commit; its children too. The answer is the run.

        Raises RunNotFoundError. A run that has ended is left as it is.
        """
        with self.services.database.transaction() as connection:
            snapshot, below, wake_ups = self.cancel_in(connection, run_id)
        self.after_cancel(snapshot, below, wake_ups)
        return snapshot

    def cancel_in(self, connection: Connection, run_id: str) -> tuple[Snapshot, tuple[str, ...] | None, list[WakeUp]]:
        """The part of a cancel that is the caller's transaction. The answer is for after_cancel: the run, the runs
        below it, and what is to be sent. Of a run that had ended before nobody is told again (None).
        """
        snapshot, at_work = control.lock(connection, run_id)
        if snapshot.is_terminal:
            return snapshot, None, []
        control.ask_cancel(connection, run_id)
        below = control.open_children(connection, run_id)
        wake_ups: list[WakeUp] = []
        if not at_work:
            transition = decide(snapshot, Cancelled())
            _, wake_ups = self.saver.apply(connection, transition, None, [], even_if_cancelled=True)
            snapshot = transition.snapshot
        return snapshot, below, wake_ups

    def after_cancel(self, snapshot: Snapshot, below: Iterable[str] | None, wake_ups: list[WakeUp]) -> None:
        if below is None:
            return
        self.saver.send(wake_ups)
        for child in below:
            # Deleted meanwhile, with its family.
            with suppress(RunNotFoundError):
                self.cancel(child)
        self.after(snapshot)

    def retry(self, run_id: str, limits: Mapping[str, Any]) -> None:
        """Let a run that failed or was cancelled go on, with changes to its limits. Raises what ``reopen`` raises,
        RunNotFoundError, and RunFinishedError for a run that others have gone on from.
        """
        # The runs below it end with it, also where nobody has come to that yet.
        self.tell_family(run_id)
        with self.services.database.transaction() as connection:
            thread_id, parent = control.family(connection, run_id)
            if parent is not None:
                raise RunFinishedError(f"run {run_id} has answered a call of run {parent}; retry that one")
            if thread_id is not None:
                threads.lock(connection, thread_id)
                if not threads.may_reopen(connection, thread_id, run_id):
                    raise RunFinishedError(f"run {run_id} is not the last of thread {thread_id!r} any more")
                at_work = threads.open_runs(connection, thread_id)
                if at_work and not at_work[0].is_held and at_work[0].id != run_id:
                    raise threads.busy(thread_id, at_work[0])
            snapshot, _ = control.lock(connection, run_id)
            said = queries.messages(connection, run_id)
            after, note = reopen(snapshot, said[-1] if said else None, limits)
            placed = [(snapshot.message_count, note)] if note else []
            event, patience = NewEvent("run.retried", {"was": snapshot.status}), self.services.patience_secs
            wake_up = control.reopen(connection, after, event, placed, patience_secs=patience)
            wake_ups = self.saver.in_line(connection, after, [wake_up])
        self.saver.send(wake_ups)

    def go_on(self, run_id: str, again: Again) -> bool:
        """Send the wake-up of work that is to be done again, or end the run if that was asked for meanwhile.

        False where the wake-up could not be sent.
        """
        if again.is_cancelled:
            self.cancel(run_id)
        return again.wake_up is None or self.saver.send([again.wake_up])

    def after(self, snapshot: Snapshot) -> None:
        """What a run's end brings with it: its family is told, and the hooks hear of it in a thread of their own."""
        if not snapshot.is_terminal:
            return
        logger.log(logging.INFO if snapshot.status == "completed" else logging.WARNING, "%s", _epitaph(snapshot))
        if snapshot.depth > 0 or snapshot.status != "completed" or snapshot.is_followed:
            self.tell_family(snapshot.run_id)
        agent: AgentSpec | None = self.services.agents.get(snapshot.agent)
        if agent is not None and agent.hears_ends:
            self._tell_hooks(agent, snapshot)

    def tell_of_end(self, run_id: str) -> None:
        """For the sweep: tell of a run's end whoever should have heard by now, family and hooks."""
        self.tell_family(run_id)
        with self.services.database.autocommit() as connection:
            name = endings.untold(connection, run_id)
            agent: AgentSpec | None = self.services.agents.get(name) if name else None
            if agent is None:
                return endings.leave(connection, run_id) if name else None
            if sum(thread.name == _ON_END for thread in threading.enumerate()) >= MAX_TELLING:
                return None
            snapshot = endings.take(connection, run_id)
        return self._tell_hooks(agent, snapshot) if snapshot is not None else None

    def _tell_hooks(self, agent: AgentSpec, snapshot: Snapshot) -> None:
        """In a thread of its own: a hook that hangs must not hold up a worker, or its sweep."""

        def tell() -> None:
            let_pass(agent, "on_end", context(snapshot), snapshot.status, Notes())
            # Where this is lost they hear again.
            with suppress(AgentqError), self.services.database.autocommit() as connection:
                endings.told(connection, snapshot.run_id, snapshot.seq)

        threading.Thread(target=tell, name=_ON_END, daemon=True).start()

    def tell_family(self, run_id: str) -> None:
        """End the children of a run that has ended, answer the call it was made for, and let the next of its thread go;
        once, however often told.
        """
        with self.services.database.autocommit() as connection:
            ended = children.ended(connection, run_id)
            below = control.open_children(connection, run_id) if ended and not ended.is_completed else ()
        if ended is None:
            return
        for child in below:
            with suppress(RunNotFoundError):
                self.cancel(child)
        answer = None if ended.parent is None else self._answer(run_id, ended.parent)
        if ended.parent is not None and answer is not None:
            self._answer_call(ended.parent, *answer)
        if ended.thread_id is not None and not self.let_follow(ended.thread_id):
            return
        with self.services.database.autocommit() as connection:
            children.told(connection, run_id)

    def let_follow(self, thread_id: str) -> bool:
        """Let the first of the runs begin that are held on a thread, where no other is at work there.

        False where somebody has the thread for longer than that is waited for: the sweep tries again.
        """
        try:
            wake_ups = self._let_follow(thread_id)
        except LockedError as error:
            logger.info("thread %s: %s", thread_id, error)
            return False
        except ThreadNotFoundError:
            return True
        self.saver.send(wake_ups)
        return True

    def _let_follow(self, thread_id: str) -> list[WakeUp]:
        with self.services.database.transaction() as connection:
            threads.lock(connection, thread_id, soon=True)
            waiting = threads.open_runs(connection, thread_id)
            # Those that are held may have been known to no other than the run that has ended, as a message of the
            # caller's transaction that was cancelled before a sweep has looked at it.
            if len(waiting) > 1 and not waiting[0].is_held and threads.follow(connection, waiting[0].id):
                return []
            for held in [run for run in waiting if run.is_held]:
                released = threads.release(connection, held.id, patience_secs=self.services.patience_secs)
                if released is not None:
                    run, wake_up = released
                    return self.saver.in_line(connection, run, [wake_up]) if wake_up else []
        return []

    def look_behind(self, run_id: str) -> None:
        """For the sweep: a run that the caller's transaction has put behind another one, which does not know it yet."""
        with self.services.database.autocommit() as connection:
            thread_id, _ = control.family(connection, run_id)
        with self.services.database.transaction() as connection:
            threads.lock(connection, str(thread_id), soon=True)
            before = threads.before(connection, str(thread_id), run_id)
            if any(threads.follow(connection, run.id) for run in reversed(before)):
                threads.stay_behind(connection, run_id)
                return
        self.let_follow(str(thread_id))

    def deny(
        self, connection: Connection, run_id: str, reason: str, *, decided_by: str
    ) -> list[tuple[Snapshot, list[WakeUp]]]:
        """In the caller's transaction: answer no to all that people are asked by a run and its sub-agents.

        The answer is each run as it goes on, and what is to be sent. Raises ApprovalNotPendingError when somebody
        decides at the same moment.
        """
        denied: dict[str, dict[str, Decision]] = {}
        for asked in queries.approvals(connection, run_id=run_id):
            if asked.kind != "deferred":
                decision = Settle(None, reason=reason) if asked.kind == "outcome" else Reject(reason)
                denied.setdefault(asked.run_id, {})[asked.call_id] = decision
        return [self._decide(connection, each, denied[each], decided_by) for each in sorted(denied)]

    def _answer(self, run_id: str, parent: CallRef) -> tuple[ToolResult, Usage] | None:
        """What the run says to the call it was made for, and what it used; None where that was deleted meanwhile."""
        with self.services.database.autocommit() as connection:
            run = queries.run(connection, run_id)
            call = children.call(connection, parent)
            given = approvals.permission(connection, parent)
        if call is None:
            return None
        value = run.output if run.output is not None else run.text or ""
        answer = _answer(*call, run.error, value)
        return tell_of_edit(answer, given.edited if given else None), run.usage

    def _answer_call(self, ref: CallRef, result: ToolResult, used: Usage) -> None:
        data = {"worker": self.services.worker}
        try:
            end, parent = self.saver.finish_call(ref, CallDone(result), None, data, used=used)
        except LeaseLost as lost:
            logger.info("%s", lost)
            return
        self.services.probe("committed", "answer")
        self.saver.send(end.wake_ups)
        self.services.probe("announced", "answer")
        self.after(parent)


def _told(connection: Connection, snapshot: Snapshot, call: OpenCall, verdict: Verdict) -> ToolResult | None:
    """The result that a person's word gives a call; None where it runs."""
    result = verdict.result(call)
    if result is None or verdict.kind == "approval":
        return result
    # It had begun, perhaps with other arguments than the model's.
    given = approvals.permission(connection, CallRef(snapshot.run_id, snapshot.turn, call.index))
    return tell_of_edit(result, given.edited if given else None)


def _undecided(call: OpenCall) -> ErrorInfo:
    message = f"nobody decided in time whether {call.tool} may run"
    return ErrorInfo(code="approval_expired", message=message, details={"tool": call.tool, "call_id": call.call_id})


def _epitaph(snapshot: Snapshot) -> str:
    used = f"{snapshot.progress.model_calls} model calls, {snapshot.progress.tool_calls} tool calls"
    return f"{snapshot.run_id} {snapshot.agent}: {snapshot.status} after {used}"


def _answer(call_id: str, tool: str, error: ErrorInfo | None, value: Any) -> ToolResult:
    if error is None:
        return ToolResult(call_id=call_id, name=tool, text=to_text(value))
    text = to_text(f"The agent failed ({error.code}): {error.message}")
    return ToolResult(call_id=call_id, name=tool, status="error", code=error.code, text=text)
