"""Documents and streams as the real servers write them, for fake servers that play a model."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tests.providers.fake_server import Answer, head, response

Calls = Sequence[tuple[str, str, str]]


def chat_reply(text: str | None = "hello", calls: Calls = (), finish_reason: str = "", **fields: Any) -> dict[str, Any]:
    """A Chat Completions document; calls are id, name and arguments as text."""
    asked = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    message = {"role": "assistant", "content": text, "refusal": None} | ({"tool_calls": asked} if asked else {})
    reason = finish_reason or ("tool_calls" if asked else "stop")
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    return {
        **{"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]},
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
        **fields,
    }


def chat_events(document: dict[str, Any]) -> bytes:
    """The same as a stream: the text in letters, each call in three pieces, usage behind the reply."""
    message, chunks = document["choices"][0]["message"], list[dict[str, Any]]()
    chunks.append({"role": "assistant", "content": ""})
    chunks += [{"content": letter} for letter in message["content"] or ""]
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        first = {**call, "function": {**function, "arguments": ""}}
        half = len(function["arguments"]) // 2
        pieces = [first, *({"function": {"arguments": part}} for part in halves(function["arguments"], half))]
        chunks += [{"tool_calls": [{"index": index, **piece}]} for piece in pieces]
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choices = [{"index": 0, "delta": chunk, "finish_reason": None, "logprobs": None} for chunk in chunks]
    choices.append({**choices[0], "delta": {}, "finish_reason": document["choices"][0]["finish_reason"]})
    events = [{**base, "choices": [choice]} for choice in choices]
    events.append({**base, "choices": [], "usage": document["usage"]})
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events) + b"data: [DONE]\n\n"


def messages_reply(
    text: str = "hello", calls: Calls = (), stop_reason: str = "", before: Iterable[dict[str, Any]] = (), **fields: Any
) -> dict[str, Any]:
    """A Messages document; ``before`` are blocks (thinking) ahead of text and calls."""
    blocks: list[dict[str, Any]] = [*before, *([{"type": "text", "text": text}] if text else [])]
    blocks += [{"type": "tool_use", "id": i, "name": n, "input": json.loads(a)} for i, n, a in calls]
    return {
        **{"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": blocks},
        **{"stop_reason": stop_reason or ("tool_use" if calls else "end_turn"), "stop_sequence": None},
        "usage": {"input_tokens": 5, "output_tokens": 3},
        **fields,
    }


def messages_events(document: dict[str, Any]) -> bytes:
    """The same as a stream, with a ping in it."""
    end = {name: document[name] for name in ("stop_reason", "stop_sequence")}
    start = {**document, "content": [], "stop_reason": None, "usage": {**document["usage"], "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(document["content"]):
        opened, deltas = _opened(block)
        events.append({"type": "content_block_start", "index": index, "content_block": opened})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": end, "usage": document["usage"]})
    events.append({"type": "message_stop"})
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def _opened(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and what is added to it."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": letter} for letter in block["text"]]
        case "tool_use":
            text = json.dumps(block["input"])
            parts = ["", *halves(text, len(text) // 2)]
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in parts]
        case "thinking":
            added = [{"type": "thinking_delta", "thinking": block["thinking"]}]
            added.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, added
        case _:
            return block, []


def halves(text: str, at: int) -> list[str]:
    return [text[:at], text[at:]]


def stream(events: bytes) -> Answer:
    return [head(200, {"content-type": "text/event-stream", "connection": "close"}), events]


def answer(path: str, document: dict[str, Any], *, streamed: bool) -> Answer:
    """The document of the API at this path, as it was asked for."""
    if not streamed:
        return response(document)
    return stream(messages_events(document) if path.endswith("/messages") else chat_events(document))
