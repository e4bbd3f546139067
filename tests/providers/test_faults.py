"""What error answers mean: classes, waits, and texts that are useful and never have the key."""

import json
import pickle
import time
from email.utils import formatdate
from typing import Any

import pytest

from agentq.errors import ProviderError
from agentq.providers.faults import http_fault
from agentq.providers.hints import wait_hint
from agentq.providers.http import HttpReply
from tests.providers.rows import BY_ID, SHAPES

NOW = 1_780_000_000.0
KINDS = {
    "rate_limit": "rate_limited",
    "quota": "quota_exceeded",
    "overloaded": "overloaded",
    "server_error": "server_error",
    "invalid_request": "request_rejected",
    "content_filter": "content_filtered",
    "context_length": "context_too_long",
}
ERRORS = [shape for shape in SHAPES if shape["response"]["status"] >= 400]


def reply(status: int, body: Any = b"", **headers: str) -> HttpReply:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HttpReply(status, {name.replace("_", "-"): value for name, value in headers.items()}, content)


def fault(status: int, body: Any = b"", *, key: str = "", **headers: str) -> ProviderError:
    error = http_fault("openai", reply(status, body, **headers), key=key)
    assert error is not None
    return error


@pytest.mark.parametrize("shape", ERRORS, ids=[shape["id"] for shape in ERRORS])
def test_a_reported_error_shape_has_its_class(shape: dict[str, Any]) -> None:
    response, expect = shape["response"], shape["expect"]
    body = response["body"]
    error = fault(response["status"], body.encode() if isinstance(body, str) else body, **response["headers"])
    assert error.kind == KINDS[expect["error"]]
    assert error.retryable is expect["transient"]
    if "wait_s" in expect:
        assert error.retry_after == pytest.approx(expect["wait_s"])
    assert str(response["status"]) in error.message


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, {"error": {"code": 429, "message": "slow"}, "id": None, "choices": None}, "rate_limited"),
        (200, {"error": {"code": "503", "message": "busy"}}, "overloaded"),
        (200, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "overloaded"),
        (200, {"error": {"message": "context length is 10 tokens"}}, "context_too_long"),
        (200, {"error": {"type": "invalid_request_error", "message": "no"}}, "request_rejected"),
        (200, {"error": "something"}, "server_error"),
        (200, {"object": "error", "message": "maximum context length", "code": 400}, "context_too_long"),
        (200, [{"choices": []}], "reply_invalid"),
        (200, {"choices": [{"finish_reason": "error", "error": {"code": 502, "message": "up"}}]}, "server_error"),
        (200, b"<html><title>Login</title></html>", "reply_invalid"),
        (200, b"", "reply_invalid"),
        (200, b'{"choices": [', "reply_invalid"),
        (200, b'"text"', "reply_invalid"),
        (200, '{"a": "caf\u00e9"}'.encode("latin-1"), "reply_invalid"),
        (200, b"[" * 100_000, "reply_invalid"),
        (302, b"", "request_rejected"),
        (400, {"error": {"code": "model_not_found", "message": "no such model"}}, "model_not_found"),
        (400, {"error": {"message": "Your credit balance is too low to access the API."}}, "quota_exceeded"),
        (400, {"error": {"message": "You have reached your specified API usage limits."}}, "quota_exceeded"),
        (400, {"error": {"message": "This model's maximum context length is 8192 tokens."}}, "context_too_long"),
        (400, {"error": {"code": 400, "type": "exceed_context_size_error", "message": "too big"}}, "context_too_long"),
        (
            400,
            {"error": {"message": "bad", "inner_error": {"code": "ResponsibleAIPolicyViolation"}}},
            "content_filtered",
        ),
        (400, [{"error": {"code": 400, "message": "x", "details": [{"reason": "API_KEY_INVALID"}]}}], "auth_failed"),
        (401, b"", "auth_failed"),
        (401, {"detail": "Invalid API Key"}, "auth_failed"),
        (403, b"<html>", "auth_failed"),
        (403, {"error": {"message": "Your input was flagged", "metadata": {"reasons": []}}}, "content_filtered"),
        (404, {"error": "model 'x' not found"}, "model_not_found"),
        (408, b"", "server_error"),
        (409, b"", "server_error"),
        (413, {"error": {"code": "rate_limit_exceeded", "message": "Request too large"}}, "context_too_long"),
        (418, b"", "request_rejected"),
        (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, "request_rejected"),
        (429, b"<html><title>Too many requests</title></html>", "rate_limited"),
        (429, {"error": None}, "rate_limited"),
        (429, {"error": {"details": [{"violations": 1}, 2], "code": True}}, "rate_limited"),
        (500, {"error": {"message": None}}, "server_error"),
        (503, b"<html>", "overloaded"),
        (522, b"", "server_error"),
        (529, b"", "overloaded"),
    ],
)
def test_an_answer_is_an_error_of_this_kind(status: int, body: Any, kind: str) -> None:
    assert fault(status, body).kind == kind


