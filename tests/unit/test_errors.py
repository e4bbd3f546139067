"""Codes are a promise: they are stored with runs, so the list is written out here."""

import json
import pickle
from typing import get_args

import pytest

from agentq import errors
from agentq.errors import (
    AgentqError,
    ErrorInfo,
    LimitExceededError,
    ProviderError,
    ProviderFault,
    RunFailedError,
    ToolError,
)

CODES = {
    "AgentqError": "agentq_error",
    "ConfigError": "config_invalid",
    "InputError": "input_invalid",
    "UnknownAgentError": "unknown_agent",
    "SchemaOutdatedError": "schema_outdated",
    "UnavailableError": "unavailable",
    "ConnectionLost": "connection_lost",
    "LockedError": "locked",
    "RunError": "run_error",
    "RunNotFoundError": "run_not_found",
    "RunFinishedError": "run_finished",
    "RunNotFinishedError": "run_not_finished",
    "RunNotHeldError": "run_not_held",
    "RunCancelledError": "cancelled",
    "RunFailedError": "run_failed",
    "LimitExceededError": "limit_exceeded",
    "WaitTimeoutError": "wait_timeout",
    "ApprovalNotPendingError": "approval_not_pending",
    "ThreadBusyError": "thread_busy",
    "ThreadNotFoundError": "thread_not_found",
    "LeaseLost": "lease_lost",
    "ToolError": "tool_error",
    "ContentError": "content_invalid",
    "ContentMissingError": "content_missing",
}
PROVIDER_CODES = {
    "provider_rate_limited": True,
    "provider_quota_exceeded": False,
    "provider_overloaded": True,
    "provider_server_error": True,
    "provider_network": True,
    "provider_auth_failed": False,
    "provider_request_rejected": False,
    "provider_model_not_found": False,
    "provider_context_too_long": False,
    "provider_content_filtered": False,
    "provider_content_unsupported": False,
    "provider_bad_call": True,
    "provider_reply_invalid": True,
}
RETRYABLE = {"connection_lost", "locked", "unavailable", "wait_timeout", "thread_busy"}


def all_errors() -> list[type[AgentqError]]:
    found: list[type[AgentqError]] = [AgentqError]
    for kind in found:
        found += kind.__subclasses__()
    return [kind for kind in found if kind.__module__ == errors.__name__ and kind.__name__ != "ProviderError"]


def test_codes_are_what_they_were() -> None:
    assert {kind.__name__: kind.code for kind in all_errors()} == CODES
    kinds = get_args(ProviderFault)
    made = [ProviderError(kind, "x") for kind in kinds]
    assert {error.code: error.retryable for error in made} == PROVIDER_CODES


def test_no_code_is_used_twice() -> None:
    codes = [*CODES.values(), *PROVIDER_CODES]
    assert len(set(codes)) == len(codes)


def test_what_may_pass_is_marked() -> None:
    assert {kind.code for kind in all_errors() if kind.retryable} == RETRYABLE


def test_the_tree_in_the_docs_has_every_class_and_code() -> None:
    for name, code in CODES.items():
        assert name in str(errors.__doc__)
        assert code in str(errors.__doc__) or name in ("AgentqError", "RunFailedError")


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling(kind: type[AgentqError]) -> None:
    error = pickle.loads(pickle.dumps(kind("it failed", limit="tokens")))
    assert (type(error), str(error), error.details) == (kind, "it failed", {"limit": "tokens"})


def test_a_provider_error_survives_pickling_whole() -> None:
    error = pickle.loads(pickle.dumps(ProviderError("rate_limited", "slow down", retry_after=2.5, status=429)))
    assert (error.kind, error.code, error.retryable, error.retry_after) == (
        "rate_limited",
        "provider_rate_limited",
        True,
        2.5,
    )
    assert error.details == {"status": 429}


def test_details_may_have_any_name() -> None:
    error = AgentqError("x", message="m", self="s")
    assert (error.message, error.details) == ("x", {"message": "m", "self": "s"})


class OutOfStockError(ToolError):
    def __init__(self, item: str, *, left: int) -> None:
        self.left = left
        self.item = item


def test_a_tool_error_of_a_users_own_has_a_message_whatever_its_init_does() -> None:
    error = pickle.loads(pickle.dumps(OutOfStockError("tea", left=0)))
    assert (error.message, error.details, error.code, error.left) == ("tea", {}, "tool_error", 0)
    assert ToolError().message == ""


def test_an_unknown_kind_of_provider_error_is_a_fault_of_ours() -> None:
    with pytest.raises(ValueError, match="unknown kind"):
        ProviderError("odd", "x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        ("limit_exceeded", LimitExceededError, False),
        ("tool_failed", RunFailedError, False),
        ("provider_overloaded", RunFailedError, True),
        ("provider_auth_failed", RunFailedError, False),
        ("output_invalid", RunFailedError, False),
    ],
)
def test_a_stored_error_is_raised_with_its_code_and_details(code: str, kind: type, retryable: bool) -> None:
    stored = ErrorInfo(code=code, message="it failed", details={"limit": "tokens", "message": "m", "self": 1})
    error = ErrorInfo.model_validate_json(stored.model_dump_json()).to_exception()
    assert type(error) is kind
    assert (error.code, str(error), error.retryable) == (code, "it failed", retryable)
    assert error.details == {"limit": "tokens", "message": "m", "self": 1}
    assert json.dumps(error.details)
    # The class keeps its own code.
    assert LimitExceededError.code == "limit_exceeded"
    assert RunFailedError.code == "run_failed"
