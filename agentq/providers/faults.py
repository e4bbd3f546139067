"""What an error answer means: one rule for every provider, by the words in the body first and the status second."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentq.errors import ProviderError, ProviderFault
from agentq.providers.hints import wait_hint
from agentq.providers.http import HttpReply
from agentq.text import clean, cut

MAX_TEXT = 500

_WORDS: dict[str, ProviderFault] = {
    "tool_use_failed": "bad_call",
    "insufficient_quota": "quota_exceeded",
    "credit_balance_exhausted": "quota_exceeded",
    "organization_spend_limit_exceeded": "quota_exceeded",
    "project_spend_limit_exceeded": "quota_exceeded",
    "organization_usage_limit_exceeded": "quota_exceeded",
    "billing_hard_limit_reached": "quota_exceeded",
    "enforced_spend_limit_reached": "quota_exceeded",
    "billing_error": "quota_exceeded",
    "context_length_exceeded": "context_too_long",
    "exceed_context_size_error": "context_too_long",
    "too_many_prompt_tokens": "context_too_long",
    "request_too_large": "context_too_long",
    "content_filter": "content_filtered",
    "content_policy_violation": "content_filtered",
    "responsibleaipolicyviolation": "content_filtered",
    "invalid_prompt": "content_filtered",
    "bio_policy": "content_filtered",
    "misalignment_policy_violation": "content_filtered",
    "overloaded_error": "overloaded",
    "server_is_overloaded": "overloaded",
    "service_unavailable_error": "overloaded",
    "unavailable_error": "overloaded",
    "unavailable": "overloaded",
    "rate_limit_exceeded": "rate_limited",
    "rate_limit_error": "rate_limited",
    "ratelimitreached": "rate_limited",
    "slow_down": "rate_limited",
    "resource_exhausted": "rate_limited",
    "authentication_error": "auth_failed",
    "permission_error": "auth_failed",
    "invalid_api_key": "auth_failed",
    "api_key_invalid": "auth_failed",
    "model_not_found": "model_not_found",
    "not_found_error": "model_not_found",
}
# These say less than the status does, so they count only where the status is 200.
_VAGUE: dict[str, ProviderFault] = {"invalid_request_error": "request_rejected", "invalid_argument": "request_rejected"}
_STATUS: dict[int, ProviderFault] = {
    401: "auth_failed",
    402: "quota_exceeded",
    403: "auth_failed",
    404: "model_not_found",
    408: "server_error",
    409: "server_error",
    410: "model_not_found",
    429: "rate_limited",
    498: "overloaded",
    499: "server_error",
    503: "overloaded",
    529: "overloaded",
}
_TOO_LONG = re.compile(
    r"prompt is too long|context (length|window|size)|maximum context|input token count|too many (input|prompt) tokens"
    r"|total length of all messages is too long|exceeds? the (available|maximum) context",
    re.IGNORECASE,
)
_NO_MONEY = re.compile(r"credit balance|spend limit|api usage limit|insufficient (credit|fund|balance)", re.IGNORECASE)
_MODERATED = re.compile(r"moderation|flagged|content (policy|filter)", re.IGNORECASE)
_UNSUPPORTED = re.compile(
    r"unknown variant `?(image_url|file)\b|image_url is only supported|no endpoints found that support (image|file)"
    r"|(image|vision|multimodal|pdf|document|file)s?( inputs?| contents?)? (is|are) not (supported|enabled)"
    r"|(does not|doesn't|do not) support (image|vision|multimodal|pdf|document|file)|not a multimodal model"
    r"|at most 0 images?\b|missing data required for image|\bcontent must be a string"
    # What it could take if it were another one.
    r"|image (exceeds|dimensions? exceed)|could not process (image|pdf|document)|unsupported image"
    r"|error while downloading",
    re.IGNORECASE,
)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class _Body:
    """The parts of an error body, whatever its shape. ``words`` are types, codes and reasons in lower case."""

    message: str
    words: tuple[str, ...]
    code: int | None


def http_fault(provider: str, reply: HttpReply, *, key: str = "") -> ProviderError | None:
    """The error that ``reply`` is, or None. A 200 is one too if it has an ``error`` object or is not a JSON object."""
    document = reply.document
    if reply.status // 100 == 2:
        if not isinstance(document, dict):
            what = reply.headers.get("content-type", "no content type")
            message = f"{provider} answered {reply.status} without a JSON object ({what}): {_plain(reply.text)}"
            return _error("reply_invalid", message, key, status=reply.status)
        return _embedded(provider, document, key)
    if isinstance(document, list) and document:
        document = document[0]  # Google's form
    body = _read(document, reply.text)
    kind = _kind(body, reply.status)
    hint = wait_hint(reply.headers, document, time.time())
    if reply.status == 402 and hint is not None:
        kind = "rate_limited"  # OpenRouter's budget in flight is the only 402 with a wait.
    message = _sentence(provider, str(reply.status), body)
    error = _error(kind, message, key, status=reply.status, retry_after=hint if kind in ProviderError.PASSING else None)
    _obey(reply.headers, error)
    for name in ("x-request-id", "request-id"):
        if name in reply.headers:
            error.details["request_id"] = _safe(reply.headers[name], key)
    return error


def event_document(provider: str, data: str, *, key: str = "") -> dict[str, Any]:
    """The JSON object of one event of a stream. Raises the ProviderError that it is instead."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise _error("reply_invalid", f"{provider} streamed something else than JSON: {data[:200]}", key, status=200)
    fault = _embedded(provider, document, key)
    if fault is not None:
        raise fault
    return document


