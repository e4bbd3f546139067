"""A Messages API answer read into neutral words; blocks that are signed or unknown are kept as they came."""

import json
from collections.abc import Mapping
from typing import Any

from agentq.errors import ProviderError
from agentq.messages import AssistantMessage, Reasoning, Stop, ToolCall, Usage
from agentq.providers.base import ModelReply
from agentq.providers.transcript import count, keep_block

_STOPS: dict[str, Stop] = {
    "end_turn": "final",
    "stop_sequence": "final",
    "tool_use": "final",
    "max_tokens": "length",
    # The context is full: a larger max_tokens would not help.
    "model_context_window_exceeded": "length",
    "refusal": "blocked",
}


def read_reply(document: Mapping[str, Any], provider: str, model: str) -> ModelReply:
    """The reply. Raises ProviderError ``reply_invalid`` for an answer without content or with an end we do not know.

    A refused reply comes without text and calls: what there is of it is not meant to be seen.
    """
    content = document.get("content")
    if not isinstance(content, list):
        raise ProviderError("reply_invalid", f"{provider} answered without content")
    stop = _stop(document.get("stop_reason"), provider)
    usage = read_usage(document.get("usage"))
    if stop == "blocked":
        return ModelReply(AssistantMessage(stop="blocked", provider=provider, model=model), usage)
    text, calls, kept = _blocks(content, provider, model)
    reply = AssistantMessage(
        text=text,
        calls=tuple(calls),
        reasoning=tuple(kept),
        stop="tool_calls" if calls and stop == "final" else stop,
        provider=provider,
        model=model,
    )
    return ModelReply(reply, usage)


def is_sendable(block: Mapping[str, Any]) -> bool:
    """Whether a kept block may go back: thinking that was never signed is refused."""
    return block.get("type") != "thinking" or bool(block.get("signature"))


def _stop(reason: Any, provider: str) -> Stop:
    if isinstance(reason, str) and reason in _STOPS:
        return _STOPS[reason]
    error = ProviderError("reply_invalid", f"{provider} ended its reply for an unknown reason: {str(reason)[:100]}")
    # A pause of a server tool's own loop that went on and on comes again with the same request, at full price.
    error.retryable = reason not in ("pause_turn", "compaction")
    raise error


def _blocks(content: list[Any], provider: str, model: str) -> tuple[str, list[ToolCall], list[Reasoning]]:
    text = ""
    calls: list[ToolCall] = []
    kept: list[Reasoning] = []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            text += block["text"] if isinstance(block.get("text"), str) else ""
        elif kind == "tool_use":
            calls.append(_call(block, provider))
        elif isinstance(kind, str):
            kept.append(keep_block(provider, model, block, chars=len(text), calls=len(calls)))
        else:
            raise ProviderError("reply_invalid", f"{provider} answered with a block that has no type")
    return text, calls, kept


def _call(block: Mapping[str, Any], provider: str) -> ToolCall:
    name = block.get("name")
    if not isinstance(name, str) or not name:
        raise ProviderError("reply_invalid", f"{provider} answered with a tool call that has no name")
    given = block.get("input")
    arguments = given if isinstance(given, str) else json.dumps({} if given is None else given, ensure_ascii=False)
    call_id = block.get("id")
    return ToolCall(id="" if call_id is None else str(call_id), name=name, arguments=arguments)


def read_usage(usage: Any) -> Usage:
    """Anthropic counts what came from or went into the cache apart; here the input is all that was read."""
    if not isinstance(usage, dict):
        return Usage()
    plain = count(usage.get("input_tokens"))
    cache_read = count(usage.get("cache_read_input_tokens"))
    cache_write = count(usage.get("cache_creation_input_tokens"))
    details = usage.get("output_tokens_details")
    return Usage(
        input_tokens=None if plain is None else plain + (cache_read or 0) + (cache_write or 0),
        output_tokens=count(usage.get("output_tokens")),
        cache_read_tokens=cache_read,
        cache_write_tokens=cache_write,
        reasoning_tokens=count(details.get("thinking_tokens")) if isinstance(details, dict) else None,
    )
