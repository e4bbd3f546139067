"""Durable LLM-agent runs on Celery and Postgres: they survive any crash and wait for people at no cost."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentq.approvals import (
        ApprovalRule,
        Approve,
        Complete,
        Deferred,
        Fail,
        NeedsApproval,
        Reject,
        Respond,
        Settle,
    )
    from agentq.client import Client
    from agentq.content import File, Image
    from agentq.context import RunContext
    from agentq.errors import (
        AgentqError,
        ApprovalNotPendingError,
        ConfigError,
        ContentError,
        ContentMissingError,
        InputError,
        LimitExceededError,
        ProviderError,
        RunCancelledError,
        RunFailedError,
        RunFinishedError,
        RunNotFinishedError,
        RunNotFoundError,
        RunNotHeldError,
        SchemaOutdatedError,
        ThreadBusyError,
        ThreadNotFoundError,
        ToolError,
        UnavailableError,
        UnknownAgentError,
        WaitTimeoutError,
    )
    from agentq.face import Agent, Thread
    from agentq.handle import Handle
    from agentq.history import Effect, Rewound
    from agentq.hooks import EndRun, Hooks, ModelView
    from agentq.limits import Limits
    from agentq.memory import Memory
    from agentq.messages import AssistantMessage, Message, ToolCall, ToolMessage, ToolResult, Usage, UserMessage
    from agentq.output import AskAgain
    from agentq.prices import Price, set_prices
    from agentq.providers.embeddings import Embeddings, embed
    from agentq.run import Approval, Event, Result, Run, ThreadInfo
    from agentq.threads import StoredThread
    from agentq.tools import Tool, tool
    from agentq.unknown import Happened, NotHappened
    from agentq.why import Wait, Why

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentqError",
    "Approval",
    "ApprovalNotPendingError",
    "ApprovalRule",
    "Approve",
    "AskAgain",
    "AssistantMessage",
    "Client",
    "Complete",
    "ConfigError",
    "ContentError",
    "ContentMissingError",
    "Deferred",
    "Effect",
    "Embeddings",
    "EndRun",
    "Event",
    "Fail",
    "File",
    "Handle",
    "Happened",
    "Hooks",
    "Image",
    "InputError",
    "LimitExceededError",
    "Limits",
    "Memory",
    "Message",
    "ModelView",
    "NeedsApproval",
    "NotHappened",
    "Price",
    "ProviderError",
    "Reject",
    "Respond",
    "Result",
    "Rewound",
    "Run",
    "RunCancelledError",
    "RunContext",
    "RunFailedError",
    "RunFinishedError",
    "RunNotFinishedError",
    "RunNotFoundError",
    "RunNotHeldError",
    "SchemaOutdatedError",
    "Settle",
    "StoredThread",
    "Thread",
    "ThreadBusyError",
    "ThreadInfo",
    "ThreadNotFoundError",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolMessage",
    "ToolResult",
    "UnavailableError",
    "UnknownAgentError",
    "Usage",
    "UserMessage",
    "Wait",
    "WaitTimeoutError",
    "Why",
    "embed",
    "set_prices",
    "tool",
]

# Where the names live. They are imported when they are asked for: importing all takes most of a second, which
# ``agentq --help`` and a module that only wants ``ToolError`` need not pay.
_HOMES = {
    "agentq.approvals": (
        "ApprovalRule",
        "Approve",
        "Complete",
        "Deferred",
        "Fail",
        "NeedsApproval",
        "Reject",
        "Respond",
        "Settle",
    ),
    "agentq.client": ("Client",),
    "agentq.face": ("Agent", "Thread"),
    "agentq.content": ("File", "Image"),
    "agentq.context": ("RunContext",),
    "agentq.errors": (
        "AgentqError",
        "ApprovalNotPendingError",
        "ConfigError",
        "ContentError",
        "ContentMissingError",
        "InputError",
        "LimitExceededError",
        "ProviderError",
        "RunCancelledError",
        "RunFailedError",
        "RunFinishedError",
        "RunNotFinishedError",
        "RunNotFoundError",
        "RunNotHeldError",
        "SchemaOutdatedError",
        "ThreadBusyError",
        "ThreadNotFoundError",
        "ToolError",
        "UnavailableError",
        "UnknownAgentError",
        "WaitTimeoutError",
    ),
    "agentq.handle": ("Handle",),
    "agentq.history": ("Effect", "Rewound"),
    "agentq.hooks": ("EndRun", "Hooks", "ModelView"),
    "agentq.limits": ("Limits",),
    "agentq.memory": ("Memory",),
    "agentq.messages": ("AssistantMessage", "Message", "ToolCall", "ToolMessage", "ToolResult", "Usage", "UserMessage"),
    "agentq.output": ("AskAgain",),
    "agentq.providers.embeddings": ("Embeddings", "embed"),
    "agentq.prices": ("Price", "set_prices"),
    "agentq.run": ("Approval", "Event", "Result", "Run", "ThreadInfo"),
    "agentq.threads": ("StoredThread",),
    "agentq.tools": ("Tool", "tool"),
    "agentq.unknown": ("Happened", "NotHappened"),
    "agentq.why": ("Wait", "Why"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # else every name that does not exist would pass as Any

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'agentq' has no attribute {name!r}")
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