def _embedded(provider: str, document: Mapping[str, Any], key: str) -> ProviderError | None:
    """The error that came with status 200, in the document or, as OpenRouter does it, in its choice."""
    for holder in (document, *_list(document.get("choices"))):
        if isinstance(holder, dict) and (holder.get("error") or holder.get("object") == "error"):
            body = _read(holder, "")
            status = body.code or 200
            return _error(_kind(body, status), _sentence(provider, f"{status} inside a 200", body), key, status=status)
    return None


def _kind(body: _Body, status: int) -> ProviderFault:
    if status == 429 and any("perday" in word for word in body.words):
        return "quota_exceeded"
    if status == 413:
        return "context_too_long"  # Groq calls it a rate limit, but the same request never gets through.
    known = [_WORDS[word] for word in body.words if word in _WORDS]
    # The more telling word wins: a spent budget also calls itself a rate limit.
    for kind in ("bad_call", "quota_exceeded", "context_too_long", "content_filtered"):
        if kind in known:
            return kind
    if status in {400, 403, 413, 422, 429} and _NO_MONEY.search(body.message):
        return "quota_exceeded"
    if status in {200, 400, 413, 422} and _TOO_LONG.search(body.message):
        return "context_too_long"
    if status in {200, 400, 404, 415, 422, 500} and _UNSUPPORTED.search(body.message):
        return "content_unsupported"
    if status == 403 and _MODERATED.search(body.message):
        return "content_filtered"
    return known[0] if known else _by_status(body, status)


def _by_status(body: _Body, status: int) -> ProviderFault:
    if status in _STATUS:
        return _STATUS[status]
    if status == 200:
        return next((_VAGUE[word] for word in body.words if word in _VAGUE), "server_error")
    return "server_error" if status >= 500 else "request_rejected"


def _obey(headers: Mapping[str, str], error: ProviderError) -> None:
    """The server may say itself whether to try again; it cannot make a dead key or an empty account worth a try."""
    wish = headers.get("x-should-retry", "").strip().lower()
    if wish == "false":
        error.retryable = False
    elif wish == "true" and error.kind in {"request_rejected", "model_not_found"}:
        error.retryable = True


def _read(document: Any, raw: str) -> _Body:
    outer = document if isinstance(document, dict) else {}
    error = outer.get("error", outer)
    inner = error if isinstance(error, dict) else {}
    text = error if isinstance(error, str) else inner.get("message") or outer.get("message") or outer.get("detail")
    if not text:
        text = _plain(raw)
    words = [inner.get(name) for name in ("code", "type", "status")]
    words += [_get(inner, name, "code") for name in ("innererror", "inner_error")]
    words.append(_get(inner, "details", "error_code"))
    for detail in _list(inner.get("details")):
        words.append(_get(detail, "reason"))
        words += [_get(violation, "quotaId") for violation in _list(_get(detail, "violations"))]
    code = _code(inner.get("code")) or _code(inner.get("status_code"))
    return _Body(text if isinstance(text, str) else str(text), tuple(_lower(words)), code)


def _get(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _lower(words: list[Any]) -> list[str]:
    return [word.lower() for word in words if isinstance(word, str) and word]


def _code(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
        value = int(value)
    return value if isinstance(value, int) and 400 <= value <= 599 else None


def _plain(raw: str) -> str:
    """The start of a body that is not JSON; of an HTML page its title."""
    title = _TITLE.search(raw[:10_000])
    return (title.group(1) if title else raw[:200]).strip() or "(no body)"


def _sentence(provider: str, status: str, body: _Body) -> str:
    word = next((word for word in body.words if not word.isdigit()), None)
    return f"{provider} answered {status}{f' ({word})' if word else ''}: {body.message}"


def _error(
    kind: ProviderFault, message: str, key: str, *, status: int, retry_after: float | None = None
) -> ProviderError:
    return ProviderError(kind, _safe(message, key), retry_after=retry_after, status=status)


def _safe(text: str, key: str) -> str:
    """Fit to be stored and logged. The key goes out before the cut, so that no half of it stays."""
    # Local servers get dummies like "x": to strike those out would only garble the text.
    if len(key) >= 4:
        text = text.replace(key, "[key]")
    return cut(clean(text), MAX_TEXT)
