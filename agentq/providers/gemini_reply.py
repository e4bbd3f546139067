"""A generateContent answer read into neutral words; parts that are signed or unknown are kept, each with its place."""

import json
from collections.abc import Mapping
from typing import Any

from agentq.errors import ProviderError, ProviderFault
from agentq.messages import AssistantMessage, Reasoning, Stop, ToolCall, Usage
from agentq.providers.base import ModelReply
from agentq.providers.transcript import count, keep_block
from agentq.text import clean

_STOPS: dict[str, Stop] = {
    "STOP": "final",
    "MAX_TOKENS": "length",
    "SAFETY": "blocked",
    "RECITATION": "blocked",
    "BLOCKLIST": "blocked",
    "PROHIBITED_CONTENT": "blocked",
    "SPII": "blocked",
    "IMAGE_SAFETY": "blocked",
    "IMAGE_PROHIBITED_CONTENT": "blocked",
    "IMAGE_RECITATION": "blocked",
    "MODEL_ARMOR": "blocked",
    "ESCALATION": "blocked",
    "PUP_LIMITED_DISABLED": "blocked",
}
# The model's slips: what there is of such a reply, a call too, is not to be used.
_SLIPS: dict[str, ProviderFault] = {
    "MALFORMED_FUNCTION_CALL": "bad_call",
    "UNEXPECTED_TOOL_CALL": "bad_call",
    "TOO_MANY_TOOL_CALLS": "bad_call",
    "MISSING_THOUGHT_SIGNATURE": "request_rejected",
}
# These come again with the same request: a language it does not have, and a reply that wants to be continued.
_LASTING = ("LANGUAGE", "CONTINUATION")


def read_reply(document: Mapping[str, Any], provider: str, model: str) -> ModelReply:
    """The reply. Raises ProviderError ``bad_call`` or ``reply_invalid`` for one that the model has spoilt.

    A blocked prompt or reply comes without text and calls: what there is of it is not meant to be seen.
    """
    usage = _usage(document.get("usageMetadata"))
    candidates = document.get("candidates")
    candidate = candidates[0] if isinstance(candidates, list) and candidates else None
    if not isinstance(candidate, dict):
        if not is_blocked(document):
            raise ProviderError("reply_invalid", f"{provider} answered without a candidate")
        return ModelReply(AssistantMessage(stop="blocked", provider=provider, model=model), usage)
    stop = _stop(candidate.get("finishReason"), provider)
    if stop == "blocked":
        return ModelReply(AssistantMessage(stop="blocked", provider=provider, model=model), usage)
    read = _Parts(provider, model, is_cut=stop == "length")
    for part in parts_of(candidate):
        read.add(part)
    reply = AssistantMessage(
        text="".join(read.texts),
        calls=tuple(read.calls),
        reasoning=tuple(read.kept),
        stop="tool_calls" if read.calls and stop == "final" else stop,
        provider=provider,
        model=model,
    )
    return ModelReply(reply, usage)


def is_blocked(document: Mapping[str, Any]) -> bool:
    """Whether the prompt was, so that there is no candidate."""
    feedback = document.get("promptFeedback")
    return isinstance(feedback, dict) and bool(feedback.get("blockReason"))


def parts_of(candidate: Mapping[str, Any]) -> list[Any]:
    """The parts; none where the content is left out, as it is where thinking has used up the limit."""
    content = candidate.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    return parts if isinstance(parts, list) else []


def _stop(reason: Any, provider: str) -> Stop:
    if isinstance(reason, str) and reason in _STOPS:
        return _STOPS[reason]
    kind = _SLIPS.get(reason, "reply_invalid") if isinstance(reason, str) else "reply_invalid"
    error = ProviderError(kind, f"{provider} ended its reply for the reason {str(reason)[:100]}")
    error.retryable = error.retryable and reason not in _LASTING
    raise error


class _Parts:
    """What the parts of a reply say. ``kept`` is what only its maker understands, see ``restored``."""

    def __init__(self, provider: str, model: str, *, is_cut: bool) -> None:
        self.texts: list[str] = []
        self.calls: list[ToolCall] = []
        self.kept: list[Reasoning] = []
        self._provider, self._model, self._is_cut = provider, model, is_cut
        self._chars = 0

    def add(self, part: Any) -> None:
        if not isinstance(part, dict):
            raise ProviderError("reply_invalid", f"{self._provider} answered with a part that is none")
        if "functionCall" in part:
            self._add_call(part)
        elif isinstance(part.get("text"), str) and not part.get("thought"):
            self._add_text(part)
        elif part:
            self._keep(part)

    def _add_text(self, part: dict[str, Any]) -> None:
        text = clean(part["text"])
        if part.keys() - {"text", "thought"}:
            self._keep({**part, "text": len(text)})
        self.texts.append(text)
        self._chars += len(text)

    def _add_call(self, part: dict[str, Any]) -> None:
        call = part["functionCall"]
        name = call.get("name") if isinstance(call, dict) else None
        if not isinstance(name, str) or not name:
            raise ProviderError("reply_invalid", f"{self._provider} answered with a tool call that has no name")
        if call.get("willContinue") and not self._is_cut:
            raise ProviderError("reply_invalid", f"{self._provider} answered with a tool call that has no end")
        arguments, call_id = call.get("args"), call.get("id")
        if call_id or part.keys() - {"functionCall"}:
            own = {"name": name, "id": call_id} if call_id else {"name": name}
            self._keep({**part, "functionCall": own})
        text = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
        self.calls.append(ToolCall(id="" if call_id is None else str(call_id), name=name, arguments=text))

    def _keep(self, block: dict[str, Any]) -> None:
        kept = keep_block(self._provider, self._model, block, chars=self._chars, calls=len(self.calls))
        self.kept.append(kept)


def _usage(usage: Any) -> Usage:
    """Gemini counts thoughts apart from the candidates, and what its own tools have read apart from the prompt."""
    if not isinstance(usage, dict):
        return Usage()
    thoughts = count(usage.get("thoughtsTokenCount"))
    return Usage(
        input_tokens=_sum(count(usage.get("promptTokenCount")), count(usage.get("toolUsePromptTokenCount"))),
        output_tokens=_sum(count(usage.get("candidatesTokenCount")), thoughts),
        cache_read_tokens=count(usage.get("cachedContentTokenCount")),
        reasoning_tokens=thoughts,
    )


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None and second is None else (first or 0) + (second or 0)
