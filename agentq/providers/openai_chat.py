"""Chat Completions, as OpenAI and the many servers compatible with it speak it."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from agentq.content import File, Image
from agentq.messages import AssistantMessage, ToolMessage, ToolResult, UserMessage
from agentq.output import OUTPUT_TOOL
from agentq.providers.base import ModelReply, ModelRequest, OutputFormat, ToolSpec
from agentq.providers.chat_reply import read_reply
from agentq.providers.chat_stream import read_stream
from agentq.providers.choice import tool_choice
from agentq.providers.content import as_words, data_url, in_words, is_image, is_pdf, unsupported
from agentq.providers.endpoint import AtEndpoint, Endpoint, Secret
from agentq.providers.profiles import PROFILES, Profile, azure_path, variable
from agentq.providers.schemas import OPENAI, output_format, with_items
from agentq.providers.transcript import SentIds, kept_blocks, result_text, sent_arguments, sent_name

# Made here of the settings and of what else is in the request.
_OURS = {"stream", "tool_choice", "parallel_tool_calls"}


class OpenAIChat(AtEndpoint):
    """A server that speaks Chat Completions.

    A ``name`` of ``PROFILES`` brings its address and ways; any other one needs ``base_url``, its key is in
    ``<NAME>_API_KEY``. ``model`` is used where an agent is given this object instead of a "provider:model" string.
    Settings of an agent are sent as they are, but for what has another name or form at this server: ``max_tokens``,
    ``stop`` (or ``stop_sequences``), ``tool_choice`` and ``parallel_tool_calls`` (see the guide).
    """

    def __init__(
        self,
        name: str = "openai",
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str = "",
        headers: Mapping[str, str] | None = None,
        profile: Profile | None = None,
    ) -> None:
        self._profile = profile or PROFILES.get(name) or Profile(key_required=False)
        super().__init__(endpoint_of(name, self._profile, base_url, api_key, headers or {}), model)

    def output_format(self, schema: dict[str, Any], *, forced: bool) -> OutputFormat | None:
        """See HasOutputFormat. Forced, a schema beyond OpenAI's strict mode goes out as it is, and is not strict."""
        if not (self._profile.json_schema or forced):
            return None
        return output_format(schema, OPENAI, forced=forced)

    def complete(self, request: ModelRequest) -> ModelReply:
        body = request_body(request, self.name, self._profile)
        path = azure_path(self._endpoint.url, request.model) if self.name == "azure" else "/chat/completions"
        if request.on_delta is None:
            document = self._endpoint.post(path, body, request.timeout_secs)
        else:
            body["stream"] = True
            if self._profile.stream_usage:
                body["stream_options"] = {"include_usage": True}
            # Where an address leads to another server, it may not have the marker of the one it is named after.
            marked = self._profile.done_marker and not self._endpoint.is_moved
            with closing(self._endpoint.stream(path, body, request.timeout_secs)) as events:
                document = read_stream(events, self.name, request.on_delta, done_marker=marked)
        return read_reply(document, self.name, request.model)


def endpoint_of(
    server: str,
    profile: Profile,
    base_url: str | None,
    api_key: str | None,
    headers: Mapping[str, str],
    *,
    name: str | None = None,
) -> Endpoint:
    """Where a server is, and how it wants its key; ``name`` is that of the API that is spoken there."""
    return Endpoint(
        name or server,
        Secret(variable(server, "API_KEY"), api_key),
        default_url=profile.base_url,
        base_url=base_url,
        base_url_variable=variable(server, "BASE_URL"),
        key_header=profile.key_header,
        key_required=profile.key_required,
        bearer=Secret(profile.bearer_variable) if profile.bearer_variable else None,
        headers=dict(headers),
        header_variables=profile.header_variables,
    )


def request_body(request: ModelRequest, name: str, profile: Profile) -> dict[str, Any]:
    """The request as it is sent: nothing in it that was not asked for."""
    names = {
        "max_tokens": profile.max_tokens_field,
        "max_completion_tokens": profile.max_tokens_field,
        "stop_sequences": "stop",
        **profile.renamed,
    }
    given = {names.get(key, key): value for key, value in request.settings.items()}
    body = {key: value for key, value in given.items() if key not in _OURS} | _choice(request, profile)
    body |= {"model": request.model, "messages": _messages(request, name, profile)}
    if request.tools:
        body["tools"] = [*body.get("tools", ()), *map(_tool, request.tools)]
    if request.output is not None:
        answer = {"name": OUTPUT_TOOL, "schema": request.output.schema, "strict": request.output.strict}
        body.setdefault("response_format", {"type": "json_schema", "json_schema": answer})
    return body


