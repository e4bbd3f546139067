"""What happens to a run from outside its steps: a person's decision, a cancel, a sub-agent's answer, and its end."""

import logging
import threading
from contextlib import suppress
from typing import Any

from agentq.agent import AgentSpec
from agentq.errors import ErrorInfo, LeaseLost
from agentq.hooks import EndRun
from agentq.messages import ToolResult
from agentq.outcomes import Cancelled, Decided, Failed
from agentq.results import to_text
from agentq.run import OpenCall, Snapshot
from agentq.saving import Saver
from agentq.services import Services
from agentq.steps.base import call_hooks, context
from agentq.steps.tool_batch import CallDone, interrupted
from agentq.storage import children, control, queries
from agentq.storage.journal import NewEvent
from agentq.storage.rows import CallRef
from agentq.storage.steps import Again
from agentq.transition import decide, time_is_over

logger = logging.getLogger(__name__)


class Control:
    """Decisions on runs, from any process: it needs the database, and a broker only to be quick."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.saver = Saver(services)

    def decide_call(
        self, run_id: str, call_id: str, *, approved: bool, decided_by: str, reason: str | None = None
    ) -> None:
        """Record a person's decision; the last one of the turn lets the run go on.

        Raises RunNotFoundError, or ApprovalNotPendingError when somebody else has decided or the run has ended.
        """
        data = {"call_id": call_id, "decision": "approved" if approved else "rejected", "by": decided_by}
        with self.services.database.transaction() as connection:
            snapshot, _ = control.lock(connection, run_id)
            left, said = control.decide_approval(
                connection, snapshot, call_id, approved=approved, decided_by=decided_by, reason=reason
            )
            control.note(connection, run_id, NewEvent("approval.decided", data), said)
            if left > 0:
                return
            snapshot, _ = control.lock(connection, run_id)
            transition = decide(snapshot, Decided())
            after, wake_ups = self.saver.apply(connection, transition, None, [])
        self.saver.send(wake_ups)
        self.after(after)

    def settle_call(
        self,
        run_id: str,
        call_id: str,
        *,
        happened: bool | None,
        result: str | None,
        reason: str | None,
        decided_by: str,
    ) -> None:
        """Record what a person found out of a call whose outcome was unknown.

        True gives the model ``result``, False lets the tool run again, None tells the model that nobody knows.
        Raises RunNotFoundError, or ApprovalNotPendingError when somebody else has answered or the run has ended.
        """
        status = _OUTCOMES[happened]
        data = {"call_id": call_id, "decision": status, "by": decided_by}
        with self.services.database.transaction() as connection:
            snapshot, _ = control.lock(connection, run_id)
            call = control.answer_outcome(
                connection, snapshot, call_id, status=status, decided_by=decided_by, reason=reason
            )
            control.note(connection, run_id, NewEvent("approval.decided", data))
            answer = None if happened is False else _told(call, happened=bool(happened), result=result, reason=reason)
            wake_ups, after = self.saver.settle_asked(connection, snapshot, call, answer)
        self.saver.send(wake_ups)
        self.after(after)

    def expire(self, run_id: str) -> None:
        """End a run whose time limit is over, where nobody is at it; else its next step does."""
        with self.services.database.transaction() as connection:
            snapshot, at_work = control.lock(connection, run_id)
            limit = control.time_limit(connection, run_id)
            if at_work or limit is None:
                return
            transition = decide(snapshot, Failed(time_is_over(limit)))
            self.saver.apply(connection, transition, None, [], even_if_cancelled=True)
        self.after(transition.snapshot)

    def cancel(self, run_id: str) -> Snapshot:
        """End the run now where nobody is at it, else with the next commit; its children too. The answer is the run.

        Raises RunNotFoundError. A run that has ended is left as it is.
        """
        with self.services.database.transaction() as connection:
            snapshot, at_work = control.lock(connection, run_id)
            if snapshot.is_terminal:
                return snapshot
            control.ask_cancel(connection, run_id)
            below = control.open_children(connection, run_id)
            if not at_work:
                transition = decide(snapshot, Cancelled())
                self.saver.apply(connection, transition, None, [], even_if_cancelled=True)
                snapshot = transition.snapshot
        for child in below:
            self.cancel(child)
        self.after(snapshot)
        return snapshot

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
        if snapshot.depth > 0 or snapshot.status != "completed":
            self.tell_family(snapshot.run_id)
        agent: AgentSpec | None = self.services.agents.get(snapshot.agent)
        if agent is not None and agent.listeners["on_end"]:
            # Nobody waits for it: a hook that hangs must not hold up a worker, or its sweep.
            threading.Thread(target=_tell_hooks, args=(agent, snapshot), name="agentq-on-end", daemon=True).start()

    def tell_family(self, run_id: str) -> None:
        """End the children of a run that has ended, and answer the call it was made for; once, however often told."""
        with self.services.database.autocommit() as connection:
            ended = children.ended(connection, run_id)
            below = control.open_children(connection, run_id) if ended and not ended.is_completed else ()
        if ended is None:
            return
        for child in below:
            self.cancel(child)
        if ended.parent is not None:
            self._answer_call(ended.parent, self._answer(run_id, ended.parent))
        with self.services.database.autocommit() as connection:
            children.told(connection, run_id)

    def _answer(self, run_id: str, parent: CallRef) -> ToolResult:
        with self.services.database.autocommit() as connection:
            run = queries.run(connection, run_id)
            call_id, tool = children.call(connection, parent)
        return _answer(call_id, tool, run.error, run.output if run.output is not None else run.text or "")

    def _answer_call(self, ref: CallRef, result: ToolResult) -> None:
        try:
            end, parent = self.saver.finish_call(ref, CallDone(result), None, {"worker": self.services.worker})
        except LeaseLost as lost:
            logger.info("%s", lost)
            return
        self.services.probe("committed", "answer")
        self.saver.send(end.wake_ups)
        self.services.probe("announced", "answer")
        self.after(parent)


_OUTCOMES = {True: "happened", False: "not_happened", None: "unknown"}


def _told(call: OpenCall, *, happened: bool, result: str | None, reason: str | None) -> ToolResult:
    """A call's result as a person knows it."""
    if happened:
        text = result or "The tool took effect; its result was lost with its worker."
        return ToolResult(call_id=call.call_id, name=call.tool, text=text)
    unknown = interrupted(call)
    return unknown.model_copy(update={"text": f"{unknown.text} A person adds: {reason}"}) if reason else unknown


def _epitaph(snapshot: Snapshot) -> str:
    used = f"{snapshot.progress.model_calls} model calls, {snapshot.progress.tool_calls} tool calls"
    return f"{snapshot.run_id} {snapshot.agent}: {snapshot.status} after {used}"


def _tell_hooks(agent: AgentSpec, snapshot: Snapshot) -> None:
    with suppress(EndRun):
        call_hooks(agent, "on_end", lambda: (context(snapshot), snapshot.status), [])


def _answer(call_id: str, tool: str, error: ErrorInfo | None, value: Any) -> ToolResult:
    if error is None:
        return ToolResult(call_id=call_id, name=tool, text=to_text(value))
    text = to_text(f"The agent failed ({error.code}): {error.message}")
    return ToolResult(call_id=call_id, name=tool, status="error", code=error.code, text=text)
