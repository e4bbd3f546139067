"""The words of a conversation, the same for every provider: messages, tool calls, their results, and usage."""

import json
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from agentq.content import File, Image, Media, split
from agentq.text import clean


class Value(BaseModel):
    """A frozen value that is stored as JSON; unknown keys of newer releases are kept out, not refused."""

    model_config = ConfigDict(frozen=True)


class Usage(Value):
    """Tokens and cost of one or many model calls. ``None`` means that nobody said, which is not zero.

    Input has in it what came from or went into the provider's cache, output the reasoning. ``known_cost`` is in US
    dollars, of the calls whose cost is known; ``unpriced`` says that there were others beside them.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    known_cost: Decimal | None = None
    unpriced: bool | None = None

    def __add__(self, other: "Usage") -> "Usage":
        both = {name: _add(getattr(self, name), getattr(other, name)) for name in Usage.model_fields}
        is_part = self._has_price_beside(other) or other._has_price_beside(self)
        return Usage(**both | {"unpriced": self.unpriced or other.unpriced or is_part or None})

    def _has_price_beside(self, other: "Usage") -> bool:
        """Whether this has a cost, and the other one has calls without."""
        has_calls = other.input_tokens is not None or other.output_tokens is not None
        return self.known_cost is not None and other.known_cost is None and has_calls

    @property
    def cost(self) -> Decimal | None:
        """US dollars; None as soon as one of the calls is of unknown cost, and before the first."""
        return None if self.unpriced else self.known_cost

    @property
    def total(self) -> int:
        """Input plus output, counting what is unknown as nothing."""
        return (self.input_tokens or 0) + (self.output_tokens or 0)


def _add(left: Any, right: Any) -> Any:
    return left if right is None else right if left is None else left + right


class ToolCall(Value):
    """What the model asked for. ``arguments`` is the JSON text exactly as it came."""

    id: str
    name: str
    arguments: str

    _clean = field_validator("id", "name", "arguments")(clean)


class Reasoning(Value):
    """A provider's own block (thinking, signature): goes back unchanged to the model that made it, and to no other."""

    provider: str
    model: str
    data: dict[str, Any]

    _clean = field_validator("provider", "model")(clean)

    @field_validator("data")
    @classmethod
    def _storable(cls, data: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(data, ensure_ascii=False)
        return data if text == (cleaned := clean(text)) else dict(json.loads(cleaned))


Stop = Literal["final", "tool_calls", "length", "blocked"]


class UserMessage(Value):
    """What a user said; ``media`` are the images and files that belong to it, each with its place in the text."""

    role: Literal["user"] = "user"
    text: str
    media: tuple[Media, ...] = ()

    _clean = field_validator("text")(clean)

    @property
    def parts(self) -> list[str | Image | File]:
        """Texts, images and files in order."""
        return split(self.text, self.media)


class AssistantMessage(Value):
    """One reply of a model. ``stop`` says why it ended; ``provider`` and ``model`` say who answered."""

    role: Literal["assistant"] = "assistant"
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: tuple[Reasoning, ...] = ()
    stop: Stop = "final"
    provider: str = ""
    model: str = ""

    _clean = field_validator("text", "provider", "model")(clean)


ResultStatus = Literal["success", "error", "rejected"]


class ToolResult(Value):
    """What one call came back as. ``code`` names the kind of error; ``text`` is what the model sees, never empty.

    ``media`` are the images and files that the tool returned, each with its place in the text.
    """

    call_id: str
    name: str
    status: ResultStatus = "success"
    code: str | None = None
    text: str
    media: tuple[Media, ...] = ()

    _clean = field_validator("text")(clean)

    @property
    def parts(self) -> list[str | Image | File]:
        """Texts, images and files in order."""
        return split(self.text, self.media)

    @classmethod
    def error(cls, call: ToolCall, code: str, text: str) -> Self:
        return cls(call_id=call.id, name=call.name, status="error", code=code, text=text)


class ToolMessage(Value):
    role: Literal["tool"] = "tool"
    result: ToolResult


Message = Annotated[UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


def media_of(message: Message) -> tuple[Image | File, ...]:
    """The images and files that belong to a message."""
    match message:
        case UserMessage():
            return message.media
        case ToolMessage(result=result):
            return result.media
        case _:
            return ()


def with_media(message: Message, media: tuple[Image | File, ...]) -> Message:
    """The message with others in their place."""
    if isinstance(message, ToolMessage):
        return ToolMessage(result=message.result.model_copy(update={"media": media}))
    return message.model_copy(update={"media": media})


_MESSAGE: TypeAdapter[Message] = TypeAdapter(Message)
_PLACED: TypeAdapter[list[tuple[int, Message]]] = TypeAdapter(list[tuple[int, Message]])


def dump_message(message: Message) -> str:
    """JSON text without what is as usual; the role, which is as usual in each of them, tells them apart."""
    rest = message.model_dump_json(exclude_defaults=True)[1:]
    return f'{{"role":"{message.role}"{"," if rest != "}" else ""}{rest}'


def load_message(payload: str) -> Message:
    return _MESSAGE.validate_json(payload)


def load_user_message(payload: str) -> UserMessage:
    return UserMessage.model_validate_json(payload)


def load_messages(payload: str) -> list[tuple[int, Message]]:
    """Messages with their places, from ``[[place, message], …]``."""
    return _PLACED.validate_json(payload)
