"""Durable LLM-agent runs on Celery and Postgres: they survive any crash and wait for people at no cost."""

from agentq.client import Agent, Client, Handle, Thread
from agentq.context import RunContext
from agentq.errors import (
    AgentqError,
    ApprovalNotPendingError,
    ConfigError,
    LimitExceededError,
    ProviderError,
    RunCancelledError,
    RunFailedError,
    RunFinishedError,
    RunNotFoundError,
    SchemaOutdatedError,
    ThreadBusyError,
    ToolError,
    UnavailableError,
    UnknownAgentError,
    WaitTimeoutError,
)
from agentq.hooks import EndRun, Hooks
from agentq.limits import Limits
from agentq.memory import Memory
from agentq.messages import AssistantMessage, Message, ToolCall, ToolMessage, ToolResult, Usage, UserMessage
from agentq.run import Approval, Event, Result, Run
from agentq.tools import Tool, tool

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentqError",
    "Approval",
    "ApprovalNotPendingError",
    "AssistantMessage",
    "Client",
    "ConfigError",
    "EndRun",
    "Event",
    "Handle",
    "Hooks",
    "LimitExceededError",
    "Limits",
    "Memory",
    "Message",
    "ProviderError",
    "Result",
    "Run",
    "RunCancelledError",
    "RunContext",
    "RunFailedError",
    "RunFinishedError",
    "RunNotFoundError",
    "SchemaOutdatedError",
    "Thread",
    "ThreadBusyError",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolMessage",
    "ToolResult",
    "UnavailableError",
    "UnknownAgentError",
    "Usage",
    "UserMessage",
    "WaitTimeoutError",
    "tool",
]
