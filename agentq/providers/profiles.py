"""The servers that speak Chat Completions: where they are, and in what they differ."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, urlsplit

from agentq.providers.transcript import IdRule


@dataclass(frozen=True)
class Profile:
    """One server's address and switches.

    ``reasoning_back`` says how long its reasoning goes back: with every request, or only while the tool calls that it
    led to are being answered. ``user_after_tool`` is false where a user message may not follow a tool result.
    ``pdf``: it takes PDF documents as files (images are sent to each, and those that cannot see say so).
    ``json_schema``: it holds answers to a schema, beside tools too (others do, but not with tools, or not each model).
    ``stream_usage``: it is to be asked for the usage of a streamed reply (Mistral sends it anyway, and refuses this).
    ``done_marker``: it ends its streams with ``[DONE]``, so that one without it is cut. ``required``: its word for a
    ``tool_choice`` of at least one call. ``renamed``: settings that have another name there. ``variables``: environment
    variables that are not called after the provider; the key goes into ``key_header``, with ``bearer_variable`` a token
    instead of it into ``Authorization``.
    """

    base_url: str = ""
    key_required: bool = True
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    call_ids: IdRule | None = None
    reasoning_back: Literal["tool_loop", "always"] = "tool_loop"
    user_after_tool: bool = True
    pdf: bool = False
    json_schema: bool = False
    stream_usage: bool = True
    done_marker: bool = True
    required: str = "required"
    renamed: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    key_header: str = "authorization"
    bearer_variable: str = ""
    header_variables: Mapping[str, str] = field(default_factory=dict)


PROFILES: dict[str, Profile] = {
    "openai": Profile(
        "https://api.openai.com/v1",
        max_tokens_field="max_completion_tokens",
        call_ids=IdRule(r"[a-zA-Z0-9_-]{1,40}", 24),
        pdf=True,
        json_schema=True,
        header_variables={"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"},
    ),
    # Its address is the user's own, see azure_path.
    "azure": Profile(
        max_tokens_field="max_completion_tokens",
        call_ids=IdRule(r"[a-zA-Z0-9_-]{1,40}", 24),
        json_schema=True,
        variables={"API_KEY": "AZURE_OPENAI_API_KEY", "BASE_URL": "AZURE_OPENAI_ENDPOINT"},
        key_header="api-key",
        bearer_variable="AZURE_OPENAI_AD_TOKEN",
    ),
    "groq": Profile("https://api.groq.com/openai/v1"),
    "mistral": Profile(
        "https://api.mistral.ai/v1",
        call_ids=IdRule(r"[a-zA-Z0-9]{9}", 9),
        reasoning_back="always",
        user_after_tool=False,
        stream_usage=False,
        required="any",
        renamed={"seed": "random_seed"},
    ),
    "openrouter": Profile("https://openrouter.ai/api/v1", reasoning_back="always", pdf=True),
    "deepseek": Profile("https://api.deepseek.com"),
    "xai": Profile("https://api.x.ai/v1"),
    "together": Profile("https://api.together.xyz/v1"),
    "fireworks": Profile("https://api.fireworks.ai/inference/v1"),
    "cerebras": Profile("https://api.cerebras.ai/v1"),
    "perplexity": Profile("https://api.perplexity.ai", done_marker=False),
    "huggingface": Profile("https://router.huggingface.co/v1", variables={"API_KEY": "HF_TOKEN"}),
    "moonshot": Profile("https://api.moonshot.ai/v1"),
    "zai": Profile("https://api.z.ai/api/paas/v4"),
    "dashscope": Profile("https://dashscope-intl.aliyuncs.com/compatible-mode/v1"),
    "sambanova": Profile("https://api.sambanova.ai/v1"),
    "nvidia": Profile("https://integrate.api.nvidia.com/v1"),
    "ollama": Profile("http://localhost:11434/v1", key_required=False),
    "vllm": Profile("http://localhost:8000/v1", key_required=False),
    "llamacpp": Profile("http://localhost:8080/v1", key_required=False),
    "lmstudio": Profile("http://localhost:1234/v1", key_required=False),
}


def variable(name: str, what: Literal["API_KEY", "BASE_URL"]) -> str:
    """The environment variable of a provider: ``openai`` has OPENAI_API_KEY and OPENAI_BASE_URL."""
    if name in PROFILES and what in PROFILES[name].variables:
        return PROFILES[name].variables[what]
    return f"{''.join(c if c.isalnum() else '_' for c in name).upper()}_{what}"


def azure_path(address: str, deployment: str) -> str:
    """What comes behind the address of an Azure resource: the v1 API, or that of OPENAI_API_VERSION where it is set.

    An address that has a path already is the v1 API's own.
    """
    if urlsplit(address).path.strip("/"):
        return "/chat/completions"
    if version := os.environ.get("OPENAI_API_VERSION", "").strip():
        version, deployment = quote(version, safe=""), quote(deployment, safe="")
        return f"/openai/deployments/{deployment}/chat/completions?api-version={version}"
    return "/openai/v1/chat/completions"
