"""Our requests to Gemini checked by the official client's own types, and by the rules that types cannot say."""

from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from agentq.messages import AssistantMessage, Message, Reasoning, ToolCall, ToolMessage, ToolResult, UserMessage
from agentq.output import OutputSchema
from agentq.providers import anthropic, openai_chat
from agentq.providers.base import ModelRequest, OutputFormat, ToolSpec
from agentq.providers.gemini import Gemini, request_body
from agentq.providers.profiles import PROFILES
from tests.providers.gemini_rules import check
from tests.providers.test_official_types import LINKED, SEEN, TOOLS, TRANSCRIPT, Ticket, walk

SIGNED = AssistantMessage(
    text="Both.",
    calls=(ToolCall(id="w:0", name="look", arguments='{"n": 1}'), ToolCall(id="ours", name="look", arguments="{}")),
    reasoning=(
        Reasoning(provider="gemini", model="gemini-3-pro", data={"block": {"text": "hm", "thought": True}}),
        Reasoning(
            provider="gemini",
            model="gemini-3-pro",
            data={
                "block": {"functionCall": {"name": "look", "id": "w"}, "thoughtSignature": "U0lH"},
                "chars": 5,
                "calls": 0,
            },
        ),
    ),
)
OWN: list[Message] = [
    UserMessage(text="go"),
    SIGNED,
    ToolMessage(result=ToolResult(call_id="w:0", name="look", text="1")),
    ToolMessage(result=ToolResult(call_id="ours", name="look", text="no", status="error")),
]
# Gemini knows no GIF; of a user it is refused.
PICTURES = [message if not isinstance(message, UserMessage) else UserMessage(text="look") for message in SEEN]
SETTINGS = {"max_tokens": 100, "temperature": 0.5, "top_p": 1, "top_k": 4, "stop": ["a"], "tool_choice": "required"}
SETTINGS |= {"seed": 1, "presence_penalty": 0, "frequency_penalty": 0}


@pytest.mark.parametrize("model", ["gemini-3-pro", "gemini-2.5-flash"])
@pytest.mark.parametrize(
    "transcript",
    [TRANSCRIPT, OWN, PICTURES, [*PICTURES, LINKED], [*OWN, *TRANSCRIPT], [*TRANSCRIPT, *OWN, UserMessage(text="x")]],
)
def test_a_request_is_one_to_the_official_client(transcript: list[Message], model: str) -> None:
    body = request_body(ModelRequest(model, "Be kind.", transcript, TOOLS, SETTINGS), "gemini")
    check(body)
    if model == "gemini-3-pro" and transcript is OWN:
        call = body["contents"][1]["parts"][2]
        assert (call["functionCall"]["id"], call["thoughtSignature"]) == ("w", "U0lH")


def test_a_thread_may_change_its_provider_at_any_turn() -> None:
    """The same thread before each of its turns, for two models, whoever has written the turns before."""
    thread = [*TRANSCRIPT, *OWN, *TRANSCRIPT]
    for length in range(1, len(thread) + 1):
        open_calls = isinstance(thread[length - 1], AssistantMessage) or (
            length < len(thread) and isinstance(thread[length], ToolMessage)
        )
        if not open_calls:
            for model in ("gemini-3-pro", "gemini-2.5-flash"):
                check(request_body(ModelRequest(model, "", thread[:length], TOOLS), "gemini"))


@pytest.mark.parametrize("schema", [OutputSchema(Ticket).schema, OutputSchema(list[int]).schema])
@pytest.mark.parametrize("tools", [(), TOOLS])
def test_a_request_for_a_typed_answer_is_one_to_the_official_client(schema: Any, tools: list[ToolSpec]) -> None:
    output = Gemini().output_format(schema, forced=False)
    assert isinstance(output, OutputFormat)
    body = request_body(ModelRequest("gemini-3-pro", "", TRANSCRIPT, tools, SETTINGS, output=output), "gemini")
    check(body)
    assert body["generationConfig"]["responseMimeType"] == "application/json"
    assert body["generationConfig"]["maxOutputTokens"] == 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"contents": [{"role": "user", "parts": [{"txt": "x"}]}]},
        {"contents": [{"role": "user", "parts": [{"text": "x"}]}], "generationConfig": {"maxTokens": 1}},
        {"contents": [{"role": "model", "parts": [{"text": "x"}]}]},
        {
            "contents": [
                {"role": "user", "parts": [{"text": "x"}]},
                {"role": "model", "parts": [{"functionCall": {"name": "a", "args": {}}}]},
                {"role": "user", "parts": [{"functionResponse": {"name": "b", "response": {}}}]},
            ]
        },
    ],
)
def test_the_check_finds_what_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check(wrong)


def test_a_thread_that_gemini_has_written_is_one_to_the_others() -> None:
    thread = [*OWN, AssistantMessage(text="16", provider="gemini", model="gemini-3-pro"), UserMessage(text="more")]
    claude = anthropic.request_body(ModelRequest("m", "", thread, TOOLS), "anthropic")
    messages: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)
    assert walk(messages.validate_python(claude)) == claude
    chat = openai_chat.request_body(ModelRequest("m", "", thread, TOOLS), "openai", PROFILES["openai"])
    completions: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsNonStreaming)
    assert walk(completions.validate_python(chat)) == chat
    for sent in (str(claude), str(chat)):
        assert "U0lH" not in sent
        assert "hm" not in sent
