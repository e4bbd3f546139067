"""What a producer gives with a run, checked before anything is stored."""

import getpass
import socket
from collections.abc import Mapping
from typing import Any

from agentq.agent import make_limits
from agentq.errors import ConfigError
from agentq.limits import Limits
from agentq.results import to_json
from agentq.text import clean, cut

MAX_KEY_CHARS = 200
MAX_REASON_CHARS = 4_000


def checked_text(text: object) -> str:
    if not isinstance(text, str):
        raise ConfigError(f"a run needs a message: a text, not {text!r}")
    if not text.strip():
        raise ConfigError("a run needs a message: a text that is not empty")
    return text


def checked_key(what: str, value: object) -> str | None:
    """A text that goes into an index: short, and without what Postgres refuses."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MAX_KEY_CHARS:
        raise ConfigError(f"{what} is a text of 1 to {MAX_KEY_CHARS} characters")
    return clean(value)


def checked_thread(thread_id: object) -> str:
    """A thread's name: no other than the one that is stored."""
    if not isinstance(thread_id, str) or not 0 < len(thread_id) <= MAX_KEY_CHARS or clean(thread_id) != thread_id:
        raise ConfigError(f"a thread id is a text of 1 to {MAX_KEY_CHARS} characters")
    return thread_id


def json_object(what: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    if not value:
        return {}
    try:
        found = to_json(dict(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what} must be a JSON object: {error}") from error
    return dict(found)


def checked_tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    if not tags:
        return {}
    found: dict[Any, Any] = dict(tags)
    for key, value in found.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ConfigError(f"tags map text to text; {key!r}: {value!r} does not")
    return dict(to_json(found))


def checked_limits(limits: Mapping[str, Any] | None) -> dict[str, Any]:
    if not limits:
        return {}
    make_limits(Limits(), limits, "this run")
    return json_object("limits", limits)


def shown_name(name: str) -> str:
    """Who decided, as it is stored and shown: short, and without what Postgres refuses."""
    return cut(clean(name), MAX_KEY_CHARS)


def shown_reason(reason: str | None) -> str | None:
    """Why a person rejected a call, as the model sees it."""
    return cut(clean(reason), MAX_REASON_CHARS) if reason else None


def whoami() -> str:
    """Who decides, when nobody is named: the user of this machine."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()
