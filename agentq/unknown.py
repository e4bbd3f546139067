"""What becomes of a call whose worker was lost while it ran: a tool's rule for it, and what a probe may answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from agentq.arguments import Parameters
from agentq.context import RunContext
from agentq.errors import ConfigError
from agentq.run import OnUnknown

Rule = Literal["retry", "report", "ask"]


@dataclass(frozen=True)
class Happened:
    """A probe's answer: the call took effect. ``result`` is what the model gets, as if the tool had returned it."""

    result: Any = None


@dataclass(frozen=True)
class NotHappened:
    """A probe's answer: nothing took effect, so the tool runs again, with the same idempotency key."""


@dataclass(frozen=True)
class Probe:
    """A function that asks the destination; it gets the arguments of the tool that it names, and the context."""

    function: Callable[..., Any]
    parameters: Parameters

    def bind(self, arguments: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
        """Keyword arguments for the function, of those of the tool."""
        name = self.parameters.context_name
        wanted = {key: value for key, value in arguments.items() if key in self.parameters.names}
        return wanted | {name: ctx} if name else wanted


def checked_rule(
    tool_name: str, given: object, parameters: Parameters, *, idempotent: object
) -> tuple[OnUnknown, Probe | None]:
    """The rule to store and the probe, from a tool's ``on_unknown`` and ``idempotent``. Raises ConfigError."""
    if not isinstance(idempotent, bool):
        raise ConfigError(f"tool {tool_name!r}: idempotent is True or False, not {idempotent!r}")
    if given is None:
        return ("retry" if idempotent else "report"), None
    if idempotent and given != "retry":
        raise ConfigError(
            f"tool {tool_name!r}: idempotent=True says that a call whose outcome is unknown runs again, and on_unknown "
            "says something else; leave out one of them"
        )
    if given in ("retry", "report", "ask"):
        return given, None
    if callable(given) and not isinstance(given, type):
        return "probe", _probe(tool_name, given, parameters)
    raise ConfigError(f"tool {tool_name!r}: on_unknown is 'retry', 'report', 'ask' or a function, not {given!r}")


def _probe(tool_name: str, function: Callable[..., Any], parameters: Parameters) -> Probe:
    found = Parameters(function, tool_name)
    for name in found.names:
        if name not in parameters.names:
            known = ", ".join(parameters.names) or "none"
            raise ConfigError(
                f"tool {tool_name!r}: its on_unknown function asks for {name!r}; it may name parameters of the tool "
                f"({known}), and one annotated with RunContext"
            )
    return Probe(function, found)
