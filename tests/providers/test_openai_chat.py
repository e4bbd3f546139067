"""Chat Completions: what is sent, and what the compatible servers' answers are read as."""

import json
from typing import Any

import pytest

from agentq.errors import ProviderError
from agentq.messages import (
    AssistantMessage,
    Message,
    Reasoning,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
    load_message,
)
from agentq.providers.base import ModelReply, ModelRequest, ToolSpec
from agentq.providers.chat_reply import read_reply
from agentq.providers.openai_chat import OpenAIChat, request_body
from agentq.providers.profiles import PROFILES
from tests.providers.fake_server import response, serve

TOOL = ToolSpec("temp", "The temperature.", {"type": "object", "properties": {"city": {"type": "string"}}})


def call(call_id: str, arguments: str = "{}", name: str = "temp") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def result(call_id: str, text: str = "20", **more: Any) -> ToolMessage:
    return ToolMessage(result=ToolResult(call_id=call_id, name="temp", text=text, **more))


def body(*messages: Message, provider: str = "openai", model: str = "m", **request: Any) -> dict[str, Any]:
    return request_body(
        ModelRequest(model, request.pop("instructions", ""), messages, **request), provider, PROFILES[provider]
    )


def sent(*messages: Message, provider: str = "openai", model: str = "m") -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = body(*messages, provider=provider, model=model)["messages"]
    return wire


def read(message: Any, finish_reason: Any = "stop", **document: Any) -> ModelReply:
    choice = {"finish_reason": finish_reason, "message": message}
    return read_reply({"choices": [choice], **document}, "openai", "m")


def wire_call(arguments: Any, call_id: Any = "c1", name: Any = "temp") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


# ---------------------------------------------------------------------------------------------- the request


def test_nothing_is_sent_that_was_not_asked_for() -> None:
    assert body(UserMessage(text="hi")) == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_instructions_settings_and_tools_go_out() -> None:
    wire = body(
        UserMessage(text="hi"), instructions="Be kind.", tools=[TOOL], settings={"temperature": 0, "stream": True}
    )
    assert wire["messages"][0] == {"role": "system", "content": "Be kind."}
    assert wire["temperature"] == 0
    assert "stream" not in wire
    function = {"name": "temp", "description": "The temperature.", "parameters": TOOL.parameters}
    assert wire["tools"] == [{"type": "function", "function": function}]


