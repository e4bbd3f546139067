"""Our requests checked by the official clients' own types."""

from collections.abc import Iterable
from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import BaseModel, Field, TypeAdapter

from agentq import File, Image
from agentq.inputs import checked_message
from agentq.messages import AssistantMessage, Message, Reasoning, ToolCall, ToolMessage, ToolResult, UserMessage
from agentq.output import OutputSchema
from agentq.providers import anthropic, openai_chat
from agentq.providers.anthropic import Anthropic
from agentq.providers.base import ModelRequest, ToolSpec
from agentq.providers.openai_chat import OpenAIChat
from agentq.providers.profiles import PROFILES
from agentq.results import to_content
from tests.images import GIF, JPEG, PDF, WEBP, png

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
IMAGES = [Image.from_bytes(data, name="x") for data in (png(), JPEG, GIF, WEBP)]
FILES = [File.from_bytes(PDF), File.from_bytes(PDF, name="r.pdf"), File.from_bytes(b"a,b", name="t.csv")]
LINK = Image.from_url("https://x.invalid/a.png")
ARCHIVE = File.from_bytes(b"PK", media_type="application/zip")
TEXT, MEDIA = to_content(["see", *IMAGES, *FILES, LINK, ARCHIVE])
SEEN: list[Message] = [
    UserMessage(**checked_message(["look", *IMAGES, "and", *FILES, LINK])),
    AssistantMessage(
        calls=(ToolCall(id="a", name="look", arguments="{}"), ToolCall(id="b", name="look", arguments=""))
    ),
    ToolMessage(result=ToolResult(call_id="a", name="look", text=TEXT, media=MEDIA)),
    ToolMessage(result=ToolResult(call_id="b", name="look", text=TEXT, media=MEDIA, status="error")),
]
LINKED = UserMessage(**checked_message([File.from_url("https://x.invalid/r.pdf")]))
TOOLS = [ToolSpec("look", "Look.", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})]
SETTINGS = {"max_tokens": 100}


def walk(value: Any) -> Any:
    """Plain lists and dicts: many fields are lazy iterables that are checked only as they are read."""
    if isinstance(value, dict):
        return {key: walk(item) for key, item in value.items()}
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    return [walk(item) for item in value]


@pytest.mark.parametrize("transcript", [TRANSCRIPT, SEEN, [*SEEN, UserMessage(text="more")]])
def test_a_chat_request_is_one_to_the_official_client(transcript: list[Message]) -> None:
    request = ModelRequest("m", "Be kind.", transcript, TOOLS, SETTINGS)
    body = openai_chat.request_body(request, "openai", PROFILES["openai"])
    adapter: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsNonStreaming)
    assert walk(adapter.validate_python(body)) == body


class Ticket(BaseModel):
    title: str = Field(min_length=3)
    urgent: bool = False


@pytest.mark.parametrize("schema", [OutputSchema(Ticket).schema, OutputSchema(dict[str, int]).schema])
@pytest.mark.parametrize("tools", [(), TOOLS])
def test_a_chat_request_for_a_typed_answer_is_one_to_the_official_client(schema: Any, tools: Any) -> None:
    output = OpenAIChat("openai").output_format(schema, forced=True)
    body = openai_chat.request_body(
        ModelRequest("m", "", TRANSCRIPT, tools, output=output), "openai", PROFILES["openai"]
    )
    adapter: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsNonStreaming)
    assert walk(adapter.validate_python(body)) == body
    assert body["response_format"]["json_schema"]["strict"] == (schema["properties"] != {})


@pytest.mark.parametrize("settings", [{}, {"output_config": {"effort": "low"}}])
@pytest.mark.parametrize("tools", [(), TOOLS])
def test_a_messages_request_for_a_typed_answer_is_one_to_the_official_client(settings: Any, tools: Any) -> None:
    output = Anthropic().output_format(OutputSchema(Ticket).schema, forced=False)
    body = anthropic.request_body(ModelRequest("m", "", TRANSCRIPT, tools, settings, output=output), "anthropic")
    adapter: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)
    assert walk(adapter.validate_python(body)) == body
    assert body["output_config"]["format"]["type"] == "json_schema"
    assert body["output_config"].get("effort") == settings.get("output_config", {}).get("effort")


@pytest.mark.parametrize("transcript", [TRANSCRIPT, SEEN, [*SEEN, LINKED]])
def test_a_messages_request_is_one_to_the_official_client(transcript: list[Message]) -> None:
    body = anthropic.request_body(ModelRequest("m", "Be kind.", transcript, TOOLS, SETTINGS), "anthropic")
    adapter: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)
    assert walk(adapter.validate_python(body)) == body
