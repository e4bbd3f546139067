"""Short words for the state machine's tests: snapshots, replies and results as one would say them."""

from dataclasses import replace
from typing import Any

from agentq.errors import ErrorInfo
from agentq.messages import AssistantMessage, Stop, ToolCall, ToolResult, Usage
from agentq.outcomes import ModelFailed, Output, PlannedCall, Replied, Transition
from agentq.run import Progress, Snapshot


def fresh(**changes: Any) -> Snapshot:
    """A run whose first message is stored and whose model call is due; keywords of Progress go there."""
    progress = {name: changes.pop(name) for name in list(changes) if name in Progress.__dataclass_fields__}
    values: dict[str, Any] = {"phase": "model", "status": "running", "message_count": 1} | changes
    return Snapshot(run_id="run_1", agent="test", progress=Progress(**progress), **values)


def answer(text: str = "done", *, stop: Stop = "final", output: Output | None = None, **usage: int) -> Replied:
    return Replied(AssistantMessage(text=text, stop=stop), Usage(**usage), output=output)


def asks(*calls: PlannedCall, text: str = "", output: Output | None = None, **usage: int) -> Replied:
    message = AssistantMessage(
        text=text,
        calls=tuple(ToolCall(id=call.call_id, name=call.tool, arguments="{}") for call in calls),
        stop="tool_calls",
    )
    return Replied(message, Usage(**usage), calls, output)


def call(call_id: str, tool: str = "act", **more: Any) -> PlannedCall:
    return PlannedCall(call_id=call_id, tool=tool, **more)


def calls(count: int, **more: Any) -> tuple[PlannedCall, ...]:
    return tuple(call(f"c{i}", **more) for i in range(count))


def bad(call_id: str, code: str = "unknown_tool") -> PlannedCall:
    """A call that cannot run."""
    result = ToolResult(call_id=call_id, name="act", status="error", code=code, text="no")
    return PlannedCall(call_id=call_id, tool="act", result=result)


def result(call_id: str, text: str = "fine", **more: Any) -> ToolResult:
    return ToolResult(call_id=call_id, name="act", text=text, **more)


def failure(code: str = "provider_overloaded", *, models: int = 1, **more: Any) -> ModelFailed:
    values: dict[str, Any] = {"retryable": True, "retry_after": None, "jitter": 0.0} | more
    return ModelFailed(ErrorInfo(code=code, message="it failed"), models=models, **values)


def waiting(transition: Transition) -> Snapshot:
    return replace(transition.snapshot, status="waiting")


def roles(transition: Transition) -> list[str]:
    return [message.role for _, message in sorted(transition.messages)]


def codes(transition: Transition) -> dict[int, str]:
    """The code of every call that came back, by index."""
    return {index: result.code or result.status for index, result in transition.closed}


def error_code(transition: Transition) -> str | None:
    return transition.ending.error.code if transition.ending and transition.ending.error else None
