"""Hooks: user code beside the loop that may watch a run, change what passes, or end the run."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from agentq.context import RunContext
from agentq.messages import AssistantMessage, Message, ToolCall, ToolResult
from agentq.results import to_json


class EndRun(Exception):
    """Raise it in a hook to end the run now with ``output``; the stop reason is ``hook_end``.

    ``output`` is kept as JSON, by the rules for what tools return. Raises TypeError for a value without a JSON form.
    """

    def __init__(self, output: Any = None) -> None:
        super().__init__("a hook ended the run")
        self.output = to_json(output)


@dataclass(frozen=True)
class ModelView:
    """What the model is about to be given, in this call only: the stored transcript stays as it is.

    Return ``dataclasses.replace(view, …)`` from ``before_model`` to change it. ``messages`` begin with a UserMessage,
    and each reply's calls are followed by their results; ``tools`` are names, of which some may be left out;
    ``model`` is "provider:model", for information.
    """

    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    model: str


class Hooks:
    """Override what you need, with sync or async methods. Hooks run in workers, in the order given to the agent.

    One that returns None changes nothing; what else it returns takes the place of what passed, for the hooks after it
    as well. A hook may run again after a crash, before a tool or a model's reply is saved, never because of a fault.

    One that fails (it raises anything but EndRun, takes longer than the agent's ``hook_timeout_secs``, or returns what
    it may not) is noted in the run's events and changes nothing. With ``required = True`` it is a guard: the run ends
    with the code ``hook_failed`` instead, and the reply or the result that it was to see is not kept.
    """

    required: bool = False

    def before_model(self, ctx: RunContext, view: ModelView) -> ModelView | None:
        """Before each model call, tries again and fallbacks included. It may also be written without ``view``."""

    def after_model(self, ctx: RunContext, reply: AssistantMessage) -> AssistantMessage | None:
        """After each reply, before its calls are looked at.

        A changed reply may have another text, fewer calls, or calls with other arguments, and no ``reasoning`` where
        it has no call; all else stays as the model gave it.
        """

    def before_tool(self, ctx: RunContext, call: ToolCall) -> Mapping[str, Any] | ToolResult | None:
        """Before a tool runs; ``ctx.call_id`` says which call.

        A mapping takes the place of the arguments: where it does not fit the tool, or a person has approved others, the
        call fails with ``invalid_arguments``. A ToolResult is the call's result, and the tool is not run.
        """

    def after_tool(self, ctx: RunContext, result: ToolResult) -> ToolResult | None:
        """After a tool came back, with what the model will see; a changed result is what is stored."""

    def on_end(self, ctx: RunContext, status: str) -> None:
        """After the run has ended, in a thread of its own; once, or once more where its process died meanwhile."""


Moment = Literal["before_model", "after_model", "before_tool", "after_tool", "on_end"]


@dataclass(frozen=True)
class Listener:
    """One hook at one moment; ``call`` is given the context and what passes."""

    name: str
    required: bool
    call: Callable[..., Any]


def by_moment(hooks: Iterable[Hooks]) -> dict[Moment, tuple[Listener, ...]]:
    """Those of the hooks that have something to do at each moment."""
    given = tuple(hooks)
    return {
        moment: tuple(_listener(hook, moment) for hook in given if _is_overridden(hook, moment))
        for moment in get_args(Moment)
    }


def _is_overridden(hook: Hooks, moment: Moment) -> bool:
    return getattr(getattr(hook, moment), "__func__", None) is not getattr(Hooks, moment)


def _listener(hook: Hooks, moment: Moment) -> Listener:
    method = getattr(hook, moment)
    takes_all = moment != "before_model" or _takes(method, 2)
    return Listener(type(hook).__name__, bool(hook.required), method if takes_all else lambda ctx, _: method(ctx))


def _takes(method: Callable[..., Any], arguments: int) -> bool:
    try:
        inspect.signature(method).bind(*[None] * arguments)
    except (TypeError, ValueError):
        return False
    return True
