"""Tools: Python functions that a model may call, with the promises the engine needs to run them safely."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, overload

from agentq.arguments import Parameters, unwrapped
from agentq.context import RunContext
from agentq.errors import ConfigError
from agentq.limits import is_duration
from agentq.run import OnUnknown
from agentq.text import clean
from agentq.unknown import Probe, Rule, checked_rule
from agentq.wire import STEP_QUEUE

# Safe at every provider: OpenAI and Anthropic refuse other characters, Gemini a leading digit.
NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
_QUEUE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")


@dataclass(frozen=True)
class Tool:
    """A function with its name, description and parameters, made by :func:`tool`; calling it calls the function.

    ``timeout`` is in seconds (None: the run's ``tool_timeout_secs``); ``queue`` routes it to other workers;
    ``on_unknown`` says what becomes of a call whose worker was lost, ``probe`` asks the destination then; ``inline``
    lets it run where the steps run.
    """

    name: str
    description: str
    function: Callable[..., Any]
    parameters: Parameters
    timeout: float | None = None
    queue: str | None = None
    on_unknown: OnUnknown = "report"
    probe: Probe | None = field(default=None, repr=False)
    inline: bool = False
    # The agent behind ``Agent.as_tool()``; typed loosely because agents are built of tools.
    agent: Any = field(default=None, repr=False)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def schema(self) -> dict[str, Any]:
        return self.parameters.schema

    def bind(self, arguments: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
        name = self.parameters.context_name
        return arguments | {name: ctx} if name else arguments


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    queue: str | None = None,
    idempotent: bool = False,
    on_unknown: Rule | Callable[..., Any] | None = None,
    inline: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    queue: str | None = None,
    idempotent: bool = False,
    on_unknown: Rule | Callable[..., Any] | None = None,
    inline: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function, sync or async: the schema comes from its signature, the description from its docs.

    A parameter annotated with RunContext gets the context and is not shown to the model.

    ``on_unknown`` is what becomes of a call whose worker was lost while it ran, so that nobody knows if it took effect:
    ``"report"`` (the default) tells the model so (``interrupted``) and does not run it again; ``"retry"`` runs it again
    with the same ``ctx.idempotency_key``, which ``idempotent=True`` says as well; ``"ask"`` asks a person, among the
    approvals, and the run waits; a function asks the destination: it is called with those of the tool's arguments that
    it names and the context, within the tool's time limit, and returns ``Happened(result)`` or ``NotHappened()`` (the
    tool runs again); whatever else it does counts as ``"report"``.

    ``inline=True`` is for what is quick and trusted, such as a look into a cache: it runs in the process that called
    the model, with no message to a tool process and back. That process does other runs' steps in other threads: a sync
    function that hangs there cannot be stopped, and one that kills its process takes their steps along (they are done
    again, by the same rules as ever).

    Raises ConfigError for a name that providers refuse, a parameter without a JSON schema, a default that is not JSON,
    an ``on_unknown`` that contradicts ``idempotent``, or a ``queue`` beside ``inline``.
    """

    def build(wrapped: Callable[..., Any]) -> Tool:
        _check_function(wrapped)
        inner = unwrapped(wrapped)
        title = inner.__name__ if name is None else name
        if title == "__call__":
            raise ConfigError(f"a tool made of an object needs a name: tool(name=...)({type(wrapped).__name__} object)")
        check_name("tool", title)
        check_options(title, timeout, queue, inline=inline)
        parameters = Parameters(wrapped, title)
        rule, probe = checked_rule(title, on_unknown, parameters, idempotent=idempotent)
        return Tool(
            name=title,
            description=clean(inspect.getdoc(inner) or "" if description is None else description),
            function=wrapped,
            parameters=parameters,
            timeout=timeout,
            queue=STEP_QUEUE if inline else queue,
            on_unknown=rule,
            probe=probe,
            inline=inline,
        )

    return build if function is None else build(function)


def _check_function(given: object) -> None:
    if not callable(given) or isinstance(given, type | Tool):
        raise ConfigError(f"a tool is made of a function, not of {given!r}")


def check_options(tool_name: str, timeout: object, queue: object, *, inline: object) -> None:
    """Raises ConfigError for options that contradict each other or are none."""
    if timeout is not None and not is_duration(timeout):
        raise ConfigError(f"tool {tool_name!r}: timeout must be a positive number of seconds, not {timeout!r}")
    if queue is not None and not (isinstance(queue, str) and _QUEUE.fullmatch(queue)):
        raise ConfigError(f"tool {tool_name!r}: queue {queue!r}: use letters, digits, '.', '-' and '_'")
    if not isinstance(inline, bool):
        raise ConfigError(f"tool {tool_name!r}: inline must be True or False, not {inline!r}")
    if inline and queue is not None:
        raise ConfigError(f"tool {tool_name!r}: inline runs it with the steps, so it has no queue of its own")


def check_name(kind: str, name: object) -> None:
    """Raises ConfigError when ``name`` is not one that every provider takes."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(
            f"{kind} {name!r}: use letters, digits, _ and -, at most 64, not starting with a digit",
            name=name,
        )
