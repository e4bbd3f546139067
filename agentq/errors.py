"""Every error a caller can meet, one class a cause and one stable code a class.

::

    AgentqError
    ├── ConfigError                config_invalid            settings, agents or tools are wrong
    │   ├── InputError             input_invalid             what a caller gave: a message, a decision, a limit
    │   │   └── ContentError       content_invalid           an image or a file cannot be taken
    │   ├── UnknownAgentError      unknown_agent
    │   └── SchemaOutdatedError    schema_outdated           the database needs ``agentq db upgrade``
    ├── UnavailableError *         unavailable               database or broker cannot be reached
    │   ├── ConnectionLost *       connection_lost           it broke while in use: done, or not, who knows
    │   └── LockedError *          locked                    somebody holds a row for longer than we wait
    ├── RunError                   run_error
    │   ├── RunNotFoundError       run_not_found
    │   ├── RunFinishedError       run_finished              too late: the run has ended
    │   ├── RunNotFinishedError    run_not_finished          too early: the run has not ended
    │   ├── RunNotHeldError        run_not_held             it goes on with its agent as it is, or has ended
    │   ├── RunCancelledError      cancelled
    │   ├── RunFailedError         <the code the run failed with>
    │   │   └── LimitExceededError limit_exceeded            details["limit"] names the limit
    │   ├── WaitTimeoutError *     wait_timeout
    │   ├── ApprovalNotPendingError approval_not_pending
    │   ├── ThreadBusyError *      thread_busy
    │   ├── ThreadNotFoundError    thread_not_found
    │   └── LeaseLost              lease_lost                another process owns the step now
    ├── ContentMissingError        content_missing           somebody deleted a stored image or file
    ├── ProviderError              provider_<kind>           * for the kinds that may pass
    └── ToolError                  tool_error                raised by tools, shown to the model

``*`` marks ``retryable = True``: the same call may succeed later. Codes are stored with runs and never renamed.
"""

from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentq.text import clean, cut

MAX_ERROR_CHARS = 4_000


class AgentqError(Exception):
    """Root of the tree: ``code`` is stable, ``details`` holds JSON values, ``retryable`` says whether to try again."""

    code: str = "agentq_error"
    retryable: bool = False
    message: str
    details: dict[str, Any]

    def __new__(cls, *args: Any, **_: Any) -> Self:
        # Here, so that a subclass of a user's own has both even if its __init__ does not call ours.
        error = super().__new__(cls, *args)
        error.message, error.details = (str(args[0]) if args else ""), {}
        return error

    def __init__(self, message: str = "", /, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(cls: type[AgentqError], args: tuple[Any, ...], state: dict[str, Any]) -> AgentqError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(AgentqError):
    code = "config_invalid"


class InputError(ConfigError):
    """What a caller gave to a call of ours cannot be taken: nothing is wrong with the installation."""

    code = "input_invalid"


class ContentError(InputError):
    """An image or a file that cannot be taken; ``details`` name the ``part`` and the ``problem``."""

    code = "content_invalid"


class UnknownAgentError(ConfigError):
    code = "unknown_agent"


class SchemaOutdatedError(ConfigError):
    code = "schema_outdated"


class UnavailableError(AgentqError):
    code = "unavailable"
    retryable = True


class ConnectionLost(UnavailableError):
    """The connection broke while it was in use: what was asked of the database may have been done, or not."""

    code = "connection_lost"


class LockedError(UnavailableError):
    """Somebody has a row locked for longer than we wait: the database is there, and other rows can be used."""

    code = "locked"


class ContentMissingError(AgentqError):
    """An image or a file that a transcript refers to is not stored any more: somebody deleted it by hand."""

    code = "content_missing"


class RunError(AgentqError):
    code = "run_error"


class RunNotFoundError(RunError):
    code = "run_not_found"


class RunFinishedError(RunError):
    code = "run_finished"


class RunNotFinishedError(RunError):
    code = "run_not_finished"


class RunNotHeldError(RunError):
    code = "run_not_held"


class RunCancelledError(RunError):
    code = "cancelled"


class RunFailedError(RunError):
    """The run ended as ``failed``; ``code`` is the stored one."""

    code = "run_failed"


class LimitExceededError(RunFailedError):
    code = "limit_exceeded"


class WaitTimeoutError(RunError):
    code = "wait_timeout"
    retryable = True


class ApprovalNotPendingError(RunError):
    code = "approval_not_pending"


class ThreadBusyError(RunError):
    code = "thread_busy"
    retryable = True


class ThreadNotFoundError(RunError):
    code = "thread_not_found"


class LeaseLost(RunError):
    code = "lease_lost"


ProviderFault = Literal[
    "rate_limited",
    "quota_exceeded",
    "overloaded",
    "server_error",
    "network",
    "auth_failed",
    "request_rejected",
    "model_not_found",
    "context_too_long",
    "content_filtered",
    "content_unsupported",
    "bad_call",
    "reply_invalid",
]


class ProviderError(AgentqError):
    """A model call failed. ``kind`` decides whether to try again; ``retry_after`` is the provider's wish in seconds."""

    PASSING: ClassVar[frozenset[str]] = frozenset(
        {"rate_limited", "overloaded", "server_error", "network", "reply_invalid", "bad_call"}
    )

    def __init__(
        self, kind: ProviderFault, message: str, *, retry_after: float | None = None, status: int | None = None
    ) -> None:
        if kind not in get_args(ProviderFault):
            raise ValueError(f"unknown kind of provider error: {kind}")
        super().__init__(message, status=status)
        self.kind = kind
        self.code = f"provider_{kind}"
        self.retryable = kind in self.PASSING
        self.retry_after = retry_after


class ToolError(AgentqError):
    """Raise it in a tool to tell the model what went wrong, in your own words; the run goes on."""

    code = "tool_error"


class ErrorInfo(BaseModel):
    """An error as it is stored with a run: never a traceback, never a secret."""

    model_config = ConfigDict(frozen=True)

    code: str
    message: str
    details: dict[str, Any] = Field(default_factory=dict)

    @field_validator("message")
    @classmethod
    def _bounded(cls, message: str) -> str:
        return cut(clean(message), MAX_ERROR_CHARS)

    def to_exception(self) -> RunFailedError:
        cls = LimitExceededError if self.code == LimitExceededError.code else RunFailedError
        error = cls(self.message, **self.details)
        error.code = self.code
        error.retryable = self.code in {f"provider_{kind}" for kind in ProviderError.PASSING}
        return error
