"""Output items of a Responses answer as they are kept beside the reply's text and calls, and made whole again."""

from collections.abc import Iterator, Sequence
from typing import Any

from agentq.messages import AssistantMessage
from agentq.providers.transcript import sent_arguments, sent_name


def texts_of(item: dict[str, Any]) -> Iterator[str]:
    """The texts of a message, which some servers give as one string; of any other item none."""
    content = item.get("content") if item.get("type") == "message" else None
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if _has_text(part, str):
            yield part["text"]


def without_texts(item: dict[str, Any]) -> dict[str, Any]:
    """The item with the length of each text in its place, and no arguments: the reply has these already."""
    content = item.get("content")
    match item.get("type"):
        case "function_call":
            return {**item, "arguments": ""}
        case "message" if isinstance(content, str):
            return {**item, "content": len(content)}
        case "message" if isinstance(content, list):
            parts = [{**part, "text": len(part["text"])} if _has_text(part, str) else part for part in content]
            return {**item, "content": parts}
        case _:
            return item


def made_whole(
    kept: Sequence[dict[str, Any]], message: AssistantMessage, call_ids: Sequence[str]
) -> list[dict[str, Any]] | None:
    """The items as the model made them, with the ids that the calls go out with.

    None where they are not of this text and these calls: a hook has changed the reply since.
    """
    calls = iter(zip(message.calls, call_ids, strict=True))
    names = [item.get("name") for item in kept if item.get("type") == "function_call"]
    if names != [call.name for call in message.calls] or sum(map(_length, kept)) != len(message.text):
        return None
    items, chars = [], 0
    for item in kept:
        whole = item
        if item.get("type") == "function_call":
            call, call_id = next(calls)
            whole = item | {
                "call_id": call_id,
                "name": sent_name(call.name),
                "arguments": sent_arguments(call.arguments),
            }
        elif item.get("type") == "message":
            whole = {**item, "content": _content(item.get("content"), message.text[chars:])}
        items.append(whole)
        chars += _length(item)
    return items


def _has_text(part: Any, kind: type) -> bool:
    return isinstance(part, dict) and part.get("type") == "output_text" and isinstance(part.get("text"), kind)


def _length(item: dict[str, Any]) -> int:
    """How much of the reply's text is this item's."""
    content = item.get("content") if item.get("type") == "message" else None
    if isinstance(content, int):
        return content
    return sum(part["text"] for part in content if _has_text(part, int)) if isinstance(content, list) else 0


def _content(content: Any, text: str) -> Any:
    """The content with the texts, which are the beginning of ``text``, in their places."""
    if not isinstance(content, list):
        return text[:content] if isinstance(content, int) else content
    parts, chars = [], 0
    for part in content:
        if _has_text(part, int):
            begin, chars = chars, chars + part["text"]
            parts.append({**part, "text": text[begin:chars]})
        else:
            parts.append(part)
    return parts
