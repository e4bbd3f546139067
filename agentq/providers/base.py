"""The port to a model: what a step asks for, what it gets, and the one method a provider has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from agentq.messages import AssistantMessage, Message, Usage


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model sees it. ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class OutputFormat:
    """The form of the final answer, for a provider that has a mode for that; ``strict``: it holds the model to it."""

    schema: dict[str, Any]
    strict: bool = True


@dataclass(frozen=True)
class Delta:
    """A piece of a reply that is still being written: to be shown, never to be acted upon.

    ``kind`` says of what: the text, the reasoning, or the arguments of call number ``call`` (from 0) of tool ``name``.
    """

    kind: Literal["text", "reasoning", "arguments"]
    text: str
    call: int | None = None
    name: str | None = None


@dataclass(frozen=True)
class ModelRequest:
    """One model call in neutral words. Images and files in ``messages`` have their bytes, those known by a URL none.
    ``settings`` go out as they are (temperature, max_tokens, …); none is invented.

    ``output`` is what the provider's own ``output_format`` gave. ``timeout_secs`` bounds the whole call, connecting and
    reading included. ``on_delta`` is told of the reply as it is written, by a provider that can stream; it returns at
    once and raises nothing.
    """

    model: str
    instructions: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    output: OutputFormat | None = None
    timeout_secs: float = 600.0
    on_delta: Callable[[Delta], None] | None = None


@dataclass(frozen=True)
class ModelReply:
    """What came back: the message to keep, and what it cost."""

    message: AssistantMessage
    usage: Usage


class Provider(Protocol):
    """Anything that can answer a ModelRequest. Raises ProviderError and nothing else for faults of the model's side.

    One with a mode of its own for structured answers says so with ``output_format``, see HasOutputFormat; to any other
    the final answer is a tool. Who shares a rate limit with whom is told by ``account``, see HasAccount.
    """

    @property
    def name(self) -> str: ...

    def complete(self, request: ModelRequest) -> ModelReply: ...


class HasAccount(Protocol):
    """A provider that says what its calls are counted by, for the limits of its service."""

    def account(self) -> str | None:
        """A text that is the same for all who share a limit, in every process, and holds no key: see ``account_id``.

        None where nobody is to wait for the refusals that others got.
        """
        ...


@runtime_checkable
class HasOutputFormat(Protocol):
    """A provider that can hold a model to the schema of a final answer."""

    def output_format(self, schema: dict[str, Any], *, forced: bool) -> OutputFormat | None:
        """The schema, of type object, as this mode takes it; None where it cannot, so that a tool is used.

        ``forced``: the user wants this mode, also where it is not known to hold the model to all of the schema.
        """
        ...
