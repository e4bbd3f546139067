"""What a model may call, said once for every provider: the settings ``tool_choice`` and ``parallel_tool_calls``."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentq.errors import ProviderError
from agentq.messages import AssistantMessage, UserMessage
from agentq.output import OUTPUT_TOOL
from agentq.providers.base import ModelRequest

Mode = Literal["auto", "none", "required", "tool"]


@dataclass(frozen=True)
class Choice:
    """``mode`` None is the provider's own default, or ``other``, an object that is known to one provider only.

    ``name`` is the tool that the mode ``"tool"`` stands for.
    """

    mode: Mode | None = None
    name: str = ""
    other: Mapping[str, Any] | None = None
    parallel: bool | None = None


def tool_choice(request: ModelRequest) -> Choice | None:
    """What the settings of a request say; None without tools, for then it is refused to say anything.

    They may say it as ``"auto"``, ``"none"``, ``"required"`` (or ``"any"``) or a tool's name, or as the objects of
    OpenAI or Anthropic. A choice that forces a call holds until the model has made one for the user's message, and is
    ``auto`` then: otherwise it could never give its answer. Where the answer is a tool itself, ``"required"`` stays.
    Raises ProviderError for a name that is no tool's.
    """
    names = {tool.name for tool in request.tools} | _own_tools(request)
    if not names:
        return None
    choice = _read(request.settings.get("tool_choice"))
    if isinstance(parallel := request.settings.get("parallel_tool_calls"), bool):
        choice = replace(choice, parallel=parallel)
    is_answer = choice.mode == "required" and OUTPUT_TOOL in names
    if choice.mode in ("required", "tool") and not is_answer and _has_called(request):
        return Choice("auto", parallel=choice.parallel)
    if choice.mode == "tool" and choice.name not in names:
        listed = ", ".join(sorted(names))
        raise ProviderError("request_rejected", f"tool_choice is {choice.name!r}, which is no tool; there are {listed}")
    return choice


def _read(given: Any) -> Choice:
    match given:
        case "auto" | "none" | "required":
            return Choice(given)
        case "any":
            return Choice("required")
        case str() if given:
            return Choice("tool", given)
        case {"type": "auto" | "any" | "none" as kind, **rest}:
            return replace(_read(kind), parallel=_parallel(rest))
        case {"type": "tool", "name": str(name), **rest}:
            return Choice("tool", name, parallel=_parallel(rest))
        case {"type": "function", "name": str(name)} | {"type": "function", "function": {"name": str(name)}}:
            return Choice("tool", name)
        case Mapping():
            return Choice(other=given)
        case _:
            return Choice()


def _parallel(given: Mapping[Any, Any]) -> bool | None:
    return False if given.get("disable_parallel_tool_use") else None


def _own_tools(request: ModelRequest) -> set[str]:
    """The names of the provider's own tools, which are given as a setting."""
    given = request.settings.get("tools")
    tools = given if isinstance(given, list) else []
    return {str(tool.get("name") or tool.get("type")) for tool in tools if isinstance(tool, Mapping)}


def _has_called(request: ModelRequest) -> bool:
    """Whether there has been a call since the user's last message."""
    for message in reversed(request.messages):
        if isinstance(message, UserMessage):
            return False
        if isinstance(message, AssistantMessage) and message.calls:
            return True
    return False