def test_an_answer_without_an_error_is_none() -> None:
    assert http_fault("openai", reply(200, {"choices": [], "error": None})) is None
    assert http_fault("openai", reply(200, b'\xef\xbb\xbf{"choices": [{}]}')) is None


@pytest.mark.parametrize(
    ("value", "secs"),
    [
        ("2", 2.0),
        ("1.5", 1.5),
        ("86400", 86400.0),
        ("0", None),
        ("-1", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("1e5", None),
        ("1_000", None),
        ("9" * 400, None),
        ("", None),
        (formatdate(NOW + 3, usegmt=True), 3.0),
        (formatdate(NOW - 3, usegmt=True), None),
        ("Fri, 99 Foo 2026 00:00:00 GMT", None),
    ],
)
def test_retry_after_is_taken_where_it_makes_sense(value: str, secs: float | None) -> None:
    assert wait_hint({"retry-after": value}, None, NOW) == secs


def test_a_retry_after_date_counts_from_the_servers_own_clock() -> None:
    skewed = NOW - 86400
    headers = {"retry-after": formatdate(skewed + 7, usegmt=True), "date": formatdate(skewed, usegmt=True)}
    assert wait_hint(headers, None, NOW) == 7


@pytest.mark.parametrize(
    ("headers", "secs"),
    [
        ({"retry-after-ms": "174", "retry-after": "1"}, 0.174),
        ({"retry-after-ms": "0", "retry-after": "1"}, 1.0),
        ({"retry-after-ms": "x", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-reset-tokens": "1.574s"}, 1.574),
        ({"x-ratelimit-reset-requests": "6ms"}, 0.006),
        ({"x-ratelimit-reset-requests": "1h2m3s"}, 3723.0),
        ({"x-ratelimit-reset-requests": "12"}, 12.0),
        ({"x-ratelimit-reset-requests": "later"}, None),
        ({"x-ratelimit-reset-requests": "5s", "x-ratelimit-remaining-requests": "99"}, None),
        (
            {
                "x-ratelimit-reset-requests": "5s",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-tokens": "9s",
            },
            9.0,
        ),
        ({"anthropic-ratelimit-tokens-reset": "2026-05-28T20:26:52Z"}, 12.0),
        (
            {"anthropic-ratelimit-tokens-reset": "2026-05-28T20:26:52Z", "anthropic-ratelimit-tokens-remaining": "3"},
            None,
        ),
        ({"anthropic-ratelimit-tokens-reset": "tomorrow"}, None),
        ({}, None),
    ],
)
def test_other_hints_are_read(headers: dict[str, str], secs: float | None) -> None:
    hint = wait_hint(headers, None, NOW)
    assert hint == (None if secs is None else pytest.approx(secs))


def test_the_hint_in_geminis_body_is_read() -> None:
    document = {"error": {"details": [{"@type": "x"}, {"retryDelay": "18s"}]}}
    assert wait_hint({}, document, NOW) == 18


def test_azures_zero_milliseconds_give_way_to_its_second() -> None:
    response = BY_ID["openai-compatible-55cc34-t0"]["response"]
    assert fault(response["status"], response["body"], **response["headers"]).retry_after == 1


def test_the_servers_word_on_trying_again_overrides_the_status() -> None:
    assert fault(529, b"", x_should_retry="false").retryable is False
    assert fault(400, b"", x_should_retry="true").retryable is True
    assert fault(401, b"", x_should_retry="true").retryable is False
    quota = {"error": {"code": "insufficient_quota"}}
    assert fault(429, quota, x_should_retry="true").retryable is False


def test_a_text_is_short_and_clean_and_has_no_key() -> None:
    key = "sk-secret-0123456789"
    # The key lies across the place where the text is cut.
    error = fault(500, {"error": {"message": "x" * 390 + key + "\x00" + "y" * 5000}}, key=key, x_request_id=f"r-{key}")
    shown = f"{error!r} {error.details} {pickle.dumps(error)!r}"
    assert len(error.message) <= 500
    assert "\x00" not in error.message
    assert "secret" not in shown
    assert "sk-" not in shown
    assert error.details["request_id"] == "r-[key]"


def test_a_dummy_key_does_not_garble_the_text() -> None:
    assert "context" in fault(400, {"error": {"message": "the context"}}, key="x").message


def test_an_html_page_is_told_by_its_title() -> None:
    assert fault(502, b"<html><head><title>502 Bad Gateway</title></head>" + b"x" * 9999).message == (
        "openai answered 502: 502 Bad Gateway"
    )


def test_the_real_clock_is_used_for_dates() -> None:
    error = fault(429, b"", retry_after=formatdate(time.time() + 60, usegmt=True))
    assert error.retry_after == pytest.approx(60, abs=5)
