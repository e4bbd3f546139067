"""A transcript as Gemini's contents: whose turn, which parts, and the signatures back in the parts they came in."""

import re
from collections import defaultdict, deque
from typing import Any

from agentq.content import File, Image
from agentq.media_types import IMAGES, PDF
from agentq.messages import AssistantMessage, Message, ToolCall, ToolMessage, ToolResult, UserMessage
from agentq.providers.base import ModelRequest
from agentq.providers.content import as_words, base64_of, in_words, unsupported
from agentq.providers.transcript import Block, arguments_object, kept_blocks, sent_name

# https://ai.google.dev/gemini-api/docs/image-understanding, and the pages on audio, video and documents.
_TAKEN = (IMAGES - {"image/gif"}) | {"image/heic", "image/heif", PDF}
_TAKEN_OF = ("audio/", "video/")
# What Google wants on a call that another model made, where it would refuse one without a signature.
# https://ai.google.dev/gemini-api/docs/thought-signatures
UNSIGNED = "skip_thought_signature_validator"


def contents(request: ModelRequest, name: str, *, signed: bool) -> list[dict[str, Any]]:
    """The turns. ``signed``: the model wants a signature on the first call of each step since the user spoke.

    Raises ProviderError ``content_unsupported`` for what a user has sent and Gemini cannot take.
    """
    writer = _Writer(name, request.model)
    users = [place for place, message in enumerate(request.messages) if isinstance(message, UserMessage)]
    since = max(users, default=0)
    for place, message in enumerate(request.messages):
        writer.add(message, signed=signed and place >= since)
    writer.show()
    return writer.turns


class _Writer:
    def __init__(self, name: str, model: str) -> None:
        self.turns: list[dict[str, Any]] = []
        self._name, self._model = name, model
        self._kind = ""
        # Of the calls of the last reply that wait for their result: name and id as they were sent.
        self._open: defaultdict[str, deque[dict[str, Any]]] = defaultdict(deque)
        # What tools have returned beside text: it follows behind all results of their turn.
        self._shown: list[dict[str, Any]] = []
        self._number = 0

    def add(self, message: Message, *, signed: bool) -> None:
        match message:
            case ToolMessage(result=result):
                self._add("results", [{"functionResponse": self._result(result)}])
            case UserMessage():
                self.show()
                self._add("user", [part for each in message.parts for part in self._said(each)])
            case AssistantMessage():
                self.show()
                self._add_reply(message, signed=signed)

    def show(self) -> None:
        shown, self._shown = self._shown, []
        self._add("user", shown)

    def _add(self, kind: str, parts: list[dict[str, Any]]) -> None:
        # Results stand alone in their turn: with other parts in it, it does not count as the answer to the calls.
        if parts and kind == self._kind:
            self.turns[-1]["parts"] += parts
        elif parts:
            self._kind = kind
            self.turns.append({"role": "model" if kind == "model" else "user", "parts": parts})

    def _said(self, part: str | Image | File) -> list[dict[str, Any]]:
        if isinstance(part, str):
            return [{"text": part}]
        words = as_words(part)
        sent = _part(part) if words is None else {"text": words}
        if sent is None:
            raise unsupported(part, self._name)
        return [sent]

    def _result(self, result: ToolResult) -> dict[str, Any]:
        waiting = self._open.get(result.call_id)
        call = waiting.popleft() if waiting else {"name": _name(result.name)}
        text = self._in_words(result) if result.media else result.text
        return {**call, "response": {"output" if result.status == "success" else "error": text}}

    def _in_words(self, result: ToolResult) -> str:
        told = in_words(result, _part, shown_before=self._number)
        for number, part in enumerate(told.shown, self._number + 1):
            self._shown += [{"text": told.title(number)}, part]
        self._number += len(told.shown)
        return told.text

    def _add_reply(self, message: AssistantMessage, *, signed: bool) -> None:
        self._open.clear()
        if not message.calls and not message.text.strip():
            return
        parts = _restored(message, kept_blocks(message, self._name, self._model))
        calls = [part for part in parts if "functionCall" in part]
        if signed and calls:
            calls[0].setdefault("thoughtSignature", UNSIGNED)
        for call, part in zip(message.calls, calls, strict=True):
            known = {key: value for key, value in part["functionCall"].items() if key in ("name", "id")}
            self._open[call.id].append(known)
        self._add("model", parts)


def _restored(message: AssistantMessage, kept: list[Block]) -> list[dict[str, Any]]:
    """The parts in the order they came; what was kept of one that has text or a call is put around it again."""
    calls = [_call(call) for call in message.calls]
    parts: list[dict[str, Any]] = []
    chars = made = 0
    for block in kept:
        parts += _text(message.text[chars : block.chars]) + calls[made : block.calls]
        chars, made = max(chars, block.chars), max(made, block.calls)
        value, own = block.value, block.value.get("functionCall")
        if own is not None:
            # A hook may have left the call out.
            if made < len(calls) and message.calls[made].name == own["name"]:
                parts.append({**value, "functionCall": {**own, "args": calls[made]["functionCall"]["args"]}})
                made += 1
        elif isinstance(length := value.get("text"), int):
            parts.append({**value, "text": message.text[chars : chars + length]})
            chars += length
        else:
            parts.append(value)
    return parts + _text(message.text[chars:]) + calls[made:]


def _text(text: str) -> list[dict[str, Any]]:
    return [{"text": text}] if text else []


def _call(call: ToolCall) -> dict[str, Any]:
    # Its id is not the model's: what is not kept has none, and is matched by name and order.
    return {"functionCall": {"name": _name(call.name), "args": arguments_object(call.arguments)}}


def _name(name: str) -> str:
    """A name fit to be sent; here one may not begin with a digit or a dash either."""
    return re.sub(r"^(?=[^a-zA-Z_])", "_", sent_name(name))[:64]


def _part(media: Image | File) -> dict[str, Any] | None:
    """An image, a document, a sound or a film; None where there is no form for it."""
    kind = media.media_type
    if media.url and not kind and isinstance(media, Image):
        return {"fileData": {"fileUri": media.url}}
    if kind not in _TAKEN and not kind.startswith(_TAKEN_OF):
        return None
    if media.url:
        return {"fileData": {"mimeType": kind, "fileUri": media.url}}
    return {"inlineData": {"mimeType": kind, "data": base64_of(media)}}