def _choice(request: ModelRequest, profile: Profile) -> dict[str, Any]:
    choice = tool_choice(request)
    if choice is None:
        return {}
    named = {"type": "function", "function": {"name": choice.name}}
    chosen = choice.other or {"required": profile.required, "tool": named}.get(choice.mode or "", choice.mode)
    said = {"tool_choice": chosen, "parallel_tool_calls": choice.parallel}
    return {key: value for key, value in said.items() if value is not None}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {"name": spec.name, "parameters": with_items({"properties": {}, **spec.parameters})}
    if spec.description:
        function["description"] = spec.description
    return {"type": "function", "function": function}


def _messages(request: ModelRequest, name: str, profile: Profile) -> list[dict[str, Any]]:
    writer = _Writer(request, name, profile)
    for position, message in enumerate(request.messages):
        writer.add(message, position)
    writer.show()
    return writer.sent


@dataclass
class _Writer:
    request: ModelRequest
    name: str
    profile: Profile
    sent: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # What tools have returned beside text: a tool message takes nothing else, so it goes into a user's.
        self._shown: list[dict[str, Any]] = []
        self._number = 0
        self._ids = SentIds(self.profile.call_ids)
        users = [i for i, message in enumerate(self.request.messages) if isinstance(message, UserMessage)]
        self._loop_start = 0 if self.profile.reasoning_back == "always" else max(users, default=0)
        if self.request.instructions.strip():
            self.sent.append({"role": "system", "content": self.request.instructions})

    def add(self, message: UserMessage | AssistantMessage | ToolMessage, position: int) -> None:
        match message:
            case UserMessage():
                self._add_user(message)
            case ToolMessage(result=result):
                sent_id = self._ids.for_result(result.call_id)
                text = result_text(self._in_words(result) if result.media else result)
                self.sent.append({"role": "tool", "tool_call_id": sent_id, "content": text})
            case AssistantMessage():
                self.show()
                self._add_assistant(message, with_reasoning=position >= self._loop_start)

    def show(self) -> None:
        """Show what the tools returned, behind all results of their turn."""
        if self._shown:
            self._add_user(UserMessage(text=""))

    def _add_user(self, message: UserMessage) -> None:
        content: Any = message.text
        if message.media or self._shown:
            parts = [_text(part) if isinstance(part, str) else self._sent(part) for part in message.parts]
            content, self._shown = self._shown + parts, []
        if not self.profile.user_after_tool and self.sent and self.sent[-1]["role"] == "tool":
            self.sent.append({"role": "assistant", "content": "OK."})
        self.sent.append({"role": "user", "content": content})

    def _sent(self, media: Image | File) -> dict[str, Any]:
        words = as_words(media)
        part = _text(words) if words is not None else self._part(media)
        if part is None:
            raise unsupported(media, self.name)
        return part

    def _part(self, media: Image | File) -> dict[str, Any] | None:
        """An image or a document; None where there is no form for it."""
        if is_image(media):
            return {"type": "image_url", "image_url": {"url": media.url or data_url(media)}}
        if is_pdf(media) and self.profile.pdf and not media.url:
            file = {"filename": media.name or "document.pdf", "file_data": data_url(media)}
            return {"type": "file", "file": file}
        return None

    def _in_words(self, result: ToolResult) -> ToolResult:
        told = in_words(result, self._part, shown_before=self._number)
        for number, part in enumerate(told.shown, self._number + 1):
            self._shown += [_text(told.title(number)), part]
        self._number += len(told.shown)
        return result.model_copy(update={"text": told.text, "media": ()})

    def _add_assistant(self, message: AssistantMessage, *, with_reasoning: bool) -> None:
        ids = self._ids.for_calls(message.calls)
        if not message.text and not message.calls:
            return  # An empty turn is refused by most servers.
        sent: dict[str, Any] = {"role": "assistant", "content": message.text}
        if message.calls:
            sent["tool_calls"] = [
                {
                    "id": sent_id,
                    "type": "function",
                    "function": {"name": sent_name(call.name), "arguments": sent_arguments(call.arguments)},
                }
                for sent_id, call in zip(ids, message.calls, strict=True)
            ]
        if with_reasoning:
            for block in kept_blocks(message, self.name, self.request.model):
                _add_reasoning(sent, block.value)
        self.sent.append(sent)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _add_reasoning(sent: dict[str, Any], block: dict[str, Any]) -> None:
    chunks = block.get("content")
    if chunks is None:
        sent |= block
    else:
        text = [{"type": "text", "text": sent["content"]}] if sent["content"] else []
        sent["content"] = [*chunks, *text]
