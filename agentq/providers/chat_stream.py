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
        self._calls: list[dict[str, Any]] = []
        self._open: dict[Any, dict[str, Any]] = {}

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
        function = _dict(call.get("function"))
        known = self._call_of(call.get("index"), call.get("id"), function.get("name"))
        # Later pieces may come with an empty id (Qwen) or name (Mistral).
        known["id"] = known["id"] or call.get("id")
        known["name"] = known["name"] or function.get("name")
        if arguments := function.get("arguments"):
            known["arguments"].append(arguments)
            if isinstance(arguments, str):
                number = next(i for i, each in enumerate(self._calls) if each is known)
                self._on_delta(Delta("arguments", arguments, number, known["name"]))

    def _call_of(self, index: Any, call_id: Any, name: Any) -> dict[str, Any]:
        """The call that a piece belongs to: by its number, else by its id, else the last one unless it has a name."""
        place = index if isinstance(index, int) else call_id if isinstance(call_id, str) else ""
        known = self._open.get(place) if place != "" else None if name or not self._calls else self._calls[-1]
        # Some servers give each whole call the number 0; others a new id to each piece, but then no name.
        is_other = known is not None and bool(name and call_id) and known["id"] not in ("", call_id)
        if known is None or is_other:
            known = {"id": "", "name": "", "arguments": []}
            self._calls.append(known)
            self._open[place] = known
        return known

    def document(self) -> dict[str, Any]:
        message: dict[str, Any] = {name: "".join(texts) for name, texts in self._fields.items()}
        if self._parts:
            text = message.get("content", "")
            message["content"] = [*self._parts, *([{"type": "text", "text": text}] if text else [])]
        if self._details:
            message["reasoning_details"] = self._details
        if self._calls:
            message["tool_calls"] = [_call(call) for call in self._calls]
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
        if _is_text(chunk) and joined and _is_text(joined[-1]):
            joined[-1] = {**joined[-1], "text": joined[-1]["text"] + chunk["text"]}
        else:
            joined.append(chunk)
    return joined


def _is_text(chunk: Any) -> bool:
    return _dict(chunk).get("type") == "text" and isinstance(chunk.get("text"), str)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
