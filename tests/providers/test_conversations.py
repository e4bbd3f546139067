"""Recorded conversations played again: from our reading of reply n the request n+1 must come out as it was recorded."""

import json
from typing import Any

import pytest

from agentq.messages import Message, ToolMessage, ToolResult, UserMessage, load_message
from agentq.providers import anthropic, openai_chat
from agentq.providers.anthropic_reply import read_reply as read_anthropic
from agentq.providers.base import ModelRequest
from agentq.providers.chat_reply import read_reply as read_chat
from agentq.providers.profiles import PROFILES, Profile
from tests.providers.rows import BY_ID

CHAT = ["openai-chat-94fa27", "openai-chat-617f68", "openai-chat-9b4f50", "mistral-9fecba"]
CHAT += ["mistral-4cc32e", "openai-compatible-72c54c", "openai-compatible-668a98"]
MESSAGES = ["anthropic-0cd651", "anthropic-8fbfa0", "anthropic-a988d8", "anthropic-5148c4", "anthropic-cd4103"]


def recorded(conversation: str) -> tuple[Any, Any]:
    """The first reply's body, and the messages of the request after it."""
    later = BY_ID[f"{conversation}-t1"]["request"]["body"]["messages"]
    return BY_ID[f"{conversation}-t0"]["response"]["body"], later


def kept(message: Message) -> Message:
    return load_message(message.model_dump_json())


@pytest.mark.parametrize("conversation", CHAT)
def test_a_recorded_chat_goes_on_as_it_did(conversation: str) -> None:
    document, later = recorded(conversation)
    provider = BY_ID[f"{conversation}-t0"]["provider"]
    reply = read_chat(document, provider, "m").message
    names = {call.id: call.name for call in reply.calls}
    last = max(i for i, message in enumerate(later) if message["role"] == "assistant")
    transcript: list[Message] = [UserMessage(text="u"), kept(reply)]
    for message in later[last + 1 :]:
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            transcript.append(
                ToolMessage(result=ToolResult(call_id=call_id, name=names[call_id], text=message["content"]))
            )
        else:
            transcript.append(UserMessage(text=message["content"]))
    body = openai_chat.request_body(ModelRequest("m", "", transcript), provider, PROFILES.get(provider, Profile()))
    assert [plain(m) for m in body["messages"][1:]] == [plain(m) for m in later[last:]]


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """Without what means the same: an absent content, spaces in arguments, marks that a client left out."""
    message = json.loads(json.dumps(message))
    message["content"] = message.get("content") or ""
    for part in message["content"] if isinstance(message["content"], list) else ():
        part.pop("closed", None)
    for detail in message.get("reasoning_details", ()):
        detail.pop("format", None)
        detail.pop("index", None)
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return message


@pytest.mark.parametrize("conversation", MESSAGES)
def test_a_recorded_messages_conversation_goes_on_as_it_did(conversation: str) -> None:
    document, later = recorded(conversation)
    reply = read_anthropic(document, "anthropic", "m").message
    transcript: list[Message] = [UserMessage(text="u"), kept(reply)]
    for block in later[-1]["content"]:
        if block["type"] == "text":
            transcript.append(UserMessage(text=block["text"]))
        else:
            result = ToolResult(call_id=block["tool_use_id"], name="x", text=text_of(block["content"]))
            if block.get("is_error"):
                result = result.model_copy(update={"status": "error"})
            transcript.append(ToolMessage(result=result))
    sent = anthropic.request_body(ModelRequest("m", "", transcript), "anthropic")["messages"]
    assert sent[1] == {"role": "assistant", "content": [without_caller(block) for block in later[-2]["content"]]}
    assert sent[2]["role"] == "user"
    assert [same(block) for block in sent[2]["content"]] == [same(block) for block in later[-1]["content"]]


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def without_caller(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key != "caller"}


def same(block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] == "text":
        return block
    return {**block, "content": text_of(block["content"]), "is_error": block.get("is_error", False)}