def test_a_tool_without_parameters_or_description_is_complete() -> None:
    wire = body(UserMessage(text="hi"), tools=[ToolSpec("now", "", {"type": "object"})])
    assert wire["tools"][0]["function"] == {"name": "now", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(("provider", "field"), [("openai", "max_completion_tokens"), ("groq", "max_tokens")])
def test_the_output_limit_has_the_name_the_server_knows(provider: str, field: str) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        wire = body(UserMessage(text="hi"), provider=provider, settings={name: 5})
        assert {key: value for key, value in wire.items() if key.startswith("max")} == {field: 5}


def test_calls_and_results_go_out_in_order() -> None:
    wire = sent(
        UserMessage(text="hi"),
        AssistantMessage(text="", calls=(call("c1", '{"city": "A"}'), call("c2", '{"city":"B"}')), stop="tool_calls"),
        result("c1", "1"),
        result("c2", "2"),
        AssistantMessage(text="Done."),
        UserMessage(text="more"),
    )
    assert [message["role"] for message in wire] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert [c["function"]["arguments"] for c in wire[1]["tool_calls"]] == ['{"city": "A"}', '{"city":"B"}']
    assert [(m["tool_call_id"], m["content"]) for m in wire[2:4]] == [("c1", "1"), ("c2", "2")]


def test_a_result_that_is_no_success_says_so_in_its_text() -> None:
    wire = sent(
        AssistantMessage(calls=(call("a"), call("b"), call("c"))),
        result("a", "city: required", status="error", code="invalid_arguments"),
        result("b", "too expensive", status="rejected"),
        result("c", "Error: no such order", status="error"),
    )
    texts = [message["content"] for message in wire[1:]]
    assert texts == ["Error: city: required", "Rejected: too expensive", "Error: no such order"]


@pytest.mark.parametrize(
    "broken", ["", " ", "null", "[1]", '"x"', '{"path": "a", "content": "hel', '{"x": NaN}', "[" * 99999]
)
def test_arguments_that_are_no_object_are_not_sent_back(broken: str) -> None:
    wire = sent(AssistantMessage(calls=(call("c1", broken),)), result("c1"))
    assert wire[0]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_an_invented_name_is_sent_back_in_a_form_that_is_taken() -> None:
    wire = sent(AssistantMessage(calls=(call("c1", name="functions.temp!"), call("c2", name=""))))
    assert [c["function"]["name"] for c in wire[0]["tool_calls"]] == ["functions_temp_", "_"]


def test_an_empty_reply_is_not_sent_back() -> None:
    assert [
        m["role"] for m in sent(UserMessage(text="a"), AssistantMessage(stop="blocked"), UserMessage(text="b"))
    ] == [
        "user",
        "user",
    ]


def test_foreign_ids_are_mapped_one_to_one_where_the_server_is_strict() -> None:
    asked = ("functions.look:0", "functions.look_0", "x" * 94, "call_own", "")
    transcript: list[Message] = [AssistantMessage(calls=tuple(call(i) for i in asked)), *(result(i, i) for i in asked)]
    for provider, limit in (("openai", 40), ("mistral", 9)):
        wire = sent(*transcript, provider=provider)
        ids = [c["id"] for c in wire[0]["tool_calls"]]
        assert [m["tool_call_id"] for m in wire[1:]] == ids
        assert len(set(ids)) == 5
        assert all(0 < len(i) <= limit and i.replace("_", "").isalnum() for i in ids)
        assert wire == sent(*transcript, provider=provider)
    assert [c["id"] for c in sent(*transcript, provider="groq")[0]["tool_calls"]] == list(asked)


def test_mistral_gets_no_user_message_right_after_a_result() -> None:
    transcript = (AssistantMessage(calls=(call("abcdefghi"),)), result("abcdefghi"), UserMessage(text="next"))
    assert [m["role"] for m in sent(*transcript, provider="mistral")] == ["assistant", "tool", "assistant", "user"]
    assert [m["role"] for m in sent(*transcript)] == ["assistant", "tool", "user"]


def reasoning(provider: str, block: dict[str, Any], model: str = "m") -> tuple[Reasoning, ...]:
    return (Reasoning(provider=provider, model=model, data={"block": block}),)


def test_reasoning_goes_back_only_to_the_model_that_made_it() -> None:
    message = AssistantMessage(
        text="t", calls=(call("c1"),), reasoning=reasoning("deepseek", {"reasoning_content": "r"})
    )
    transcript = (UserMessage(text="u"), message, result("c1"))
    assert sent(*transcript, provider="deepseek")[1]["reasoning_content"] == "r"
    assert "reasoning_content" not in sent(*transcript, provider="deepseek", model="other")[1]
    assert "reasoning_content" not in sent(*transcript, provider="groq")[1]


def test_deepseeks_reasoning_stays_in_its_tool_loop_and_openrouters_goes_on() -> None:
    for provider, field, stays in (("deepseek", "reasoning_content", False), ("openrouter", "reasoning_details", True)):
        message = AssistantMessage(text="t", reasoning=reasoning(provider, {field: "r"}))
        wire = sent(UserMessage(text="u"), message, UserMessage(text="next"), provider=provider)
        assert (field in wire[1]) is stays


def test_mistrals_thinking_goes_back_as_a_chunk_before_the_text() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    message = AssistantMessage(text="8", reasoning=reasoning("mistral", {"content": [thinking]}))
    assert sent(message, provider="mistral")[0]["content"] == [thinking, {"type": "text", "text": "8"}]


# ---------------------------------------------------------------------------------------------- the reply


@pytest.mark.parametrize("missing", [None, "", "absent"])
def test_calls_without_ids_keep_their_order_and_an_empty_id(missing: Any) -> None:
    calls = [wire_call('{"city":"A"}', missing), wire_call('{"city":"B"}', missing)]
    if missing == "absent":
        for item in calls:
            del item["id"]
    message = read({"content": None, "tool_calls": calls}, "tool_calls").message
    assert [(c.id, c.arguments) for c in message.calls] == [("", '{"city":"A"}'), ("", '{"city":"B"}')]


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "eos", None])
def test_calls_count_whatever_the_reason_says(reason: Any) -> None:
    message = read({"content": "", "tool_calls": [wire_call("{}")]}, reason).message
    assert (message.stop, len(message.calls)) == ("tool_calls", 1)


def test_a_cut_reply_says_so_with_its_calls_as_they_came() -> None:
    cut = '{"path":"a","content":"hel'
    message = read({"content": None, "tool_calls": [wire_call(cut)]}, "length").message
    assert (message.stop, message.calls[0].arguments) == ("length", cut)


