"""The port to a model: what a step asks for, what it gets, and the one method a provider has."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentq.messages import AssistantMessage, Message, Usage


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model sees it. ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class ModelRequest:
    """One model call in neutral words. ``settings`` go out as they are (temperature, max_tokens, …); none is invented.

    ``timeout_secs`` bounds the whole call, connecting and reading included.
    """

    model: str
    instructions: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    timeout_secs: float = 600.0


@dataclass(frozen=True)
class ModelReply:
    """What came back: the message to keep, and what it cost."""

    message: AssistantMessage
    usage: Usage


class Provider(Protocol):
    """Anything that can answer a ModelRequest. Raises ProviderError and nothing else for faults of the model's side."""

    @property
    def name(self) -> str: ...

    def complete(self, request: ModelRequest) -> ModelReply: ...
