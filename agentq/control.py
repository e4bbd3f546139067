"""What happens to a run from outside its steps: a person's decision, a cancel, a sub-agent's answer, and its end."""

import logging
from typing import Any

from agentq.agent import AgentSpec
from agentq.errors import ErrorInfo, LeaseLost
from agentq.messages import ToolResult
from agentq.results import to_text
from agentq.run import Snapshot
from agentq.saving import Saver
from agentq.services import Services
from agentq.steps.base import call_hooks, context
from agentq.steps.tool_batch import CallDone
from agentq.storage import children, control, queries
from agentq.storage.rows import CallRef
from agentq.storage.steps import NewEvent
from agentq.transition import Cancelled, Decided, decide

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
            left = control.decide_approval(
                connection, snapshot, call_id, approved=approved, decided_by=decided_by, reason=reason
            )
            control.note(connection, run_id, NewEvent("approval.decided", data))
            if left > 0:
                return
            snapshot, _ = control.lock(connection, run_id)
            transition = decide(snapshot, Decided())
            wake_ups = self.saver.apply(connection, transition, None, [])
        self.saver.send(wake_ups)
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

    def after(self, snapshot: Snapshot) -> None:
        """What a run's end brings with it: its children end, the parent's call is answered, the hooks hear of it."""
        if not snapshot.is_terminal:
            return
        if snapshot.status != "completed":
            with self.services.database.autocommit() as connection:
                below = control.open_children(connection, snapshot.run_id)
            for child in below:
                self.cancel(child)
        if snapshot.depth > 0:
            self.tell_parent(snapshot.run_id)
        agent: AgentSpec | None = self.services.agents.get(snapshot.agent)
        if agent is not None:
            call_hooks(agent, lambda hook: hook.on_end(context(snapshot), snapshot.status), [])

    def tell_parent(self, child_run_id: str) -> None:
        """Answer the call that a finished child run was made for; once, however often it is said."""
        with self.services.database.autocommit() as connection:
            child = children.ended(connection, child_run_id)
            if child is None:
                return
            run = queries.run(connection, child_run_id)
            call_id, tool = children.call(connection, child.parent)
        result = _answer(call_id, tool, run.error, run.output if run.output is not None else run.text or "")
        self._answer_call(child.parent, result)
        with self.services.database.autocommit() as connection:
            children.told(connection, child_run_id)

    def _answer_call(self, ref: CallRef, result: ToolResult) -> None:
        try:
            end, parent = self.saver.finish_call(ref, CallDone(result), None, {"worker": self.services.worker})
        except LeaseLost as lost:
            logger.info("%s", lost)
            return
        self.saver.send(end.wake_ups)
        self.after(parent)


def _answer(call_id: str, tool: str, error: ErrorInfo | None, value: Any) -> ToolResult:
    if error is None:
        return ToolResult(call_id=call_id, name=tool, text=to_text(value))
    text = to_text(f"The agent failed ({error.code}): {error.message}")
    return ToolResult(call_id=call_id, name=tool, status="error", code=error.code, text=text)
