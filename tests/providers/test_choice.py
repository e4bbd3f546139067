"""Settings about calls reach each provider in its own form, and a forced call does not force the next one."""

from typing import Any

import pytest

from agentq.errors import ProviderError
from agentq.messages import AssistantMessage, Message, ToolCall, ToolMessage, ToolResult, UserMessage
from agentq.output import OUTPUT_TOOL
from agentq.providers import anthropic, openai_chat
from agentq.providers.base import ModelRequest, ToolSpec
from agentq.providers.profiles import PROFILES

LOOK = ToolSpec("look", "Look.", {"type": "object"})
ANSWER = ToolSpec(OUTPUT_TOOL, "Answer.", {"type": "object"})
ASKED: list[Message] = [UserMessage(text="go")]
CALLED: list[Message] = [
    *ASKED,
    AssistantMessage(calls=(ToolCall(id="a", name="look", arguments="{}"),)),
    ToolMessage(result=ToolResult(call_id="a", name="look", text="1")),
]
FUNCTION = {"type": "function", "function": {"name": "look"}}


def sent(
    settings: dict[str, Any],
    messages: list[Message] = ASKED,
    tools: tuple[ToolSpec, ...] = (LOOK,),
    chat: str = "openai",
) -> tuple[Any, Any]:
    """The choice as Chat Completions and Messages get it."""
    request = ModelRequest("m", "", messages, tools, settings)
    chat_body = openai_chat.request_body(request, chat, PROFILES[chat])
    messages_body = anthropic.request_body(request, "anthropic")
    assert "parallel_tool_calls" not in messages_body
    return chat_body.get("tool_choice"), messages_body.get("tool_choice")


@pytest.mark.parametrize(
    ("given", "to_chat", "to_messages"),
    [
        ("auto", "auto", {"type": "auto"}),
        ("none", "none", {"type": "none"}),
        ("required", "required", {"type": "any"}),
        ("any", "required", {"type": "any"}),
        ("look", FUNCTION, {"type": "tool", "name": "look"}),
        (FUNCTION, FUNCTION, {"type": "tool", "name": "look"}),
        ({"type": "function", "name": "look"}, FUNCTION, {"type": "tool", "name": "look"}),
        ({"type": "tool", "name": "look"}, FUNCTION, {"type": "tool", "name": "look"}),
        ({"type": "any"}, "required", {"type": "any"}),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            "required",
            {"type": "any", "disable_parallel_tool_use": True},
        ),
        ({"type": "allowed_tools", "x": 1}, {"type": "allowed_tools", "x": 1}, {"type": "allowed_tools", "x": 1}),
        (None, None, None),
    ],
)
def test_a_tool_choice_has_each_providers_form(given: Any, to_chat: Any, to_messages: Any) -> None:
    assert sent({"tool_choice": given}) == (to_chat, to_messages)


def test_mistral_has_a_word_of_its_own_for_a_forced_call() -> None:
    assert sent({"tool_choice": "required"}, chat="mistral")[0] == "any"


@pytest.mark.parametrize("given", ["required", "look", FUNCTION, {"type": "any"}])
def test_a_forced_call_is_free_again_once_it_is_made(given: Any) -> None:
    assert sent({"tool_choice": given}, CALLED) == ("auto", {"type": "auto"})
    assert sent({"tool_choice": given}, [*CALLED, UserMessage(text="more")]) == sent({"tool_choice": given})


def test_calls_stay_required_where_the_answer_is_one() -> None:
    assert sent({"tool_choice": "required"}, CALLED, (LOOK, ANSWER)) == ("required", {"type": "any"})
    assert sent({"tool_choice": "look"}, CALLED, (LOOK, ANSWER)) == ("auto", {"type": "auto"})


def test_nothing_is_said_of_calls_where_there_are_no_tools() -> None:
    settings = {"tool_choice": "required", "parallel_tool_calls": False}
    assert sent(settings, tools=()) == (None, None)
    body = openai_chat.request_body(ModelRequest("m", "", ASKED, (), settings), "openai", PROFILES["openai"])
    assert "parallel_tool_calls" not in body


def test_a_choice_of_a_tool_that_is_none_is_told() -> None:
    with pytest.raises(ProviderError, match="'serach', which is no tool; there are look") as caught:
        sent({"tool_choice": "serach"})
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("settings", "to_messages"),
    [
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"parallel_tool_calls": True}, None),
        (
            {"parallel_tool_calls": False, "tool_choice": "look"},
            {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
        ),
        ({"parallel_tool_calls": False, "tool_choice": "none"}, {"type": "none"}),
    ],
)
def test_calls_one_by_one_have_each_providers_form(settings: dict[str, Any], to_messages: Any) -> None:
    request = ModelRequest("m", "", ASKED, (LOOK,), settings)
    body = openai_chat.request_body(request, "openai", PROFILES["openai"])
    assert body["parallel_tool_calls"] is settings["parallel_tool_calls"]
    assert sent(settings)[1] == to_messages


@pytest.mark.parametrize(
    ("given", "to_chat", "to_messages"),
    [
        ({"max_tokens": 5}, {"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"stop": "x"}, {"stop": "x"}, {"stop_sequences": ["x"]}),
        ({"stop_sequences": ["x"]}, {"stop": ["x"]}, {"stop_sequences": ["x"]}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}, {"output_config": {"effort": "low"}}),
        ({"reasoning_effort": "minimal"}, {"reasoning_effort": "minimal"}, {"output_config": {"effort": "low"}}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none"}, {}),
        ({"temperature": 0}, {"temperature": 0}, {"temperature": 0}),
    ],
)
def test_a_setting_has_each_providers_name(given: Any, to_chat: Any, to_messages: Any) -> None:
    request = ModelRequest("m", "", ASKED, (), given)
    own = {"model", "messages"}
    chat = openai_chat.request_body(request, "openai", PROFILES["openai"])
    assert {key: value for key, value in chat.items() if key not in own} == to_chat
    body = anthropic.request_body(request, "anthropic")
    most = {"max_tokens": anthropic.DEFAULT_MAX_TOKENS}
    assert {key: value for key, value in body.items() if key not in own} == most | to_messages


def test_mistral_has_a_name_of_its_own_for_the_seed() -> None:
    body = openai_chat.request_body(ModelRequest("m", "", ASKED, (), {"seed": 1}), "mistral", PROFILES["mistral"])
    assert body["random_seed"] == 1
    assert "seed" not in body
