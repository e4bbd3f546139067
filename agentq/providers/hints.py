"""How long a provider asks us to wait, from every form in which one says so. What makes no sense is ignored."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any

_NUMBER = re.compile(r"\d+(\.\d+)?")
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_UNITS = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_RESETS = (
    re.compile(r"(?P<head>anthropic-ratelimit-[a-z-]+)-reset"),
    re.compile(r"(?P<head>x-ratelimit)-reset(?P<tail>-[a-z-]+)"),
)


def wait_hint(headers: Mapping[str, str], document: Any, now: float) -> float | None:
    """Seconds from ``now`` (Unix time), or None. The server's own clock is used where it sends one.

    The first of these that is more than nothing: ``retry-after-ms``, ``retry-after``, Gemini's ``retryDelay``, and the
    latest reset of a limit that is used up.
    """
    now = _http_date(headers.get("date", "")) or now
    candidates = (
        _scaled(_number(headers.get("retry-after-ms", "")), 0.001),
        _retry_after(headers.get("retry-after", ""), now),
        _retry_delay(document),
        max(_resets(headers, now), default=None),
    )
    return next((secs for secs in candidates if secs is not None and secs > 0), None)


def _retry_after(value: str, now: float) -> float | None:
    number = _number(value)
    if number is not None:
        return number
    moment = _http_date(value)
    return None if moment is None else moment - now


def _retry_delay(document: Any) -> float | None:
    error = document.get("error") if isinstance(document, dict) else None
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else []:
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str):
            return _duration(delay)
    return None


def _resets(headers: Mapping[str, str], now: float) -> Iterator[float]:
    for name, value in headers.items():
        for pattern in _RESETS:
            if found := pattern.fullmatch(name):
                parts = found.groupdict()
                remaining = headers.get(f"{parts['head']}-remaining{parts.get('tail', '')}", "0")
                secs = _timestamp(value, now) if "tail" not in parts else _duration(value)
                # A limit with something left is not the one that was hit.
                if secs is not None and _number(remaining) == 0:
                    yield secs


def _number(value: str) -> float | None:
    if not _NUMBER.fullmatch(value.strip()):
        return None
    number = float(value)
    return number if isfinite(number) else None


def _scaled(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


def _duration(value: str) -> float | None:
    """``1.574s``, ``6m0s``, ``6ms``, or plain seconds."""
    if (number := _number(value)) is not None:
        return number
    found = _DURATION.fullmatch(value.strip())
    if not found or not any(found.groups()):
        return None
    return sum(float(part) * unit for part, unit in zip(found.groups(), _UNITS, strict=True) if part)


def _timestamp(value: str, now: float) -> float | None:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now


def _http_date(value: str) -> float | None:
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
