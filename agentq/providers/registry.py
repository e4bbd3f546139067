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
_ADAPTERS = {"anthropic": ("agentq.providers.anthropic", "Anthropic")}
_CHAT = ("agentq.providers.openai_chat", "OpenAIChat")

KNOWN = ("openai", "anthropic", *(name for name in PROFILES if name != "openai"))
_BARE = ((re.compile(r"gpt-|chatgpt-|o\d"), "openai"), (re.compile(r"claude-"), "anthropic"))


def check(model: object) -> None:
    """Raise ConfigError unless ``model`` is a provider or a string that names a known one. Asks for no key yet."""
    if isinstance(model, str):
        _split(model)
    elif not callable(getattr(model, "complete", None)) or not isinstance(getattr(model, "name", None), str):
        raise ConfigError(f"a model is a string like 'openai:gpt-5.2' or a provider, not a {type(model).__name__}")


def resolve(model: str | Provider) -> tuple[Provider, str]:
    """The provider, and the name it knows the model by. Raises ConfigError as ``check`` does.

    A string is split at its first colon: Ollama's tags have colons of their own. A provider object is asked for its
    ``model`` attribute; one without it gets its own name.
    """
    check(model)
    if isinstance(model, str):
        name, model_name = _split(model)
        module, adapter = _ADAPTERS.get(name, _CHAT)
        make: Callable[[str], Provider] = getattr(import_module(module), adapter)
        return make(name), model_name
    return model, getattr(model, "model", "") or model.name


def missing_key(model: object) -> str | None:
    """The variable of the key that a model named by a string needs, if it is not set here."""
    if not isinstance(model, str):
        return None
    name, _ = _split(model)
    if name != "anthropic" and not PROFILES[name].key_required:
        return None
    key = variable(name, "API_KEY")
    others = ("ANTHROPIC_AUTH_TOKEN",) if name == "anthropic" else (PROFILES[name].bearer_variable or key,)
    return None if any(os.environ.get(each, "").strip() for each in (key, *others)) else key


def _split(model: str) -> tuple[str, str]:
    name, colon, rest = (part.strip() for part in model.partition(":"))
    if not colon or not rest:
        raise ConfigError(f"the model {model!r} has no provider{_suggest(model)}")
    if name not in KNOWN:
        near = difflib.get_close_matches(name.lower(), KNOWN, n=1)
        hint = f"did you mean '{near[0]}:{rest}'? " if near else ""
        raise ConfigError(f"the model {model!r} names no known provider; {hint}Known are {', '.join(KNOWN)}")
    return name, rest


def _suggest(model: str) -> str:
    """What a name without a colon was meant to be: LiteLLM has a slash there, and known families can be guessed."""
    name, slash, rest = model.strip(": ").partition("/")
    if slash and name in KNOWN and rest:
        return f"; did you mean '{name}:{rest}'?"
    for pattern, provider in _BARE:
        if pattern.match(model):
            return f"; did you mean '{provider}:{model}'?"
    return f"; write 'provider:model', with one of {', '.join(KNOWN)}"
