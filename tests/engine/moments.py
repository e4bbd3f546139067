"""A hook that does one thing at one moment, for tests of what hooks may do to a run."""

from collections.abc import Callable

from agentq import AssistantMessage, Hooks, RunContext, ToolCall, ToolResult
from agentq.hooks import ModelView


class Does(Hooks):
    """At one moment what it was given."""

    def __init__(self, moment: str, does: Callable[[], object]) -> None:
        self._moment, self._does = moment, does

    def _at(self, moment: str) -> None:
        if moment == self._moment:
            self._does()

    def before_model(self, ctx: RunContext, view: ModelView) -> None:
        self._at("before_model")

    def after_model(self, ctx: RunContext, reply: AssistantMessage) -> None:
        self._at("after_model")

    def before_tool(self, ctx: RunContext, call: ToolCall) -> None:
        self._at("before_tool")

    def after_tool(self, ctx: RunContext, result: ToolResult) -> None:
        self._at("after_tool")
