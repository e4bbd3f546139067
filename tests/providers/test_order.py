"""The checker of order sees what real servers refuse."""

from typing import Any

import pytest

from tests.providers.order import check_chat, check_messages

USER = {"role": "user", "content": "go"}


def asks(*ids: str, arguments: str = "{}", name: str = "look") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": i, "type": "function", "function": function} for i in ids]}


def told(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "seen"}


def uses(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": i, "name": "look", "input": {}} for i in ids]}


def results(*ids: str, text: str = "") -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [{"type": "tool_result", "tool_use_id": i, "content": "seen"} for i in ids]
    return {"role": "user", "content": [*blocks, *([{"type": "text", "text": text}] if text else [])]}


def test_what_is_in_order_passes() -> None:
    system = {"role": "system", "content": "Be kind."}
    check_chat({"messages": [system, USER, asks("a", "b"), told("a"), told("b"), USER]})
    check_messages({"max_tokens": 1, "messages": [USER, uses("a", "b"), results("a", "b", text="more")]})


@pytest.mark.parametrize(
    "messages",
    [
        [USER, told("a")],
        [USER, asks("a")],
        [USER, asks("a"), USER],
        [USER, asks("a", "b"), told("b"), told("a")],
        [USER, asks("a", "b"), told("a"), USER, told("b")],
        [USER, asks("a"), told("a"), told("a")],
        [USER, asks("a", "a"), told("a"), told("a")],
        [USER, asks(""), told("")],
        [USER, asks("a", arguments="[1]"), told("a")],
        [USER, asks("a", arguments='{"n'), told("a")],
        [USER, asks("a", name="my tool"), told("a")],
        [USER, {"role": "assistant", "content": ""}],
        [USER, {"role": "assistant", "content": "x", "tool_calls": []}],
        [USER, {"role": "system", "content": "x"}],
        [{"role": "model", "content": "x"}],
        [USER, asks("a"), {**told("a"), "content": None}],
    ],
)
def test_a_chat_out_of_order_is_seen(messages: list[Any]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check_chat({"messages": messages})


def test_mistrals_own_rules_are_seen() -> None:
    for messages in ([USER, asks("a"), told("a")], [USER, asks("abcdefghi"), told("abcdefghi"), USER]):
        check_chat({"messages": messages})
        with pytest.raises(AssertionError):
            check_chat({"messages": messages}, "mistral")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": "x"}],
        [USER, USER],
        [USER, uses("a")],
        [USER, uses("a"), USER],
        [USER, uses("a", "b"), results("a")],
        [USER, uses("a", "b"), results("b", "a")],
        [USER, results("a")],
        [USER, uses("a"), results("a"), uses("a"), results("a")],
        [USER, uses("a:0"), results("a:0")],
        [USER, {"role": "assistant", "content": []}],
        [USER, {"role": "assistant", "content": [{"type": "text", "text": " "}]}],
        [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}],
        [USER, uses("a"), {"role": "user", "content": results("a", text="x")["content"][::-1]}],
    ],
)
def test_messages_out_of_order_are_seen(messages: list[Any]) -> None:
    with pytest.raises(AssertionError):
        check_messages({"max_tokens": 1, "messages": messages})
