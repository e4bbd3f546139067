"""The events of a streamed Messages answer put together to the document that it would be unstreamed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from agentq.errors import ProviderError
from agentq.providers.base import Delta
from agentq.providers.transcript import arguments_object

# The field of the block that grows, and how that is shown.
_GROWS: dict[str, tuple[str, Literal["text", "reasoning"] | None]] = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "reasoning"),
    "signature_delta": ("signature", None),
}


def read_stream(
    events: Iterable[tuple[str, Mapping[str, Any]]], provider: str, on_delta: Callable[[Delta], None]
) -> dict[str, Any]:
    """The document. Raises ProviderError ``network`` for a stream that ends before its ``message_stop``."""
    whole = _Whole(on_delta)
    for name, event in events:
        if name == "document":
            return dict(event)
        # The name is in the event too, and some proxies leave the line with it out.
        match event.get("type") or name:
            case "message_start":
                whole.start(event)
            case "content_block_start":
                whole.open_block(event)
            case "content_block_delta":
                whole.grow_block(event)
            case "message_delta":
                whole.update(event)
            case "message_stop":
                return whole.document()
    raise ProviderError("network", f"the stream of {provider} ended in the middle of its reply")


class _Whole:
    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._on_delta = on_delta
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}

    def start(self, event: Mapping[str, Any]) -> None:
        # A second one, of a proxy that has tried again, takes back what came before it.
        self._message, self._blocks, self._inputs = dict(_dict(event.get("message"))), {}, {}

    def open_block(self, event: Mapping[str, Any]) -> None:
        block = dict(_dict(event.get("content_block")))
        self._blocks[_index(event)] = block
        if block.get("type") == "text" and (piece := _text(block.get("text"))):
            self._on_delta(Delta("text", piece))

    def grow_block(self, event: Mapping[str, Any]) -> None:
        index, delta = _index(event), _dict(event.get("delta"))
        block, kind = self._blocks.setdefault(index, {}), _text(delta.get("type"))
        if kind == "input_json_delta" and (piece := _text(delta.get("partial_json"))):
            self._inputs.setdefault(index, []).append(piece)
            calls = [at for at, each in self._blocks.items() if each.get("type") == "tool_use"]
            if index in calls:
                self._on_delta(Delta("arguments", piece, calls.index(index), _text(block.get("name"))))
        elif kind == "citations_delta":
            known = block.get("citations")
            block["citations"] = [*(known if isinstance(known, list) else ()), delta.get("citation")]
        elif kind in _GROWS and (piece := _text(delta.get(_GROWS[kind][0]))):
            field, shown = _GROWS[kind]
            block[field] = _text(block.get(field)) + piece
            if shown:
                self._on_delta(Delta(shown, piece))

    def update(self, event: Mapping[str, Any]) -> None:
        """The end's reason and the usage, whose numbers are totals."""
        self._message |= _dict(event.get("delta"))
        known = {name: value for name, value in _dict(event.get("usage")).items() if value is not None}
        self._message["usage"] = _dict(self._message.get("usage")) | known

    def document(self) -> dict[str, Any]:
        for index, pieces in self._inputs.items():
            if (text := "".join(pieces)) and index in self._blocks:
                block = self._blocks[index]
                # Of a call as text: what the token limit has cut is no JSON.
                block["input"] = text if block.get("type") == "tool_use" else arguments_object(text)
        # By number: a block may begin before the one ahead of it has ended.
        return {**self._message, "content": [self._blocks[index] for index in sorted(self._blocks)]}


def _index(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
