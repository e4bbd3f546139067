"""Anthropic's Messages API."""

import re
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from agentq.content import File, Image
from agentq.errors import ProviderError
from agentq.messages import AssistantMessage, ToolMessage, Usage, UserMessage
from agentq.providers.anthropic_reply import is_sendable, read_reply, read_usage
from agentq.providers.anthropic_stream import read_stream
from agentq.providers.base import ModelReply, ModelRequest, OutputFormat, ToolSpec
from agentq.providers.choice import tool_choice
from agentq.providers.content import base64_of, is_image, is_pdf, placeholder, text_of, unsupported
from agentq.providers.endpoint import AtEndpoint, Endpoint, Secret
from agentq.providers.schemas import ANTHROPIC, narrowed
from agentq.providers.transcript import IdRule, SentIds, arguments_object, kept_blocks, sent_name

DEFAULT_MAX_TOKENS = 8192
MAX_PAUSES = 10
# Made here of the settings and of what else is in the request.
_OURS = {"stream", "tool_choice", "parallel_tool_calls"}
_EFFORTS = {name: name for name in ("low", "medium", "high", "xhigh", "max")} | {"minimal": "low"}
_PARAMETER = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_CALL_IDS = IdRule(r"[a-zA-Z0-9_-]{1,64}", 32)


