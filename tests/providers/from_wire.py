"""Recorded requests read back into neutral words, for our own builders to write them again."""

import base64
import re
from collections.abc import Iterable
from typing import Any

from agentq import File, Image
from agentq.inputs import checked_message
from agentq.messages import AssistantMessage, Message, ToolMessage, ToolResult, UserMessage
from agentq.providers.anthropic_reply import read_reply as read_messages
from agentq.providers.base import ModelRequest, ToolSpec
from agentq.providers.chat_reply import read_reply as read_chat
from agentq.results import to_content


class BeyondError(Exception):
    """It has no neutral words."""


def request_of(row: dict[str, Any]) -> ModelRequest:
    """The request of a row. Raises BeyondError for one that we would never make."""
    body = row["request"]["body"]
    read = _messages if row["api"] == "anthropic" else _chat
    instructions, messages = read(body, row["provider"])
    rest = {"model", "messages", "tools", "system", "stream", "stream_options"}
    settings = {key: value for key, value in body.items() if key not in rest}
    return ModelRequest("m", instructions, messages, tuple(_tools(body)), settings)


def _tools(body: dict[str, Any]) -> Iterable[ToolSpec]:
    for tool in body.get("tools", ()):
        function = tool.get("function", tool)
        schema = function.get("parameters", function.get("input_schema"))
        if schema is None:
            raise BeyondError("a tool of the provider's own")
        yield ToolSpec(function["name"], function.get("description") or "", schema)


def _chat(body: dict[str, Any], provider: str) -> tuple[str, list[Message]]:
    instructions, messages, names = "", list[Message](), dict[str, str]()
    for place, message in enumerate(body["messages"]):
        match message["role"]:
            case "system" | "developer" if place == 0:
                instructions = message["content"]
            case "user":
                messages.append(_user(message["content"]))
            case "assistant":
                document = {"choices": [{"message": message, "finish_reason": "stop"}]}
                reply = read_chat(document, provider, "m").message
                names |= {call.id: call.name for call in reply.calls}
                messages.append(reply)
            case "tool" if isinstance(message["content"], str):
                call_id = message["tool_call_id"]
                messages.append(_result(call_id, names[call_id], message["content"]))
            case role:
                raise BeyondError(f"role {role}")
    return instructions, messages


def _messages(body: dict[str, Any], provider: str) -> tuple[str, list[Message]]:
    messages, names = list[Message](), dict[str, str]()
    for message in body["messages"]:
        content = message["content"]
        if message["role"] == "system":
            raise BeyondError("instructions in the middle")
        if message["role"] == "assistant":
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            reply = read_messages({"content": blocks, "stop_reason": "end_turn"}, provider, "m").message
            names |= {call.id: call.name for call in reply.calls}
            messages.append(reply)
        elif isinstance(content, str):
            messages.append(_user(content))
        else:
            messages += _turn(content, names)
    system = body.get("system", "")
    return system if isinstance(system, str) else "\n".join(block["text"] for block in system), messages


def _turn(blocks: list[dict[str, Any]], names: dict[str, str]) -> Iterable[Message]:
    said = [block for block in blocks if block["type"] != "tool_result"]
    for block in blocks:
        if block["type"] == "tool_result":
            call_id, content = block["tool_use_id"], block.get("content", "")
            yield _result(call_id, names[call_id], content, is_error=bool(block.get("is_error")))
    if said:
        yield _user(said)


def _user(content: Any) -> UserMessage:
    parts = [content] if isinstance(content, str) else [_part(part) for part in content]
    return UserMessage(**checked_message(parts))


def _result(call_id: str, name: str, content: Any, *, is_error: bool = False) -> ToolMessage:
    parts = [content] if isinstance(content, str) else [_part(part) for part in content]
    text, media = to_content(parts) if len(parts) > 1 or not isinstance(parts[0], str) else (parts[0], ())
    status: Any = "error" if is_error else "success"
    return ToolMessage(result=ToolResult(call_id=call_id, name=name, text=text, media=media, status=status))


def _part(part: dict[str, Any]) -> str | Image | File:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "image", "source": {"url": str(url)}}:
            found = re.fullmatch(r"data:([^;]*);base64,(.*)", url)
            return Image.from_bytes(base64.b64decode(found[2])) if found else Image.from_url(url)
        case {"type": "image", "source": {"data": str(data)}}:
            return Image.from_bytes(base64.b64decode(data))
        case _:
            raise BeyondError(f"a part of type {part.get('type')}")


def replies(messages: Iterable[Message]) -> list[AssistantMessage]:
    return [message for message in messages if isinstance(message, AssistantMessage)]
