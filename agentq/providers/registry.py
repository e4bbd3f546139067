"""From a "provider:model" string to the provider that answers it."""

import difflib
import os
import re
from collections.abc import Callable
from importlib import import_module

from agentq.errors import ConfigError
from agentq.providers.base import Provider
from agentq.providers.profiles import PROFILES, variable

# Imported when a model is called: producers check names, and httpx takes as long to import as all of this.
_ADAPTERS = {
    "anthropic": ("agentq.providers.anthropic", "Anthropic"),
    "gemini": ("agentq.providers.gemini", "Gemini"),
}
_CHAT = ("agentq.providers.openai_chat", "OpenAIChat")
_RESPONSES = ("agentq.providers.openai_responses", "OpenAIResponses")
# Servers that speak the Responses API too, under the name with this end.
_SUFFIX = "-responses"
_BOTH = (
    *("openai", "azure", "openrouter", "deepseek", "xai", "groq", "fireworks"),
    *("ollama", "vllm", "llamacpp", "lmstudio"),
)

# Other names of the same provider: what one has signed, it takes back under the other.
_SAME = {"google": "gemini"}
# The variables that a key may be in, where it is not <NAME>_API_KEY alone.
_KEYS = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}

KNOWN = ("openai", *_ADAPTERS, *_SAME, *(name for name in PROFILES if name != "openai"))
_NAMES = (*KNOWN, "openai-chat", *(name + _SUFFIX for name in _BOTH))
_BARE = (
    (re.compile(r"gpt-|chatgpt-|o\d"), "openai"),
    (re.compile(r"claude-"), "anthropic"),
    (re.compile(r"gemini-"), "gemini"),
)


def check(model: object) -> None:
    """Raise ConfigError unless ``model`` is a provider or a string that names a known one. Asks for no key yet."""
    if isinstance(model, str):
        named(model)
    elif not callable(getattr(model, "complete", None)) or not isinstance(getattr(model, "name", None), str):
        raise ConfigError(f"a model is a string like 'openai:gpt-5.2' or a provider, not a {type(model).__name__}")


def resolve(model: str | Provider) -> tuple[Provider, str]:
    """The provider, and the name it knows the model by. Raises ConfigError as ``check`` does.

    A string is split at its first colon: Ollama's tags have colons of their own. A provider object is asked for its
    ``model`` attribute; one without it gets its own name.
    """
    check(model)
    if isinstance(model, str):
        name, model_name = named(model)
        module, adapter = _RESPONSES if name.endswith(_SUFFIX) else _ADAPTERS.get(name, _CHAT)
        make: Callable[[str], Provider] = getattr(import_module(module), adapter)
        return make(_server(name)), model_name
    return model, getattr(model, "model", "") or model.name


def missing_key(model: object) -> str | None:
    """The variable of the key that a model named by a string needs, if it is not set here."""
    if not isinstance(model, str):
        return None
    name = _server(named(model)[0])
    if name in PROFILES and not PROFILES[name].key_required:
        return None
    keys = _KEYS.get(name) or (variable(name, "API_KEY"), PROFILES[name].bearer_variable)
    return None if any(os.environ.get(key, "").strip() for key in keys) else keys[0]


def _server(name: str) -> str:
    """Whose address and key a provider has: some have more than one API."""
    return "openai" if name == "openai-chat" else name.removesuffix(_SUFFIX)


def named(model: str) -> tuple[str, str]:
    """Provider and model of a "provider:model" string. Raises ConfigError, with a way out, for one that names none."""
    name, colon, rest = (part.strip() for part in model.partition(":"))
    if not colon or not rest:
        raise ConfigError(f"the model {model!r} has no provider{_suggest(model)}")
    if name not in _NAMES:
        near = difflib.get_close_matches(name.lower(), _NAMES, n=1)
        hint = f"did you mean '{near[0]}:{rest}'? " if near else ""
        raise ConfigError(f"the model {model!r} names no known provider; {hint}Known are {', '.join(_NAMES)}")
    return _SAME.get(name, name), rest


def _suggest(model: str) -> str:
    """What a name without a colon was meant to be: LiteLLM has a slash there, and known families can be guessed."""
    name, slash, rest = model.strip(": ").partition("/")
    if slash and name in _NAMES and rest:
        return f"; did you mean '{name}:{rest}'?"
    for pattern, provider in _BARE:
        if pattern.match(model):
            return f"; did you mean '{provider}:{model}'?"
    return f"; write 'provider:model', with one of {', '.join(_NAMES)}"
