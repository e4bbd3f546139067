"""Hooks: user code beside the loop that may watch a run, or end it."""

from collections.abc import Iterable
from typing import Any, Literal, get_args

from agentq.context import RunContext
from agentq.messages import AssistantMessage, ToolCall, ToolResult
from agentq.results import to_json


class EndRun(Exception):
    """Raise it in a hook to end the run now with ``output``; the stop reason is ``hook_end``.

    ``output`` is kept as JSON, by the rules for what tools return. Raises TypeError for a value without a JSON form.
    """

    def __init__(self, output: Any = None) -> None:
        super().__init__("a hook ended the run")
        self.output = to_json(output)


class Hooks:
    """Override what you need. Hooks run in workers and may run again after a crash; any exception but EndRun is
    recorded as an event and changes nothing."""

    def before_model(self, ctx: RunContext) -> None:
        """Before each model call, in the recall step."""

    def after_model(self, ctx: RunContext, reply: AssistantMessage) -> None:
        """After each reply, before its calls are looked at."""

    def before_tool(self, ctx: RunContext, call: ToolCall) -> None:
        """Before a tool runs; ``ctx.call_id`` says which call."""

    def after_tool(self, ctx: RunContext, result: ToolResult) -> None:
        """After a tool came back, with what the model will see."""

    def on_end(self, ctx: RunContext, status: str) -> None:
        """After the run has ended, in a thread of its own: at most once for each ending; a crash may lose it."""


Moment = Literal["before_model", "after_model", "before_tool", "after_tool", "on_end"]


def by_moment(hooks: Iterable[Hooks]) -> dict[Moment, tuple[Hooks, ...]]:
    """Those of the hooks that have something to do at each moment."""
    given = tuple(hooks)
    return {moment: tuple(hook for hook in given if _is_overridden(hook, moment)) for moment in get_args(Moment)}


def _is_overridden(hook: Hooks, moment: Moment) -> bool:
    return getattr(getattr(hook, moment), "__func__", None) is not getattr(Hooks, moment)
