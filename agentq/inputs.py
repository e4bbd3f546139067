"""What a producer gives with a run, checked before anything is stored."""

import getpass
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, TypedDict, get_args

from agentq.agent import make_limits
from agentq.content import File, Image, check_together, joined
from agentq.errors import ConfigError, ContentError, InputError
from agentq.limits import LONGEST_SECS, Limits
from agentq.results import given_json, to_json
from agentq.run import Status
from agentq.text import clean, cut
from agentq.wire import RANKS

MAX_KEY_CHARS = 200
MAX_DAYS = 36_500.0
MAX_PLACES = 1_000_000
MAX_PAGE = 2**31 - 1
MAX_REASON_CHARS = 4_000


class Said(TypedDict):
    """The message of a run: its text, and the images and files with their places in it."""

    text: str
    media: tuple[Image | File, ...]


def checked_message(given: object) -> Said:
    """A text, or parts: texts, images and files. Raises InputError, or ContentError that names the part."""
    if isinstance(given, str):
        return {"text": checked_text(given), "media": ()}
    if isinstance(given, Image | File):
        given = [given]
    if not isinstance(given, list | tuple):
        raise InputError(f"a run needs a message: a text, or a list of texts, images and files, not {_named(given)}")
    for number, part in enumerate(given, 1):
        if not isinstance(part, str | Image | File):
            problem = f"part {number} of the message is a text, an Image or a File, not {_named(part)}"
            raise ContentError(problem, part=number, problem="wrong_type")
        if not isinstance(part, str) and not part.sha256 and not part.url:
            problem = f"part {number} of the message has neither bytes nor a URL; make it with from_bytes or from_url"
            raise ContentError(problem, part=number, problem="empty")
    text, media = joined(given)
    if not media:
        return {"text": checked_text(text), "media": ()}
    check_together(media, "the message")
    return {"text": text, "media": media}


def _named(value: object) -> str:
    """Its type: bytes need not be seen."""
    return f"a value of type {type(value).__name__}"


def checked_text(text: object) -> str:
    if not isinstance(text, str):
        raise InputError(f"a run needs a message: a text, not {text!r}")
    if not text.strip():
        raise InputError("a run needs a message: a text that is not empty")
    return text


def checked_key(what: str, value: object) -> str | None:
    """A text that goes into an index: short, and without what Postgres refuses."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MAX_KEY_CHARS:
        raise InputError(f"{what} is a text of 1 to {MAX_KEY_CHARS} characters")
    return clean(value)


def checked_thread(thread_id: object) -> str:
    """A thread's name: no other than the one that is stored."""
    if not isinstance(thread_id, str) or not 0 < len(thread_id) <= MAX_KEY_CHARS or clean(thread_id) != thread_id:
        raise InputError(f"a thread id is a text of 1 to {MAX_KEY_CHARS} characters")
    return thread_id


def json_object(what: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        given = dict(value)
    except (TypeError, ValueError) as error:
        raise InputError(f'{what} must be a JSON object, such as {{"customer": 42}}, not {_named(value)}') from error
    try:
        found = given_json(given)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must be a JSON object: {error}") from error
    return dict(found)


def checked_tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    if not tags:
        return {}
    found: dict[Any, Any] = dict(tags)
    for key, value in found.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InputError(f"tags map text to text; {key!r}: {value!r} does not")
    return dict(to_json(found))


def checked_limits(limits: Mapping[str, Any] | None) -> dict[str, Any]:
    if not limits:
        return {}
    try:
        make_limits(Limits(), limits, "this run")
    except ConfigError as error:
        raise InputError(error.message) from error
    return json_object("limits", limits)


def checked_keys(keys: Sequence[str | None] | None, number: int) -> Sequence[str | None]:
    """A key for each of so many texts."""
    if keys is None:
        return [None] * number
    if isinstance(keys, str) or len(keys) != number:
        raise InputError(f"idempotency_keys is a list with a key (or None) for each of the {number} texts")
    return [checked_key("an idempotency key", key) for key in keys]


class Due(TypedDict):
    """For when a run is; both None: now."""

    delay_secs: float | None
    due_at: datetime | None


def checked_due(delay_secs: object, due_at: object) -> Due:
    """How long from now, or when; nothing here looks at a clock, as only the database's counts."""
    if delay_secs is not None and due_at is not None:
        raise InputError("give delay_secs or due_at, not both")
    return {"delay_secs": _checked_delay(delay_secs), "due_at": _checked_time(due_at)}


def _checked_delay(delay_secs: Any) -> float | None:
    if delay_secs is None:
        return None
    if isinstance(delay_secs, timedelta):
        raise InputError("delay_secs is a number of seconds; of a timedelta give its total_seconds()")
    if isinstance(delay_secs, bool) or not isinstance(delay_secs, int | float) or not isfinite(delay_secs):
        raise InputError(f"delay_secs is a number of seconds, not {delay_secs!r}")
    if not 0 <= delay_secs <= LONGEST_SECS:
        raise InputError(f"delay_secs is between 0 and {LONGEST_SECS:g} seconds, not {delay_secs!r}")
    return float(delay_secs) or None


def _checked_time(due_at: object) -> datetime | None:
    if due_at is None:
        return None
    if not isinstance(due_at, datetime):
        raise InputError(f"due_at is a datetime with a time zone, not {due_at!r}")
    if due_at.utcoffset() is None:
        raise InputError(f"due_at needs a time zone: {due_at.isoformat()} is another moment in each")
    try:
        return due_at.astimezone(UTC)
    except OverflowError:
        raise InputError(f"due_at is out of range: {due_at.isoformat()}") from None


def checked_days(days: Any) -> float:
    if isinstance(days, bool) or not isinstance(days, int | float) or not 0 < days < MAX_DAYS:
        raise ConfigError(f"keep_days is a positive number of days, not {days!r}")
    return float(days)


def checked_page(limit: Any) -> int:
    """How many rows of a list at most."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InputError(f"limit is a positive number, not {limit!r}")
    # More is all there is.
    return min(limit, MAX_PAGE)


def checked_status(status: Any) -> Status | None:
    """One that a run can have, or None."""
    if status is not None and status not in get_args(Status):
        raise InputError(f"status is one of {', '.join(get_args(Status))}, not {status!r}")
    found: Status | None = status
    return found


def checked_priority(priority: Any) -> int:
    """Its rank."""
    rank = RANKS.get(priority) if isinstance(priority, str) else None  # type: ignore[call-overload]
    if rank is None:
        raise InputError(f"priority is one of {', '.join(RANKS)}, not {priority!r}")
    return int(rank)


class Place(TypedDict):
    """The key whose places a run needs one of, and how many there are."""

    concurrency_key: str | None
    concurrency_limit: int | None


def checked_place(key: object, limit: object) -> Place:
    if (key is None) != (limit is None):
        raise InputError("concurrency_key and concurrency_limit go together: say how many runs of the key may work")
    if limit is None:
        return {"concurrency_key": None, "concurrency_limit": None}
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_PLACES:
        raise InputError(f"concurrency_limit is a number from 1 to {MAX_PLACES}, not {limit!r}")
    return {"concurrency_key": checked_key("concurrency_key", key), "concurrency_limit": limit}


def checked_by(by: object) -> str | None:
    """Who decides, where somebody is named."""
    if by is not None and not isinstance(by, str):
        raise InputError(f"by is the name of who decides, a text, not {by!r}")
    return by


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
