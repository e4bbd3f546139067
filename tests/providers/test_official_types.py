"""Our requests checked by the official clients' own types."""

from collections.abc import Iterable
from typing import Any

from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from agentq.messages import AssistantMessage, Message, Reasoning, ToolCall, ToolMessage, ToolResult, UserMessage
from agentq.providers import anthropic, openai_chat
from agentq.providers.base import ModelRequest, ToolSpec
from agentq.providers.profiles import PROFILES

THINKING = {"type": "thinking", "thinking": "hm", "signature": "S"}
TRANSCRIPT: list[Message] = [
    UserMessage(text="go"),
    AssistantMessage(
        text="Both.",
        calls=(ToolCall(id="a:0", name="look", arguments='{"n": 1}'), ToolCall(id="b", name="look", arguments='{"n')),
        reasoning=(Reasoning(provider="anthropic", model="m", data={"block": THINKING}),),
    ),
    ToolMessage(result=ToolResult(call_id="a:0", name="look", text="1")),
    ToolMessage(result=ToolResult(call_id="b", name="look", text="no", status="error")),
    AssistantMessage(text="Done."),
    UserMessage(text="more"),
]
TOOLS = [ToolSpec("look", "Look.", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})]
SETTINGS = {"max_tokens": 100}


def walk(value: Any) -> Any:
    """Plain lists and dicts: many fields are lazy iterables that are checked only as they are read."""
    if isinstance(value, dict):
        return {key: walk(item) for key, item in value.items()}
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    return [walk(item) for item in value]


def test_a_chat_request_is_one_to_the_official_client() -> None:
    request = ModelRequest("m", "Be kind.", TRANSCRIPT, TOOLS, SETTINGS)
    body = openai_chat.request_body(request, "openai", PROFILES["openai"])
    adapter: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsNonStreaming)
    assert walk(adapter.validate_python(body)) == body


def test_a_messages_request_is_one_to_the_official_client() -> None:
    body = anthropic.request_body(ModelRequest("m", "Be kind.", TRANSCRIPT, TOOLS, SETTINGS), "anthropic")
    adapter: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)
    assert walk(adapter.validate_python(body)) == body
