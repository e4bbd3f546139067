"""A Chat Completions answer read into neutral words, with what the compatible servers make of it allowed for."""

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from agentq.errors import ProviderError
from agentq.messages import AssistantMessage, Reasoning, Stop, ToolCall, Usage
from agentq.prices import told_cost
from agentq.providers.base import ModelReply
from agentq.providers.transcript import count, keep_block

_STOPS: dict[str | None, Stop] = {
    "stop": "final",
    "eos": "final",
    "tool_calls": "final",
    "function_call": "final",
    # Some servers leave it out or say it in a field of their own.
    None: "final",
    "": "final",
    "length": "length",
    "model_length": "length",
    "content_filter": "blocked",
}


def read_reply(document: Mapping[str, Any], provider: str, model: str) -> ModelReply:
    """The reply. Raises ProviderError ``reply_invalid`` for an answer without a usable choice.

    Whether the model calls tools is decided by the calls, not by the reason to finish. The exceptions are a reply
    that was cut, whose calls may be incomplete (``length``), and one that was blocked, whose calls are dropped.
    """
    choice = _choice(document, provider)
    stop = _stop(choice, provider)
    usage = _usage(document.get("usage"))
    if provider == "openrouter":
        usage = usage.model_copy(update={"known_cost": _openrouters_cost(document.get("usage"))})
    message = choice.get("message")
    if stop == "blocked":
        return ModelReply(AssistantMessage(stop="blocked", provider=provider, model=model), usage)
    if not isinstance(message, dict):
        raise ProviderError("reply_invalid", f"{provider} answered without a message")
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal:
        blocked = AssistantMessage(text=refusal, stop="blocked", provider=provider, model=model)
        return ModelReply(blocked, usage)
    calls = _calls(message, provider)
    reply = AssistantMessage(
        text=_text(message.get("content")),
        calls=calls,
        reasoning=_reasoning(message, provider, model),
        stop="tool_calls" if calls and stop == "final" else stop,
        provider=provider,
        model=model,
    )
    return ModelReply(reply, usage)


def _choice(document: Mapping[str, Any], provider: str) -> Mapping[str, Any]:
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise ProviderError("reply_invalid", f"{provider} answered without a choice")
    return choice


def _stop(choice: Mapping[str, Any], provider: str) -> Stop:
    reason = choice.get("finish_reason")
    if not isinstance(reason, str | None) or reason not in _STOPS:
        raise ProviderError("reply_invalid", f"{provider} ended its reply for an unknown reason: {str(reason)[:100]}")
    return _STOPS[reason]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(chunk["text"] for chunk in _chunks(content, "text") if isinstance(chunk.get("text"), str))


def _chunks(content: Any, kind: str) -> list[dict[str, Any]]:
    """The parts of one kind where the content is a list, as Mistral's is."""
    parts: Sequence[Any] = content if isinstance(content, list) else ()
    return [part for part in parts if isinstance(part, dict) and part.get("type") == kind]


def _calls(message: Mapping[str, Any], provider: str) -> tuple[ToolCall, ...]:
    asked = message.get("tool_calls")
    legacy = message.get("function_call")
    if not asked and legacy:
        asked = [{"function": legacy}]
    if not isinstance(asked, list | None):
        raise ProviderError("reply_invalid", f"{provider} answered with tool calls that are no list")
    return tuple(_call(call, provider) for call in asked or ())


def _call(call: Any, provider: str) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not name:
        raise ProviderError("reply_invalid", f"{provider} answered with a tool call that has no name")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    call_id = call.get("id")
    return ToolCall(id="" if call_id is None else str(call_id), name=name, arguments=arguments)


def _reasoning(message: Mapping[str, Any], provider: str, model: str) -> tuple[Reasoning, ...]:
    block: dict[str, Any] = {}
    if thinking := _chunks(message.get("content"), "thinking"):
        block["content"] = thinking
    # OpenRouter's details say all that its plain text says, and are what it wants back.
    for name in ("reasoning_details", "reasoning_content", "reasoning"):
        if message.get(name) and not block:
            block[name] = message[name]
    return (keep_block(provider, model, block),) if block else ()


def _openrouters_cost(usage: Any) -> Decimal | None:
    """What OpenRouter has charged, and with the user's own key for the provider behind it what that has."""
    told = usage if isinstance(usage, dict) else {}
    own, details = told_cost(told.get("cost")), told.get("cost_details")
    if own is None or not told.get("is_byok") or not isinstance(details, dict):
        return own
    behind = told_cost(details.get("upstream_inference_cost"))
    return None if behind is None else own + behind


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    read = usage.get("prompt_tokens_details")
    written = usage.get("completion_tokens_details")
    read = read if isinstance(read, dict) else {}
    written = written if isinstance(written, dict) else {}
    cached = (read.get("cached_tokens"), usage.get("prompt_cache_hit_tokens"), usage.get("num_cached_tokens"))
    return Usage(
        input_tokens=count(usage.get("prompt_tokens")),
        output_tokens=count(usage.get("completion_tokens")),
        cache_read_tokens=next((n for n in map(count, cached) if n is not None), None),
        cache_write_tokens=count(read.get("cache_write_tokens")),
        reasoning_tokens=count(written.get("reasoning_tokens")),
    )
