"""The chunks of a streamed Chat Completions answer put together to the document that it would be unstreamed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentq.errors import ProviderError
from agentq.providers.base import Delta
from agentq.providers.endpoint import DONE

_REASONING = ("reasoning_content", "reasoning")


def read_stream(
    events: Iterable[tuple[str, Mapping[str, Any]]],
    provider: str,
    on_delta: Callable[[Delta], None],
    *,
    done_marker: bool = False,
) -> dict[str, Any]:
    """The document. Raises ProviderError ``network`` for a stream that ends before it has said why it does, and with
    ``done_marker`` for one that ends without ``[DONE]``: usage and errors may come behind the reason.
    """
    whole, is_done = _Whole(on_delta), False
    for name, chunk in events:
        if name == "document":
            return dict(chunk)
        is_done = name == DONE
        whole.add(chunk)
    if whole.finish_reason is None or (done_marker and not is_done):
        raise ProviderError("network", f"the stream of {provider} ended in the middle of its reply")
    return whole.document()


class _Whole:
    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self.finish_reason: str | None = None
        self._on_delta = on_delta
        self._usage: Any = None
        self._fields: dict[str, list[str]] = {}
        self._parts: list[dict[str, Any]] = []
        self._details: list[dict[str, Any]] = []
        self._calls: dict[Any, dict[str, Any]] = {}

    def add(self, chunk: Mapping[str, Any]) -> None:
        # Behind the reply, without a choice; of some servers in the last chunk of it, of Groq in a block of its own.
        if usage := chunk.get("usage") or _dict(chunk.get("x_groq")).get("usage"):
            self._usage = usage
        choices = chunk.get("choices")
        choice = _dict(choices[0]) if isinstance(choices, list) and choices else {}
        self._add_delta(_dict(choice.get("delta") or choice.get("message")))
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        content = delta.get("content")
        if isinstance(content, list):
            for part in content:
                self._add_part(_dict(part))
        else:
            self._add_text("content", "text", content)
        self._add_text("refusal", "text", delta.get("refusal"))
        # Some servers say the same in both fields.
        for name in [name for name in _REASONING if delta.get(name)][:1]:
            self._add_text(name, "reasoning", delta[name])
        details = delta.get("reasoning_details")
        for detail in details if isinstance(details, list) else ():
            self._add_detail(_dict(detail))
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            self._add_call(_dict(call))

    def _add_text(self, name: str, kind: Any, text: Any) -> None:
        if isinstance(text, str) and text:
            self._fields.setdefault(name, []).append(text)
            self._on_delta(Delta(kind, text))

    def _add_part(self, part: dict[str, Any]) -> None:
        """A part of Mistral's content: text, or thinking with texts inside."""
        if part.get("type") == "thinking":
            for inner in part.get("thinking") or ():
                if isinstance(text := _dict(inner).get("text"), str) and text:
                    self._on_delta(Delta("reasoning", text))
            last = self._parts[-1] if self._parts else {}
            if last.get("type") == "thinking":
                last["thinking"] = _joined([*last["thinking"], *(part.get("thinking") or ())])
            else:
                self._parts.append({**part, "thinking": list(part.get("thinking") or ())})
        else:
            self._add_text("content", "text", part.get("text"))

    def _add_detail(self, detail: dict[str, Any]) -> None:
        """A part of OpenRouter's reasoning: pieces of one have the same index and type."""
        same = [
            d for d in self._details if (d.get("index"), d.get("type")) == (detail.get("index"), detail.get("type"))
        ]
        if not same or detail.get("index") is None:
            self._details.append(dict(detail))
            return
        for name, value in detail.items():
            grows = (
                name in ("text", "summary", "data") and isinstance(value, str) and isinstance(same[0].get(name), str)
            )
            if grows:
                same[0][name] += value
            elif value is not None:
                same[0][name] = value

    def _add_call(self, call: dict[str, Any]) -> None:
        place = call.get("index")
        if place is None:
            # Without a number it is a whole one, as its own id says.
            place = call.get("id") or len(self._calls)
        known = self._calls.setdefault(place, {"id": "", "name": "", "arguments": []})
        function = _dict(call.get("function"))
        # Later pieces come with an empty id (Qwen) or name (Mistral).
        known["id"] = call.get("id") or known["id"]
        known["name"] = function.get("name") or known["name"]
        if arguments := function.get("arguments"):
            known["arguments"].append(arguments)
            if isinstance(arguments, str):
                number = list(self._calls).index(place)
                self._on_delta(Delta("arguments", arguments, number, known["name"]))

    def document(self) -> dict[str, Any]:
        message: dict[str, Any] = {name: "".join(texts) for name, texts in self._fields.items()}
        if self._parts:
            text = message.get("content", "")
            message["content"] = [*self._parts, *([{"type": "text", "text": text}] if text else [])]
        if self._details:
            message["reasoning_details"] = self._details
        if self._calls:
            message["tool_calls"] = [_call(call) for call in self._calls.values()]
        choice = {"message": message, "finish_reason": self.finish_reason}
        return {"choices": [choice], "usage": self._usage}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    pieces = call["arguments"]
    arguments = "".join(pieces) if all(isinstance(piece, str) for piece in pieces) else pieces[-1]
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": arguments}}


def _joined(chunks: list[Any]) -> list[Any]:
    """Neighbouring texts as one."""
    joined: list[Any] = []
    for chunk in chunks:
        is_text = _dict(chunk).get("type") == "text" and joined and _dict(joined[-1]).get("type") == "text"
        if is_text:
            joined[-1] = {**joined[-1], "text": joined[-1].get("text", "") + chunk.get("text", "")}
        else:
            joined.append(chunk)
    return joined


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
