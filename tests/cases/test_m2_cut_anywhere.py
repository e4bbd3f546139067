"""M2: a conversation that is cut or copied at any message is legal for every provider."""

from itertools import pairwise
from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from agentq import AssistantMessage, Message, ToolCall, ToolMessage, ToolResult, UserMessage
from agentq.history import border
from agentq.providers import anthropic, openai_chat
from agentq.providers.base import ModelRequest
from agentq.providers.profiles import PROFILES


def turn(number: int, calls: int) -> list[Message]:
    asked = tuple(ToolCall(id=f"c{number}_{n}", name="look", arguments="{}") for n in range(calls))
    back = [ToolMessage(result=ToolResult(call_id=call.id, name="look", text="seen")) for call in asked]
    return [AssistantMessage(text="" if calls else "So.", calls=asked), *back]


CONVERSATION: list[Message] = [
    UserMessage(text="one"),
    *turn(0, 2),
    *turn(1, 0),
    UserMessage(text="two"),
    *turn(2, 1),
    *turn(3, 3),
    *turn(4, 0),
    UserMessage(text="three"),
    UserMessage(text="four"),
    *turn(5, 0),
]


@pytest.mark.parametrize("at", range(len(CONVERSATION) + 1))
def test_a_cut_at_any_message_leaves_what_every_provider_takes(at: int) -> None:
    legal = border(CONVERSATION, at)
    assert legal <= at
    left = [*CONVERSATION[:legal], UserMessage(text="next")]
    request = ModelRequest("m", "Be kind.", left, (), {"max_tokens": 5})
    chat = openai_chat.request_body(request, "openai", PROFILES["openai"])
    TypeAdapter[Any](CompletionCreateParamsNonStreaming).validate_python(chat)
    assert_chat_is_whole(chat["messages"])
    messages = anthropic.request_body(request, "anthropic")
    TypeAdapter[Any](MessageCreateParamsNonStreaming).validate_python(messages)
    assert_blocks_are_paired(messages["messages"])


def test_a_cut_moves_no_further_than_it_must() -> None:
    borders = [border(CONVERSATION, at) for at in range(len(CONVERSATION) + 1)]
    moved = {at: legal for at, legal in enumerate(borders) if at != legal}
    assert moved == {2: 1, 3: 1, 7: 6, 9: 8, 10: 8, 11: 8}


def assert_chat_is_whole(messages: list[dict[str, Any]]) -> None:
    assert [message["role"] for message in messages[:2]] == ["system", "user"]
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == open_calls.pop(0)
        else:
            assert not open_calls
            open_calls = [call["id"] for call in message.get("tool_calls") or ()]
    assert not open_calls


def assert_blocks_are_paired(messages: list[dict[str, Any]]) -> None:
    assert messages[0]["role"] == "user"
    assert all(one["role"] != other["role"] for one, other in pairwise(messages))
    for one, other in pairwise([*messages, {"content": []}]):
        asked = [block["id"] for block in blocks(one) if block["type"] == "tool_use"]
        back = [block["tool_use_id"] for block in blocks(other) if block["type"] == "tool_result"]
        assert asked == back


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [] if isinstance(message["content"], str) else list(message["content"])
