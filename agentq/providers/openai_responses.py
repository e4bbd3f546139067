"""The Responses API, as OpenAI and servers compatible with it speak it; nothing is left there between two requests."""

import os
import re
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

from agentq.content import File, Image
from agentq.errors import ProviderError
from agentq.messages import AssistantMessage, ToolMessage, ToolResult, UserMessage
from agentq.output import OUTPUT_TOOL
from agentq.providers.base import ModelReply, ModelRequest, OutputFormat, ToolSpec
from agentq.providers.choice import tool_choice
from agentq.providers.content import as_words, data_url, is_image, is_pdf, placeholder, unsupported
from agentq.providers.endpoint import AtEndpoint
from agentq.providers.openai_chat import endpoint_of
from agentq.providers.profiles import PROFILES, Profile
from agentq.providers.responses_items import made_whole
from agentq.providers.responses_reply import read_reply
from agentq.providers.responses_stream import read_stream
from agentq.providers.schemas import OPENAI, output_format
from agentq.providers.transcript import IdRule, SentIds, kept_blocks, result_text, sent_arguments, sent_name

ENCRYPTED = "reasoning.encrypted_content"
# Made here of the settings and of what else is in the request.
_OURS = {"stream", "tool_choice", "parallel_tool_calls", "reasoning_effort"}
_NAMES = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}
_CALL_IDS = IdRule(r"[a-zA-Z0-9_-]{1,64}", 24)
_NOT_ENCRYPTED = re.compile(
    r"(encrypted.content|\binclude\b).*(not supported|unsupported|unknown)|(unsupported|unknown).*\binclude\b",
    re.IGNORECASE,
)
_NOT_TAKEN_BACK = re.compile(
    r"invalid_encrypted_content|encrypted.content.*not be (verified|decrypted)|without its required following item"
    r"|item with id .*not found",
    re.IGNORECASE,
)
# These want the results right behind the calls: https://github.com/pydantic/pydantic-ai/pull/7448
_CALLS_LAST = {"deepseek-responses"}
# Names and models that have no encrypted reasoning, and refuse to be asked for it: a process asks each of them once.
_plain: set[tuple[str, str]] = set()


class OpenAIResponses(AtEndpoint):
    """A server that speaks the Responses API.

    ``server`` is one of ``PROFILES``, which brings its address; any other one needs ``base_url``, its key is in
    ``<SERVER>_API_KEY``. ``name`` is ``<server>-responses``, for what one API has kept is nothing to another one.
    Nothing is stored there (``store`` is false unless the settings say otherwise): reasoning comes encrypted and goes
    back. Settings are sent as they are, but for what has another name or form here: ``max_tokens``,
    ``reasoning_effort``, ``tool_choice`` and ``parallel_tool_calls`` (see the guide). ``model`` is used where an agent
    is given this object instead of a "provider:model" string.
    """

    def __init__(
        self,
        server: str = "openai",
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str = "",
        headers: Mapping[str, str] | None = None,
        profile: Profile | None = None,
    ) -> None:
        self._server = server
        self._profile = profile or PROFILES.get(server) or Profile(key_required=False)
        name = f"{server}-responses"
        super().__init__(endpoint_of(server, self._profile, base_url, api_key, headers or {}, name=name), model)

    def __repr__(self) -> str:
        return f"OpenAIResponses({self._server!r})"

    def output_format(self, schema: dict[str, Any], *, forced: bool) -> OutputFormat | None:
        """See HasOutputFormat. Forced, a schema beyond OpenAI's strict mode goes out as it is, and is not strict."""
        if not (self._profile.json_schema or forced):
            return None
        return output_format(schema, OPENAI, forced=forced)

    def complete(self, request: ModelRequest) -> ModelReply:
        until = time.monotonic() + request.timeout_secs
        try:
            return self._exchange(request)
        except ProviderError as error:
            if error.kind not in ("request_rejected", "model_not_found"):
                raise
            with_own_items = True
            if _NOT_ENCRYPTED.search(error.message) and (self.name, request.model) not in _plain:
                _plain.add((self.name, request.model))
            elif _NOT_TAKEN_BACK.search(error.message):
                # As after a change of account or region: texts and calls say enough to go on.
                with_own_items = False
            else:
                raise
        again = replace(request, timeout_secs=max(until - time.monotonic(), 0.001))
        return self._exchange(again, with_own_items=with_own_items)

    def _exchange(self, request: ModelRequest, *, with_own_items: bool = True) -> ModelReply:
        body = request_body(request, self.name, with_own_items=with_own_items)
        path = azure_path(self._endpoint.url) if self._server == "azure" else "/responses"
        if request.on_delta is None:
            document = self._endpoint.post(path, body, request.timeout_secs)
        else:
            with closing(self._endpoint.stream(path, body | {"stream": True}, request.timeout_secs)) as events:
                document = read_stream(events, self.name, request.on_delta)
        return read_reply(document, self.name, request.model)


