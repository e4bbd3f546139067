"""A Responses answer read into neutral words; its items are kept as they came."""

import json
from collections.abc import Mapping
from typing import Any

from agentq.errors import ProviderError
from agentq.messages import AssistantMessage, Stop, ToolCall, Usage
from agentq.providers.base import ModelReply
from agentq.providers.responses_items import texts_of, without_texts
from agentq.providers.transcript import count, keep_block

# Some servers leave the status out; "complete" has been seen too.
_ENDED = {"completed", "complete", None}
_CUTS: dict[Any, Stop] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "blocked",
}


def read_reply(document: Mapping[str, Any], provider: str, model: str) -> ModelReply:
    """The reply. Raises ProviderError for an answer that failed, has no output, or an end we do not know.

    All items are kept with it, so that they go back in their order: reasoning, messages with their phase, calls, and
    those of a kind that is not known here, which play no other part.
    """
    stop = _stop(document, provider)
    usage = _usage(document.get("usage"))
    if stop == "blocked":
        return ModelReply(AssistantMessage(stop="blocked", provider=provider, model=model), usage)
    items = _items(document, provider)
    if refusal := "".join(part for item in items for part in _refusals(item)):
        blocked = AssistantMessage(text=refusal, stop="blocked", provider=provider, model=model)
        return ModelReply(blocked, usage)
    calls = tuple(_call(item, provider) for item in items if item["type"] == "function_call")
    reply = AssistantMessage(
        text="".join(text for item in items for text in texts_of(item)),
        calls=calls,
        reasoning=tuple(keep_block(provider, model, without_texts(item)) for item in items),
        stop="tool_calls" if calls and stop == "final" else stop,
        provider=provider,
        model=model,
    )
    return ModelReply(reply, usage)


def _stop(document: Mapping[str, Any], provider: str) -> Stop:
    status = document.get("status")
    if status in ("queued", "in_progress"):
        message = f"{provider} works on its reply in the background, which is not waited for: do not set `background`"
        raise ProviderError("request_rejected", message)
    if status in ("failed", "cancelled"):
        raise ProviderError("server_error", f"{provider} ended its reply as {status} and does not say why")
    details = document.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    if status == "incomplete" and isinstance(reason, str) and reason in _CUTS:
        return _CUTS[reason]
    if isinstance(status, str | None) and status in _ENDED:
        return "final"
    why = f"{status}, {reason}" if reason else str(status)
    raise ProviderError("reply_invalid", f"{provider} ended its reply for an unknown reason: {why[:100]}")


def _items(document: Mapping[str, Any], provider: str) -> list[dict[str, Any]]:
    output = document.get("output")
    if not isinstance(output, list):
        raise ProviderError("reply_invalid", f"{provider} answered without output")
    if not all(isinstance(item, dict) and isinstance(item.get("type"), str) for item in output):
        raise ProviderError("reply_invalid", f"{provider} answered with an item that has no type")
    return output


def _refusals(item: Mapping[str, Any]) -> list[str]:
    content = item.get("content")
    parts = content if item["type"] == "message" and isinstance(content, list) else ()
    refusals = [part.get("refusal") for part in parts if isinstance(part, dict) and part.get("type") == "refusal"]
    return [refusal for refusal in refusals if isinstance(refusal, str)]


def _call(item: Mapping[str, Any], provider: str) -> ToolCall:
    name, arguments, call_id = item.get("name"), item.get("arguments"), item.get("call_id")
    if not isinstance(name, str) or not name:
        raise ProviderError("reply_invalid", f"{provider} answered with a tool call that has no name")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id="" if call_id is None else str(call_id), name=name, arguments=arguments)


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    read, written = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    read = read if isinstance(read, dict) else {}
    written = written if isinstance(written, dict) else {}
    return Usage(
        input_tokens=count(usage.get("input_tokens")),
        output_tokens=count(usage.get("output_tokens")),
        cache_read_tokens=count(read.get("cached_tokens")),
        cache_write_tokens=count(read.get("cache_write_tokens")),
        reasoning_tokens=count(written.get("reasoning_tokens")),
    )
