"""The events of a streamed Responses answer: shown as they come, and at the end the document that it is unstreamed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from agentq.errors import ProviderError
from agentq.providers.base import Delta

_SHOWN: dict[str, Literal["text", "reasoning"]] = {
    "response.output_text.delta": "text",
    # What it says instead of an answer is the text of the reply.
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
}


def read_stream(
    events: Iterable[tuple[str, Mapping[str, Any]]], provider: str, on_delta: Callable[[Delta], None]
) -> dict[str, Any]:
    """The document. Raises ProviderError ``network`` for a stream that ends before the event with its end."""
    whole = _Whole(on_delta)
    for name, event in events:
        if name == "document":
            return dict(event)
        # The name is in the event too, and some proxies leave the line with it out.
        match _text(event.get("type")) or name:
            case "response.output_item.added":
                whole.open_item(event)
            case "response.output_item.done":
                whole.close_item(event)
            case "response.function_call_arguments.delta":
                whole.show_arguments(event)
            case "response.reasoning_summary_part.added":
                whole.part_summary(event)
            case "response.completed" | "response.incomplete" | "response.failed" as ended:
                return whole.document(event, ended.removeprefix("response."), provider)
            case kind if kind in _SHOWN:
                whole.show(_SHOWN[kind], _text(event.get("delta")))
    raise ProviderError("network", f"the stream of {provider} ended in the middle of its reply")


class _Whole:
    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._on_delta = on_delta
        self._has_shown = False
        self._items: dict[int, dict[str, Any]] = {}
        self._done: dict[int, dict[str, Any]] = {}

    def open_item(self, event: Mapping[str, Any]) -> None:
        self._items[_index(event, len(self._items))] = _dict(event.get("item"))

    def close_item(self, event: Mapping[str, Any]) -> None:
        self._done[_index(event, len(self._done))] = _dict(event.get("item"))

    def show(self, kind: Literal["text", "reasoning"], text: str) -> None:
        if text:
            self._has_shown = self._has_shown or kind == "text"
            self._on_delta(Delta(kind, text))

    def part_summary(self, event: Mapping[str, Any]) -> None:
        """Between two parts of a summary there is nothing in their texts."""
        if event.get("summary_index"):
            self._on_delta(Delta("reasoning", "\n\n"))

    def show_arguments(self, event: Mapping[str, Any]) -> None:
        index, text = _index(event, len(self._items) - 1), _text(event.get("delta"))
        calls = [at for at in sorted(self._items) if self._items[at].get("type") == "function_call"]
        if text and index in calls:
            self._has_shown = True
            self._on_delta(Delta("arguments", text, calls.index(index), _text(self._items[index].get("name"))))

    def document(self, event: Mapping[str, Any], status: str, provider: str) -> dict[str, Any]:
        """What the last event says; the items as they were done where it leaves them out, as some servers do."""
        response = _dict(event.get("response"))
        output = response.get("output") or [self._done[index] for index in sorted(self._done)]
        if status == "completed" and response.get("status") in ("incomplete", "cancelled"):
            status = response["status"]
        if status == "completed" and self._has_shown and not output:
            raise ProviderError("reply_invalid", f"{provider} ended its reply without the items that it had streamed")
        return {**response, "status": status, "output": output}


def _index(event: Mapping[str, Any], default: int) -> int:
    """The item's number; some servers do not number the items, and finish each before the next one."""
    index = event.get("output_index")
    return index if isinstance(index, int) else default


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
