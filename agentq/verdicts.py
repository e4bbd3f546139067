"""A person's decision as it is stored, and what the model is told of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from agentq.agent import TASK, AgentSpec
from agentq.approvals import Approve, Complete, Decision, Fail, Reject, Respond, Settle
from agentq.arguments import ArgumentsError, Parameters
from agentq.errors import InputError
from agentq.inputs import json_object, shown_reason
from agentq.messages import ToolResult
from agentq.results import given_json, to_text
from agentq.run import Approval, ApprovalKind, ApprovalStatus, OpenCall
from agentq.steps.review import reject
from agentq.steps.tool_batch import interrupted
from agentq.storage.approvals import Answer


@dataclass(frozen=True)
class Verdict:
    """What was decided of one call. ``text`` is what the model gets in the place of the tool's result."""

    call_id: str
    kind: ApprovalKind
    answer: Answer
    text: str | None = None

    @classmethod
    def of(cls, call_id: str, decision: Decision, decided_by: str) -> "Verdict":
        """Raises InputError for what cannot be stored."""

        def verdict(status: ApprovalStatus, text: str | None = None, **more: Any) -> "Verdict":
            return cls(
                call_id, _kind(decision), Answer(status, decided_by, shown_reason(decision.reason), **more), text
            )

        match decision:
            case Approve():
                changed = None if decision.arguments is None else json_object("arguments", decision.arguments)
                edited = None if changed is None else json.dumps(changed, ensure_ascii=False)
                return verdict("approved", edited=edited, sticky=decision.sticky)
            case Reject():
                return verdict("rejected", sticky=decision.sticky)
            case Respond():
                return verdict("responded", _as_text(decision.result))
            case Settle(happened=True):
                lost = "The tool took effect; its result was lost with its worker."
                return verdict("happened", lost if decision.result is None else _as_text(decision.result))
            case Complete():
                return verdict("completed", _as_text(decision.result))
            case Fail():
                return verdict("failed", shown_reason(decision.message) or "the tool failed")
            case Settle():
                return verdict("unknown" if decision.happened is None else "not_happened")
            case _:
                assert_never(decision)

    @property
    def told(self) -> dict[str, Any]:
        """For the event, which does not say to what arguments were changed, or why."""
        data = {"call_id": self.call_id, "decision": self.answer.status, "by": self.answer.decided_by}
        sticky = {"sticky": True} if self.answer.sticky else {}
        return data | sticky | ({"edited": True} if self.answer.edited is not None else {})

    def result(self, call: OpenCall) -> ToolResult | None:
        """What the model is told in the place of what the tool would have returned; None where it runs."""
        match self.answer.status:
            case "approved" | "not_happened":
                return None
            case "rejected":
                return reject(call, self.answer.reason)
            case "unknown":
                lost = interrupted(call)
                said = f"{lost.text} A person adds: {self.answer.reason}" if self.answer.reason else lost.text
                return lost.model_copy(update={"text": said})
            case "failed":
                return ToolResult(
                    call_id=call.call_id, name=call.tool, status="error", code="tool_error", text=self.text or ""
                )
            case _:
                return ToolResult(call_id=call.call_id, name=call.tool, text=self.text or "null")


def _kind(decision: Decision) -> ApprovalKind:
    match decision:
        case Settle():
            return "outcome"
        case Complete() | Fail():
            return "deferred"
        case _:
            return "approval"


def check_arguments(agent: AgentSpec | None, approval: Approval, changed: Mapping[str, Any]) -> None:
    """Raises InputError where the tool would not take them; a process without the agent leaves that to a worker."""
    found = agent.tools.get(approval.tool) if agent else None
    if found is not None:
        _check_fit(found.parameters, approval, json.dumps(json_object("arguments", changed)))


def check_task(call: OpenCall, answer: Answer) -> None:
    """The same for a call of a sub-agent, in any process: what is handed to them has one form."""
    if call.kind == "agent" and answer.edited is not None:
        _check_fit(TASK, call, answer.edited)


def _check_fit(parameters: Parameters, call: Approval | OpenCall, changed: str) -> None:
    try:
        parameters.parse(changed)
    except ArgumentsError as error:
        listed = str(error).replace("\n", "; ")
        raise InputError(f"call {call.call_id!r}: the changed arguments do not fit {call.tool}: {listed}") from error


def _as_text(result: Any) -> str:
    try:
        return to_text(given_json(result))
    except TypeError as error:
        raise InputError(f"the result has no JSON form: {error}") from error


def expired(call: OpenCall) -> ToolResult:
    """The result of a call on which nobody has decided in time, or that nobody has completed."""
    text = "Not run: it needs a person's approval, and nobody decided in time."
    if call.begun:
        text = "It was handed to others, and no result came back in time: it may or may not have taken effect."
    return ToolResult(call_id=call.call_id, name=call.tool, status="error", code="expired", text=text)
