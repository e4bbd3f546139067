"""The Messages API: what is sent, and how signed blocks keep their place."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
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
from agentq.providers.anthropic import MAX_PAUSES, Anthropic, request_body
from agentq.providers.anthropic_reply import read_reply
from agentq.providers.base import ModelRequest, ToolSpec
from tests.providers.fake_server import Answer, Asked, response, serve
from tests.providers.rows import BY_ID, SHAPES

THINKING = {"type": "thinking", "thinking": "", "signature": "S+/= sk-secret-0123456789"}
REDACTED = {"type": "redacted_thinking", "data": "R"}
TEXT = {"type": "text", "text": "Let me look."}
USE = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"b": 1, "a": [2]}}


def call(call_id: str, arguments: str = "{}", name: str = "look") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def result(call_id: str, text: str = "seen", **more: Any) -> ToolMessage:
    return ToolMessage(result=ToolResult(call_id=call_id, name="look", text=text, **more))


def body(*messages: Message, **request: Any) -> dict[str, Any]:
    return request_body(ModelRequest("m", request.pop("instructions", ""), messages, **request), "anthropic")


def turns(*messages: Message) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = body(*messages)["messages"]
    return sent


def read(content: Any, stop_reason: Any = "tool_use", **more: Any) -> AssistantMessage:
    return read_reply({"content": content, "stop_reason": stop_reason, **more}, "anthropic", "m").message


def test_nothing_but_the_required_limit_is_added() -> None:
    user = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    assert body(UserMessage(text="hi")) == {"model": "m", "max_tokens": 8192, "messages": [user]}


def test_settings_instructions_and_tools_go_out() -> None:
    tool = ToolSpec("look", "Look.", {"type": "object"})
    wire = body(
        UserMessage(text="hi"), instructions="Be kind.", tools=[tool], settings={"max_tokens": 9, "stream": True}
    )
    assert (wire["system"], wire["max_tokens"]) == ("Be kind.", 9)
    assert wire["tools"] == [
        {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}},
    ]
    assert "stream" not in wire
    assert body(UserMessage(text="hi"), settings={"max_completion_tokens": 7})["max_tokens"] == 7


def test_all_results_of_a_reply_are_in_one_user_turn_before_the_text() -> None:
    sent = turns(
        UserMessage(text="go"),
        AssistantMessage(text="Both.", calls=(call("a", '{"x": 1}'), call("b"))),
        result("a", "1"),
        result("b", "no", status="error"),
        UserMessage(text="And now?"),
    )
    assert [turn["role"] for turn in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == [
        {"type": "text", "text": "Both."},
        {"type": "tool_use", "id": "a", "name": "look", "input": {"x": 1}},
        {"type": "tool_use", "id": "b", "name": "look", "input": {}},
    ]
    assert sent[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": True},
        {"type": "text", "text": "And now?"},
    ]


def test_a_rejected_call_is_an_error_too() -> None:
    sent = turns(AssistantMessage(calls=(call("a"),)), result("a", "too much", status="rejected"))
    assert sent[1]["content"][0]["is_error"] is True


def test_empty_texts_and_empty_turns_are_not_sent() -> None:
    sent = turns(
        UserMessage(text="a"), AssistantMessage(text=" \n"), AssistantMessage(stop="blocked"), UserMessage(text="b")
    )
    assert sent == [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert turns(UserMessage(text=" ")) == []


def test_foreign_ids_are_mapped_one_to_one_in_the_request_only() -> None:
    asked = ("functions.look:0", "functions.look_0", "x" * 94, "toolu_own", "")
    transcript: list[Message] = [AssistantMessage(calls=tuple(call(i) for i in asked)), *(result(i) for i in asked)]
    before = [message.model_dump_json() for message in transcript]
    sent = turns(*transcript)
    ids = [block["id"] for block in sent[0]["content"]]
    assert [block["tool_use_id"] for block in sent[1]["content"]] == ids
    assert len(set(ids)) == 5
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", i) for i in ids)
    assert ids[3] == "toolu_own"
    assert ids[1] != "functions.look_0" or ids[0] != ids[1]
    assert [message.model_dump_json() for message in transcript] == before


def test_an_id_used_again_becomes_a_new_one_with_its_result() -> None:
    sent = turns(
        AssistantMessage(calls=(call("dup"), call("dup"))),
        result("dup", "first"),
        result("dup", "second"),
        AssistantMessage(calls=(call("dup"),)),
        result("dup", "third"),
    )
    ids = [block["id"] for turn in (sent[0], sent[2]) for block in turn["content"]]
    pairs = [(block["tool_use_id"], block["content"]) for turn in (sent[1], sent[3]) for block in turn["content"]]
    assert len(set(ids)) == 3
    assert pairs == list(zip(ids, ["first", "second", "third"], strict=True))


@pytest.mark.parametrize("broken", ["", "null", "[1]", '{"path": "a', '{"x": NaN}'])
def test_broken_arguments_are_sent_back_as_an_empty_object(broken: str) -> None:
    assert turns(AssistantMessage(calls=(call("a", broken),)), result("a"))[0]["content"][0]["input"] == {}


# ---------------------------------------------------------------------------------------------- signed blocks


@pytest.mark.parametrize(
    "content",
    [
        [THINKING, REDACTED, TEXT, USE],
        [REDACTED, THINKING, USE, {**USE, "id": "toolu_2"}],
        [THINKING, TEXT, {**THINKING, "signature": "T"}, USE, {**THINKING, "signature": "U"}, {**USE, "id": "toolu_2"}],
        [THINKING, TEXT],
        [
            TEXT,
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
            {"type": "text", "text": "x"},
        ],
        [{"type": "thinking", "thinking": "half \ud83d and \u0000", "signature": "S"}, TEXT],
    ],
    ids=lambda content: ",".join(block["type"] for block in content),
)
def test_signed_blocks_come_back_unchanged_and_in_their_place(content: list[dict[str, Any]]) -> None:
    def answer(_: Asked) -> Answer:
        return response({"content": content, "stop_reason": "end_turn", "usage": {"input_tokens": 1}})

    with serve(answer) as server:
        provider = Anthropic(base_url=server.url, api_key="sk-test-key")
        message = provider.complete(ModelRequest("m", "", [UserMessage(text="u")])).message
        stored = load_message(message.model_dump_json())
        results = [result(c.id) for c in message.calls]
        provider.complete(ModelRequest("m", "", [UserMessage(text="u"), stored, *results, UserMessage(text="v")]))
        sent = server.asked[1].body["messages"][1]
    assert sent == {"role": "assistant", "content": content}
    assert [list(block) for block in sent["content"]] == [list(block) for block in content]


def test_signed_blocks_go_to_no_other_model() -> None:
    message = read([THINKING, TEXT, USE])
    transcript: list[Message] = [UserMessage(text="u"), message, result("toolu_1")]
    for name, model in (("anthropic", "other"), ("proxy", "m")):
        wire = request_body(ModelRequest(model, "", transcript), name)
        assert [block["type"] for block in wire["messages"][1]["content"]] == ["text", "tool_use"]


def test_thinking_that_was_never_signed_is_not_sent() -> None:
    for unsigned in ({"type": "thinking", "thinking": "x"}, {"type": "thinking", "thinking": "x", "signature": ""}):
        message = read([unsigned, TEXT], "end_turn")
        assert isinstance(message.reasoning[0], Reasoning)
        assert turns(UserMessage(text="u"), message)[1]["content"] == [TEXT]


# ---------------------------------------------------------------------------------------------- the reply


@pytest.mark.parametrize(
    ("reason", "content", "stop"),
    [
        ("end_turn", [TEXT], "final"),
        ("stop_sequence", [TEXT], "final"),
        ("tool_use", [USE], "tool_calls"),
        ("end_turn", [USE], "tool_calls"),
        ("max_tokens", [TEXT], "length"),
        ("max_tokens", [{**USE, "input": {}}], "length"),
        ("model_context_window_exceeded", [TEXT], "length"),
        ("refusal", [], "blocked"),
        ("end_turn", [], "final"),
        ("end_turn", [THINKING], "final"),
    ],
)
def test_a_reply_ends_for_a_known_reason(reason: str, content: list[Any], stop: str) -> None:
    assert read(content, reason).stop == stop


def test_a_refused_reply_shows_nothing_of_what_was_said() -> None:
    message = read([TEXT, USE], "refusal")
    assert (message.text, message.calls) == ("", ())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "end_turn"),
        ("text", "end_turn"),
        ([None], "end_turn"),
        ([{"text": "x"}], "end_turn"),
        ([{"type": "tool_use", "id": "a"}], "tool_use"),
        ([TEXT], None),
        ([TEXT], "brand_new"),
        ([TEXT], ["end_turn"]),
        ([TEXT], "pause_turn"),
    ],
)
def test_an_answer_that_cannot_be_used_is_invalid(content: Any, reason: Any) -> None:
    with pytest.raises(ProviderError) as caught:
        read(content, reason)
    assert caught.value.kind == "reply_invalid"
    assert caught.value.retryable is (reason != "pause_turn")


def test_arguments_keep_the_order_they_came_in() -> None:
    assert read([USE]).calls[0].arguments == '{"b": 1, "a": [2]}'
    assert read([{**USE, "input": None}]).calls[0].arguments == "{}"
    assert read([{**USE, "id": None}]).calls[0].id == ""


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Usage()),
        ({"input_tokens": "12", "output_tokens": None}, Usage()),
        ({"input_tokens": 1, "cache_read_input_tokens": None}, Usage(input_tokens=1)),
        (
            {"input_tokens": 1, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 300, "output_tokens": 4},
            Usage(input_tokens=321, output_tokens=4, cache_read_tokens=20, cache_write_tokens=300),
        ),
    ],
)
def test_the_cache_counts_as_input(usage: Any, expected: Usage) -> None:
    assert read_reply({"content": [], "stop_reason": "end_turn", "usage": usage}, "anthropic", "m").usage == expected


def test_a_full_context_is_a_cut_reply() -> None:
    shape = next(shape for shape in SHAPES if shape["id"] == "shape-an-ctx")
    reply = read_reply(shape["response"]["body"], "anthropic", "m")
    assert (reply.message.stop, reply.message.text) == ("length", "cut")


def test_the_request_has_the_version_and_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = response({"content": [TEXT], "stop_reason": "end_turn"})
    request = ModelRequest("m", "", [UserMessage(text="hi")])
    with serve(answer) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"{server.url}/")
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-key")
        Anthropic(headers={"anthropic-beta": "x"}).complete(request)
        monkeypatch.delenv("ANTHROPIC_API_KEY")
        monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token")
        Anthropic().complete(request)
        first, second = server.asked
    assert (first.path, first.headers["x-api-key"]) == ("/v1/messages", "sk-ant-key")
    assert (first.headers["anthropic-version"], first.headers["anthropic-beta"]) == ("2023-06-01", "x")
    assert "x-api-key" not in second.headers
    assert second.headers["authorization"] == "Bearer token"


def texts_joined(content: list[Any]) -> list[Any]:
    """Neighbouring texts as one block."""
    joined: list[Any] = []
    for is_text, group in groupby(content, lambda block: block["type"] == "text"):
        blocks = list(group)
        joined += [{"type": "text", "text": "".join(block["text"] for block in blocks)}] if is_text else blocks
    return joined


def pausing(times: int) -> Callable[[Asked], Answer]:
    """A server whose model pauses so often, and then gives the recorded answer."""
    first, last = (BY_ID[f"anthropic-0584f9-t{turn}"]["response"]["body"] for turn in (0, 1))
    bodies = iter([*[first] * times, last])
    return lambda _: response(next(bodies))


def test_a_model_that_pauses_goes_on_with_what_it_had() -> None:
    first, last = (BY_ID[f"anthropic-0584f9-t{turn}"] for turn in (0, 1))
    with serve(pausing(1)) as server:
        request = ModelRequest("m", "", [UserMessage(text="go")], settings={"max_tokens": 100})
        reply = Anthropic(base_url=server.url, api_key="sk-test-key").complete(request)
    asked, again = (asked.body for asked in server.asked)
    assert again == asked | {"messages": [*asked["messages"], again["messages"][-1]]}
    said = first["response"]["body"]["content"]
    assert again["messages"][-1] == {"role": "assistant", "content": said}
    assert again["messages"][-1] == last["request"]["body"]["messages"][-1]
    whole = [*said, *last["response"]["body"]["content"]]
    assert reply.message.text == "".join(block["text"] for block in whole if block["type"] == "text")
    # Back it goes as the one turn that it was.
    sent = request_body(replace(request, messages=[*request.messages, reply.message]), "anthropic")["messages"]
    assert sent[-1]["content"] == texts_joined(whole)
    used = [row["response"]["body"]["usage"] for row in (first, last)]
    assert reply.usage.output_tokens == sum(each["output_tokens"] for each in used)


def test_a_model_that_pauses_for_ever_is_given_up() -> None:
    request = ModelRequest("m", "", [UserMessage(text="go")])
    with serve(pausing(100)) as server, pytest.raises(ProviderError) as caught:
        Anthropic(base_url=server.url, api_key="sk-test-key").complete(request)
    assert (caught.value.kind, caught.value.retryable) == ("reply_invalid", False)
    assert len(server.asked) == 1 + MAX_PAUSES
