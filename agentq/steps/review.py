"""Review: which calls of the turn wait for a person before any of them runs."""

from agentq.agent import AgentSpec
from agentq.messages import ToolResult
from agentq.outcomes import Reviewed
from agentq.run import OpenCall, Snapshot
from agentq.services import Services
from agentq.steps.base import Done
from agentq.storage import approvals
from agentq.storage.approvals import Question


def review(snapshot: Snapshot, agent: AgentSpec, services: Services) -> Done:
    """Put every call that needs approval before a person, unless a decision for the rest of the run stands for it."""
    with services.database.autocommit() as connection:
        reply, standing = approvals.under_review(connection, snapshot.run_id)
    gated = tuple(call for call in snapshot.pending if call.needs_approval)
    answered = tuple(call for call in gated if call.tool in standing)
    questions = {call.index: _question(call, agent, reply.calls[call.index].arguments, standing) for call in gated}
    rejected = [call for call in answered if standing[call.tool].status == "rejected"]
    asked = tuple(call for call in gated if call not in answered)
    data = {"waiting_for": [call.tool for call in asked]} if asked else {}
    data |= {"answered": [call.tool for call in answered]} if answered else {}
    results = tuple((call.index, reject(call, standing[call.tool].reason)) for call in rejected)
    outcome = Reviewed(_indexes(asked), _indexes(answered), results)
    return Done(outcome, data, questions)


def _indexes(calls: tuple[OpenCall, ...]) -> tuple[int, ...]:
    return tuple(call.index for call in calls)


def _question(call: OpenCall, agent: AgentSpec, arguments: str, standing: dict[str, approvals.Answer]) -> Question:
    rule = agent.approve.get(call.tool)
    if call.tool in standing or rule is None:
        return Question(arguments, answer=standing.get(call.tool))
    return Question(arguments, deadline_secs=rule.deadline_secs, on_expiry=rule.on_expiry)


def reject(call: OpenCall, reason: str | None) -> ToolResult:
    """The result of a call that a person does not let run."""
    why = f"A person rejected this call: {reason}" if reason else "A person rejected this call."
    return ToolResult(call_id=call.call_id, name=call.tool, status="rejected", code="rejected", text=why)
