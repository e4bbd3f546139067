"""Google's Gemini API: generateContent."""

import re
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from urllib.parse import quote

from agentq.errors import ProviderError
from agentq.providers.base import ModelReply, ModelRequest, OutputFormat, ToolSpec
from agentq.providers.choice import tool_choice
from agentq.providers.endpoint import AtEndpoint, Endpoint, Secret
from agentq.providers.gemini_contents import contents
from agentq.providers.gemini_reply import read_reply
from agentq.providers.gemini_schemas import parameters
from agentq.providers.gemini_stream import read_stream
from agentq.providers.schemas import GEMINI, output_format

# The usual names of settings, so that one agent can have models of several providers.
_CONFIG = {
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "max_output_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "stop": "stopSequences",
    "stop_sequences": "stopSequences",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
# Made here of the settings and of what else is in the request.
_OURS = {"stream", "tool_choice", "parallel_tool_calls"}
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY", "tool": "ANY"}
# They have no structured answers beside tools, and ask for no signatures.
_OLDER = re.compile(r"(^|/)(gemini-[12](\D|$)|gemma)")


class Gemini(AtEndpoint):
    """Gemini, by Google's own API.

    The key is in GEMINI_API_KEY or GOOGLE_API_KEY (which wins), another address, without its ``/v1beta``, in
    GOOGLE_GEMINI_BASE_URL. Of an agent's settings the usual ones (max_tokens, temperature, top_p, stop, seed,
    tool_choice, …) go to where they belong here; all others are sent as they are, such as ``safetySettings`` or
    ``generationConfig={"thinkingConfig": {…}}``. ``model`` is used where an agent is given this object instead of a
    string.
    """

    def __init__(
        self,
        name: str = "gemini",
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(gemini_endpoint(name, base_url, api_key, headers or {}), model)

    def output_format(self, schema: dict[str, Any], *, forced: bool) -> OutputFormat | None:
        """See HasOutputFormat. Forced, a schema beyond this mode goes out as it is, and is not strict."""
        return output_format(schema, GEMINI, forced=forced)

    def complete(self, request: ModelRequest) -> ModelReply:
        body = request_body(request, self.name)
        where = model_path(request.model)
        if request.on_delta is None:
            document = self._endpoint.post(f"{where}:generateContent", body, request.timeout_secs)
        else:
            events = self._endpoint.stream(f"{where}:streamGenerateContent?alt=sse", body, request.timeout_secs)
            with closing(events):
                document = read_stream(events, self.name, request.on_delta)
        return read_reply(document, self.name, request.model)


def gemini_endpoint(name: str, base_url: str | None, api_key: str | None, headers: Mapping[str, str]) -> Endpoint:
    return Endpoint(
        name,
        Secret("GEMINI_API_KEY", api_key, before="GOOGLE_API_KEY"),
        default_url="https://generativelanguage.googleapis.com",
        base_url=base_url,
        base_url_variable="GOOGLE_GEMINI_BASE_URL",
        key_header="x-goog-api-key",
        headers=dict(headers),
    )


def model_path(model: str) -> str:
    return f"/v1beta/{quote(resource(model))}"


def resource(model: str) -> str:
    """The model's full name: there are others than ``models/…``, such as ``tunedModels/…``."""
    return model if "/" in model else f"models/{model}"


def request_body(request: ModelRequest, name: str) -> dict[str, Any]:
    """The request as it is sent: nothing in it that was not asked for.

    Raises ProviderError ``request_rejected`` for a structured answer beside tools where the model has none.
    """
    is_older = _OLDER.search(request.model) is not None
    settings = {key: value for key, value in request.settings.items() if key not in _OURS}
    config = dict(settings.pop("generationConfig", {}))
    for key in settings.keys() & _CONFIG.keys():
        value = settings.pop(key)
        config[_CONFIG[key]] = [value] if key == "stop" and isinstance(value, str) else value
    if chosen := _choice(request):
        settings["toolConfig"] = chosen | settings.get("toolConfig", {})
    body = {**settings, "contents": contents(request, name, signed=not is_older)}
    if request.instructions.strip():
        body["systemInstruction"] = {"parts": [{"text": request.instructions}]}
    if request.tools:
        declared = {"functionDeclarations": [_tool(spec) for spec in request.tools]}
        body["tools"] = [*body.get("tools", ()), declared]
    if request.output is not None:
        if is_older and body.get("tools"):
            problem = f"{request.model} has no structured answers beside tools; use output_mode 'auto' or 'tool'"
            raise ProviderError("request_rejected", problem)
        answer = {"responseMimeType": "application/json", "responseJsonSchema": request.output.schema}
        config = answer | config
    return body | ({"generationConfig": config} if config else {})


def _tool(spec: ToolSpec) -> dict[str, Any]:
    tool: dict[str, Any] = {
        "name": spec.name,
        "parametersJsonSchema": parameters({"properties": {}, **spec.parameters}),
    }
    return {**tool, "description": spec.description} if spec.description else tool


def _choice(request: ModelRequest) -> dict[str, Any]:
    """How functions are called. There is no word for one call at a time: calls run in order where that is wanted."""
    choice = tool_choice(request)
    if choice is None or (choice.mode is None and choice.other is None):
        return {}
    named = {"allowedFunctionNames": [choice.name]} if choice.mode == "tool" else {}
    config = choice.other or {"mode": _MODES[choice.mode or "auto"], **named}
    return {"functionCallingConfig": config}
