"""The rules of order and form that real servers hold requests to, and the official clients' types do not say."""

import json
import re
from typing import Any

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_CALL_IDS = {"mistral": re.compile(r"[a-zA-Z0-9]{9}"), "openai": re.compile(r"[a-zA-Z0-9_-]{1,40}")}
_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check(path: str, body: Any) -> None:
    """Raises AssertionError for a request that the API at this path would refuse."""
    if path.partition("?")[0].endswith("/chat/completions"):
        check_chat(body)
    elif path.endswith("/messages"):
        check_messages(body)


def check_chat(body: dict[str, Any], server: str = "") -> None:
    """OpenAI's rules, and with the name of a ``server`` those that are its own."""
    tools = body.get("tools")
    assert tools is None or tools, "tools is empty"
    assert tools or not body.keys() & {"tool_choice", "parallel_tool_calls"}, "a choice without tools"
    _check_names([tool["function"]["name"] for tool in tools or () if tool["type"] == "function"])
    asked: list[str] = []
    before = None
    for place, message in enumerate(body["messages"]):
        role = message["role"]
        assert role in ("system", "developer", "user", "assistant", "tool"), f"role {role}"
        assert role not in ("system", "developer") or place == 0, "instructions in the middle"
        if role == "tool":
            assert asked, "a result without a call"
            assert message["tool_call_id"] == asked.pop(0), "a result out of order"
            assert isinstance(message["content"], str), "a result that is no text"
        else:
            assert not asked, f"calls without a result: {asked}"
            assert not (server == "mistral" and role == "user" and before == "tool"), "a user after a tool"
        if role == "assistant":
            asked = _chat_calls(message, server)
            assert message.get("content") or asked, "an empty turn"
        elif role != "tool":
            assert message.get("content") is not None, "a message without content"
        before = role
    assert not asked, f"calls without a result: {asked}"


def _chat_calls(message: dict[str, Any], server: str) -> list[str]:
    calls = message.get("tool_calls", [])
    assert "tool_calls" not in message or calls, "tool_calls is empty"
    for call in calls:
        assert isinstance(json.loads(call["function"]["arguments"]), dict), "arguments that are no object"
        assert _NAME.fullmatch(call["function"]["name"]), "a name that is refused"
        assert server not in _CALL_IDS or _CALL_IDS[server].fullmatch(call["id"]), f"id {call['id']!r}"
    ids = [call["id"] for call in calls]
    assert all(ids), "a call without an id"
    assert len(set(ids)) == len(ids), "the same id twice"
    return ids


def check_messages(body: dict[str, Any]) -> None:
    """Anthropic's rules."""
    assert isinstance(body["max_tokens"], int), "no max_tokens"
    assert "system" not in body or body["system"], "system is empty"
    assert body.get("tools") or "tool_choice" not in body, "a choice without tools"
    _check_names([tool["name"] for tool in body.get("tools", ())])
    known, asked, roles = set[str](), list[str](), list[str]()
    for message in body["messages"]:
        roles.append(message["role"])
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        assert blocks, "an empty turn"
        assert all(block["text"].strip() for block in blocks if block["type"] == "text"), "an empty text"
        assert all(block.get("signature") for block in blocks if block["type"] == "thinking"), "unsigned thinking"
        if message["role"] == "user":
            results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
            assert results == asked, "not one result for each call, in order"
            assert all(block["type"] == "tool_result" for block in blocks[: len(results)]), "a text before the results"
            asked = []
        else:
            calls = [block for block in blocks if block["type"] == "tool_use"]
            asked = _uses(calls, known)
    assert not asked, f"calls without a result: {asked}"
    wanted = ["user", "assistant"] * len(roles)
    assert roles == wanted[: len(roles)], f"turns do not alternate: {roles}"


def _uses(calls: list[dict[str, Any]], known: set[str]) -> list[str]:
    for call in calls:
        assert isinstance(call["input"], dict), "input that is no object"
        assert _NAME.fullmatch(call["name"]), "a name that is refused"
        assert _ANTHROPIC_ID.fullmatch(call["id"]), f"id {call['id']!r}"
        assert call["id"] not in known, "the same id twice"
        known.add(call["id"])
    return [call["id"] for call in calls]


def _check_names(names: list[str]) -> None:
    assert all(_NAME.fullmatch(name) for name in names), f"names that are refused: {names}"
    assert len(set(names)) == len(names), f"two tools of one name: {names}"