class Anthropic(AtEndpoint):
    """Claude, by its own API.

    The API wants ``max_tokens`` with each request: 8192 unless the agent's settings say something else (a model with
    a lower maximum, or a thinking budget above it, needs the setting). The key is in ANTHROPIC_API_KEY, or a bearer
    token in ANTHROPIC_AUTH_TOKEN. ``model`` is used where an agent is given this object instead of a string.
    """

    def __init__(
        self,
        name: str = "anthropic",
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        endpoint = Endpoint(
            name,
            Secret("ANTHROPIC_API_KEY", api_key),
            default_url="https://api.anthropic.com",
            base_url=base_url,
            base_url_variable="ANTHROPIC_BASE_URL",
            key_header="x-api-key",
            bearer=Secret("ANTHROPIC_AUTH_TOKEN"),
            headers={"anthropic-version": "2023-06-01", **(headers or {})},
        )
        super().__init__(endpoint, model)

    def output_format(self, schema: dict[str, Any], *, forced: bool) -> OutputFormat | None:
        """See HasOutputFormat. This mode is strict or not there."""
        strict = narrowed(schema, ANTHROPIC)
        return None if strict is None else OutputFormat(strict)

    def complete(self, request: ModelRequest) -> ModelReply:
        body, said, usage = request_body(request, self.name), list[Any](), Usage()
        asked = body["messages"]
        left, until = request.timeout_secs, time.monotonic() + request.timeout_secs
        for _ in range(1 + MAX_PAUSES):
            document = self._ask(body, request, left)
            content = document.get("content")
            said = [*said, *content] if isinstance(content, list) else said
            usage += read_usage(document.get("usage"))
            if document.get("stop_reason") != "pause_turn":
                break
            # One of Anthropic's own tools takes long: what there is goes back unchanged, and the model goes on with it.
            body = body | {"messages": [*asked, {"role": "assistant", "content": said}] if said else asked}
            left = until - time.monotonic()
        whole = document | {"content": said} if isinstance(content, list) else document
        reply = read_reply(whole, self.name, request.model)
        return ModelReply(reply.message, usage)

    def _ask(self, body: dict[str, Any], request: ModelRequest, timeout_secs: float) -> dict[str, Any]:
        if request.on_delta is None:
            return self._endpoint.post("/v1/messages", body, timeout_secs)
        with closing(self._endpoint.stream("/v1/messages", body | {"stream": True}, timeout_secs)) as events:
            return read_stream(events, self.name, request.on_delta)


def request_body(request: ModelRequest, name: str) -> dict[str, Any]:
    """The request as it is sent: beside ``max_tokens`` nothing in it that was not asked for."""
    body = {key: value for key, value in request.settings.items() if key not in _OURS}
    body = _in_own_words(body) | _choice(request)
    body = {"max_tokens": DEFAULT_MAX_TOKENS, **body, "model": request.model, "messages": _messages(request, name)}
    if request.instructions.strip():
        body["system"] = request.instructions
    if request.tools:
        body["tools"] = [*body.get("tools", ()), *map(_tool, request.tools)]
    if request.output is not None:
        answer = {"format": {"type": "json_schema", "schema": request.output.schema}}
        body["output_config"] = answer | body.get("output_config", {})
    return body


def _in_own_words(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by their names at OpenAI too, so that one agent can have models of both."""
    for theirs, own in (("max_completion_tokens", "max_tokens"), ("stop", "stop_sequences")):
        if theirs in settings:
            settings.setdefault(own, settings.pop(theirs))
            settings.pop(theirs, None)
    if isinstance(stop := settings.get("stop_sequences"), str):
        settings["stop_sequences"] = [stop]
    if effort := _EFFORTS.get(str(settings.pop("reasoning_effort", None))):
        settings["output_config"] = {"effort": effort} | settings.get("output_config", {})
    return settings


def _choice(request: ModelRequest) -> dict[str, Any]:
    choice = tool_choice(request)
    one_by_one = choice is not None and choice.parallel is False and choice.mode != "none"
    if choice is None or not (choice.mode or choice.other or one_by_one):
        return {}
    kind = "any" if choice.mode == "required" else choice.mode or "auto"
    chosen = dict(choice.other or {"type": kind})
    if kind == "tool":
        chosen["name"] = choice.name
    if one_by_one:
        chosen["disable_parallel_tool_use"] = True
    return {"tool_choice": chosen}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    """Raises ProviderError for a parameter that the API has no name for, which says less clearly what is wrong."""
    for name in spec.parameters.get("properties", ()):
        if not _PARAMETER.fullmatch(name):
            wanted = "letters from a to z, digits, _, . and -, at most 64"
            raise ProviderError(
                "request_rejected", f"tool {spec.name!r}: rename parameter {name!r} for Claude: {wanted}"
            )
    tool: dict[str, Any] = {"name": spec.name, "input_schema": {"properties": {}, **spec.parameters}}
    if spec.description:
        tool["description"] = spec.description
    return tool


def _messages(request: ModelRequest, name: str) -> list[dict[str, Any]]:
    """Turns that alternate. All results of one reply are in the one user turn after it, before any text."""
    turns: list[dict[str, Any]] = []
    ids = SentIds(_CALL_IDS)
    for message in request.messages:
        match message:
            case UserMessage():
                role, blocks = "user", _said(message, name)
            case ToolMessage():
                role, blocks = "user", [_result(message, ids)]
            case AssistantMessage():
                role, blocks = "assistant", _reply(message, name, request.model, ids)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _text(text: str) -> list[dict[str, Any]]:
    # A block without a visible character is refused.
    return [{"type": "text", "text": text}] if text.strip() else []


def _said(message: UserMessage, name: str) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, str):
            blocks += _text(part)
        elif (block := _block(part)) is not None:
            blocks.append(block)
        else:
            raise unsupported(part, name)
    return blocks


def _result(message: ToolMessage, ids: SentIds) -> dict[str, Any]:
    result = message.result
    block: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": ids.for_result(result.call_id),
        "content": result.text,
    }
    if result.media:
        # A result that is an error may hold nothing but text.
        shown = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else (_block(part) if result.status == "success" else None) or {"type": "text", "text": placeholder(part)}
            for part in result.parts
        ]
        block["content"] = shown
    return block if result.status == "success" else {**block, "is_error": True}


def _block(media: Image | File) -> dict[str, Any] | None:
    """An image or a document; None where there is no form for it."""
    title = {"title": media.name} if media.name else {}
    if is_image(media):
        return {"type": "image", "source": _source(media)}
    if is_pdf(media):
        return {"type": "document", "source": _source(media), **title}
    text = text_of(media)
    if text is None:
        return None
    if not text.strip():
        return {"type": "text", "text": f"{str(media)[:-1]}: it is blank]"}
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, **title}


def _source(media: Image | File) -> dict[str, Any]:
    if media.url:
        return {"type": "url", "url": media.url}
    return {"type": "base64", "media_type": media.media_type, "data": base64_of(media)}


def _reply(message: AssistantMessage, name: str, model: str, ids: SentIds) -> list[dict[str, Any]]:
    """The reply's blocks in the order they came: what was kept is put back in its place between text and calls."""
    calls = [
        {"type": "tool_use", "id": sent_id, "name": sent_name(call.name), "input": arguments_object(call.arguments)}
        for sent_id, call in zip(ids.for_calls(message.calls), message.calls, strict=True)
    ]
    if not calls and not message.text.strip():
        return []
    blocks: list[dict[str, Any]] = []
    chars = made = 0
    for kept in kept_blocks(message, name, model):
        if is_sendable(kept.value):
            blocks += _text(message.text[chars : kept.chars]) + calls[made : kept.calls] + [kept.value]
            chars, made = max(chars, kept.chars), max(made, kept.calls)
    return blocks + _text(message.text[chars:]) + calls[made:]