def test_a_blocked_reply_has_no_calls() -> None:
    message = read({"content": "par", "tool_calls": [wire_call("{}")]}, "content_filter").message
    assert (message.stop, message.text, message.calls) == ("blocked", "", ())
    refused = read({"content": None, "refusal": "I can't."}).message
    assert (refused.stop, refused.text) == ("blocked", "I can't.")


@pytest.mark.parametrize("arguments", [{"city": "A"}, None, ["x"]])
def test_arguments_that_are_not_text_become_text(arguments: Any) -> None:
    message = read({"tool_calls": [wire_call(arguments)]}).message
    assert message.calls[0].arguments == ("" if arguments is None else json.dumps(arguments))


def test_the_old_form_of_a_call_is_read() -> None:
    message = read({"content": None, "function_call": {"name": "temp", "arguments": "{}"}}, "function_call").message
    assert [(c.id, c.name) for c in message.calls] == [("", "temp")]


@pytest.mark.parametrize("content", [None, "", [], {"odd": 1}, 5])
def test_a_reply_without_content_is_an_empty_text(content: Any) -> None:
    message = read({"content": content}).message
    assert (message.text, message.stop, message.calls) == ("", "final", ())


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"finish_reason": "stop"}]},
        {"choices": [{"finish_reason": "stop", "message": None}]},
        {"choices": [{"finish_reason": "stop", "message": "text"}]},
        {"choices": [{"finish_reason": "brand_new", "message": {"content": "x"}}]},
        {"choices": [{"finish_reason": ["stop"], "message": {"content": "x"}}]},
        {"choices": [{"message": {"tool_calls": "x"}}]},
        {"choices": [{"message": {"tool_calls": [None]}}]},
        {"choices": [{"message": {"tool_calls": [{"id": "a"}]}}]},
        {"choices": [{"message": {"tool_calls": [wire_call("{}", name=None)]}}]},
    ],
)
def test_an_answer_that_cannot_be_used_is_invalid(document: dict[str, Any]) -> None:
    with pytest.raises(ProviderError) as caught:
        read_reply(document, "openai", "m")
    assert caught.value.kind == "reply_invalid"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Usage()),
        ("absent", Usage()),
        ([], Usage()),
        ({"total_tokens": 9}, Usage()),
        ({"prompt_tokens": None, "completion_tokens": 3}, Usage(output_tokens=3)),
        ({"prompt_tokens": "12", "completion_tokens": True}, Usage()),
        ({"prompt_tokens": -1, "completion_tokens": 1.5}, Usage()),
        ({"prompt_tokens": 2, "prompt_tokens_details": None, "completion_tokens_details": "x"}, Usage(input_tokens=2)),
        ({"prompt_tokens": 2, "prompt_cache_hit_tokens": 1}, Usage(input_tokens=2, cache_read_tokens=1)),
    ],
)
def test_unknown_usage_is_not_zero(usage: Any, expected: Usage) -> None:
    more = {} if usage == "absent" else {"usage": usage}
    assert read({"content": "x"}, **more).usage == expected


def test_text_that_cannot_be_stored_is_cleaned_and_a_signed_block_is_not() -> None:
    details = [{"type": "reasoning.text", "text": "half \ud83d", "signature": "S\x00"}]
    with serve(
        response({"choices": [{"message": {"content": "a\x00b\ud83d", "reasoning_details": details}}]})
    ) as server:
        provider = OpenAIChat("openrouter", base_url=server.url, api_key="sk-test-key")
        message = provider.complete(ModelRequest("m", "", [UserMessage(text="u")])).message
        assert message.text == "a\ufffdb\ufffd"
        stored = load_message(message.model_dump_json())
        provider.complete(ModelRequest("m", "", [UserMessage(text="u"), stored, UserMessage(text="v")]))
        assert server.asked[1].body["messages"][1]["reasoning_details"] == details


def test_the_request_goes_to_the_chat_path_with_a_bearer_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    with serve(response({"choices": [{"message": {"content": "x"}}]})) as server:
        provider = OpenAIChat(base_url=f"{server.url}/v1/", api_key="sk-test-key", headers={"x-team": "a"})
        provider.complete(ModelRequest("m", "", [UserMessage(text="u")]))
        asked = server.asked[0]
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == "Bearer sk-test-key"
    assert (asked.headers["openai-organization"], asked.headers["x-team"]) == ("org-1", "a")