def request_body(request: ModelRequest, name: str, *, with_own_items: bool = True) -> dict[str, Any]:
    """The request as it is sent: beside what makes it stateless nothing in it that was not asked for."""
    given = {_NAMES.get(key, key): value for key, value in request.settings.items() if key not in _OURS}
    body = {"store": False} | given | _choice(request)
    if effort := request.settings.get("reasoning_effort"):
        body["reasoning"] = {"effort": effort} | (body.get("reasoning") or {})
    if (name, request.model) not in _plain:
        body["include"] = list(dict.fromkeys([*(body.get("include") or ()), ENCRYPTED]))
    if request.instructions.strip():
        body["instructions"] = request.instructions
    body |= {"model": request.model, "input": _input(request, name, with_own_items)}
    if request.tools:
        body["tools"] = [*body.get("tools", ()), *map(_tool, request.tools)]
    if request.output is not None:
        answer = {"name": OUTPUT_TOOL, "schema": request.output.schema, "strict": request.output.strict}
        body["text"] = {"format": {"type": "json_schema", **answer}} | (body.get("text") or {})
    return body


def azure_path(address: str) -> str:
    """As for Chat Completions, see profiles.azure_path; the deployment is told as the model alone."""
    if urlsplit(address).path.strip("/"):
        return "/responses"
    if version := os.environ.get("OPENAI_API_VERSION", "").strip():
        return f"/openai/responses?api-version={quote(version, safe='')}"
    return "/openai/v1/responses"


def _choice(request: ModelRequest) -> dict[str, Any]:
    choice = tool_choice(request)
    if choice is None:
        return {}
    named = {"type": "function", "name": choice.name}
    chosen = choice.other or (named if choice.mode == "tool" else choice.mode)
    said = {"tool_choice": chosen, "parallel_tool_calls": choice.parallel}
    return {key: value for key, value in said.items() if value is not None}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    # Where it is not said, tools are strict here, and a schema may not be fit for that.
    tool = {"type": "function", "name": spec.name, "parameters": {"properties": {}, **spec.parameters}, "strict": False}
    return tool | ({"description": spec.description} if spec.description else {})


def _input(request: ModelRequest, name: str, with_own_items: bool) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    ids = SentIds(_CALL_IDS)
    for message in request.messages:
        match message:
            case UserMessage():
                items.append({"role": "user", "content": _said(message, name)})
            case ToolMessage(result=result):
                call_id = ids.for_result(result.call_id)
                items.append({"type": "function_call_output", "call_id": call_id, "output": _output(result)})
            case AssistantMessage():
                call_ids = ids.for_calls(message.calls)
                own = _own_items(message, name, request.model, call_ids) if with_own_items else None
                items += _neutral_items(message, call_ids) if own is None else own
    return items


def _said(message: UserMessage, name: str) -> str | list[dict[str, Any]]:
    if not message.media:
        return message.text
    parts = []
    for part in message.parts:
        if isinstance(part, str):
            parts.append(_text(part))
        elif (sent := _part(part)) is not None:
            parts.append(sent)
        else:
            raise unsupported(part, name)
    return parts


def _output(result: ToolResult) -> str | list[dict[str, Any]]:
    if not result.media:
        return result_text(result)
    word = result_text(result).removesuffix(result.text).strip()
    parts = [_text(part) if isinstance(part, str) else _part(part) or _text(placeholder(part)) for part in result.parts]
    return [_text(word), *parts] if word else parts


def _part(media: Image | File) -> dict[str, Any] | None:
    """An image or a document, or a text file as text; None where there is no form for it."""
    if (words := as_words(media)) is not None:
        return _text(words)
    if is_image(media):
        return {"type": "input_image", "image_url": media.url or data_url(media), "detail": "auto"}
    if is_pdf(media):
        if media.url:
            return {"type": "input_file", "file_url": media.url}
        return {"type": "input_file", "filename": media.name or "document.pdf", "file_data": data_url(media)}
    return None


def _text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def _own_items(message: AssistantMessage, name: str, model: str, call_ids: list[str]) -> list[dict[str, Any]] | None:
    """What this model made, unchanged; None where another one did, or where it is not its reply any more."""
    kept = [block.value for block in kept_blocks(message, name, model)]
    items = made_whole(kept, message, call_ids) if kept else None
    # Reasoning that led to nothing, for the reply was cut behind it, is refused.
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    if items and name in _CALLS_LAST:
        items.sort(key=lambda item: item.get("type") == "function_call")
    return items


def _neutral_items(message: AssistantMessage, call_ids: list[str]) -> list[dict[str, Any]]:
    # llama.cpp takes an assistant's message by its type only.
    said: dict[str, Any] = {"type": "message", "role": "assistant", "content": message.text}
    return ([said] if message.text.strip() else []) + [
        {
            "type": "function_call",
            "call_id": call_id,
            "name": sent_name(call.name),
            "arguments": sent_arguments(call.arguments),
        }
        for call_id, call in zip(call_ids, message.calls, strict=True)
    ]
