"""Every recorded request, read into neutral words and written again by us, is one that its server takes."""

import json
from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from agentq.providers import anthropic, openai_chat
from agentq.providers.profiles import PROFILES, Profile
from tests.providers.from_wire import BeyondError, request_of
from tests.providers.order import check_chat, check_messages
from tests.providers.rows import RECORDED
from tests.providers.test_official_types import walk

CHAT: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsNonStreaming)
MESSAGES: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)

# What a server takes that the official client's types do not know.
OWN_FIELDS = {
    "openrouter": {"reasoning", "reasoning_details"},
    "ollama": {"enable_thinking", "reasoning_content", "reasoning"},
    "ollama-cloud": {"reasoning_content", "reasoning"},
    "anthropic": {"temperature"},
}
# What no request of ours can say: other parts than text, images and documents, instructions in the middle.
BEYOND = {
    *("openai-compatible-d27d67-t0", "openai-compatible-d27d67-t1", "anthropic-f91bf0-t0"),
    *("anthropic-03636b-t0", "anthropic-ac014d-t0", "anthropic-ac014d-t1", "anthropic-ac014d-t2"),
    *("anthropic-0584f9-t0", "anthropic-0584f9-t1"),
}


def messages_of(row: dict[str, Any]) -> list[Any]:
    body = (row.get("request") or {}).get("body") or {}
    return list(body.get("messages", ()))


ASKED = [row for row in RECORDED if messages_of(row)]
WRITTEN = [row for row in ASKED if row["id"] not in BEYOND]
each_row = pytest.mark.parametrize("row", WRITTEN, ids=[row["id"] for row in WRITTEN])


def written(row: dict[str, Any]) -> dict[str, Any]:
    if row["api"] == "anthropic":
        return anthropic.request_body(request_of(row), "anthropic")
    return openai_chat.request_body(request_of(row), row["provider"], PROFILES.get(row["provider"], Profile()))


@each_row
def test_a_recorded_request_written_by_us_is_in_order(row: dict[str, Any]) -> None:
    if row["api"] == "anthropic":
        check_messages(written(row))
    else:
        check_chat(written(row), row["provider"])


@each_row
def test_a_recorded_request_written_by_us_is_one_to_the_official_client(row: dict[str, Any]) -> None:
    body = plain(written(row), OWN_FIELDS.get(row["provider"], set()))
    checked = (MESSAGES if row["api"] == "anthropic" else CHAT).validate_python(body)
    assert walk(checked) == body


def plain(value: Any, own: set[str]) -> Any:
    """Without what is the server's own; Mistral's word and its parts of thinking count as the usual ones."""
    match value:
        case {"type": "thinking", "thinking": list()}:
            return {"type": "text", "text": json.dumps(value)}
        case {"tool_choice": "any"}:
            return plain({**value, "tool_choice": "required"}, own)
        case dict():
            return {key: plain(item, own) for key, item in value.items() if key not in own}
        case list():
            return [plain(item, own) for item in value]
        case _:
            return value


@each_row
def test_a_recorded_request_written_by_us_says_the_same(row: dict[str, Any]) -> None:
    assert said(written(row)) == said(row["request"]["body"])


def said(body: dict[str, Any]) -> list[Any]:
    """Who says what, in order: texts, bytes of pictures (some recordings have another type on them), calls, results."""
    turns: list[Any] = [("system", text) for text in texts(body.get("system", ""))]
    for message in body["messages"]:
        role = "system" if message["role"] == "developer" else message["role"]
        turns += [(role, text) for text in texts(message.get("content") or "")]
        for call in message.get("tool_calls") or ():
            turns.append((call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])))
        turns += [("to", message["tool_call_id"])] if "tool_call_id" in message else []
    return turns


def texts(content: Any) -> list[Any]:
    found: list[Any] = []
    for part in [content] if isinstance(content, str) else content:
        match part:
            case str():
                found.append(part)
            case {"text": str(text)}:
                found.append(text)
            case {"type": "tool_use"}:
                found.append((part["id"], part["name"], part["input"]))
            case {"type": "tool_result"}:
                found.append((part["tool_use_id"], bool(part.get("is_error")), texts(part["content"])))
            case {"type": "image_url"}:
                found.append(part["image_url"]["url"].rpartition(",")[2])
            case {"type": "image"}:
                found.append(part["source"].get("data") or part["source"]["url"])
            case _:
                found.append({key: item for key, item in part.items() if key != "cache_control"})
    # A result that is nothing but images says so in words as well.
    return [text for text in found if text != "" and not str(text).startswith("[image, ")]


def test_what_is_left_out_cannot_be_said() -> None:
    for row in ASKED:
        if row["id"] in BEYOND:
            with pytest.raises(BeyondError):
                request_of(row)
