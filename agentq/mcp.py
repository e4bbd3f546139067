"""Tools of MCP servers, through the official client: to an agent and its limits, approvals and crashes like any other.

Needs the extra ``[mcp]``. Each process keeps a connection to each server it has called, on the loop of its async tools.
"""

import asyncio
import base64
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

from agentq.arguments import ArgumentsError, Parameters, as_object
from agentq.content import File, Image
from agentq.context import RunContext
from agentq.errors import ConfigError, ToolError
from agentq.invoke import ToolTimeoutError, run_async
from agentq.json_schemas import JsonSchema, ProblemsError
from agentq.results import to_text
from agentq.text import clean, cut, told
from agentq.tools import NAME, Tool, check_options
from agentq.unknown import Rule

_CLOSED = -32000  # JSON-RPC's code of the official client for a connection that is gone
_CONTEXT = "the context"  # no server's parameter: it has a space


@dataclass(frozen=True)
class McpServer:
    """A server, by the ``command`` that starts it (stdio) or by its ``url`` (streamable HTTP).

    ``env`` is added to the few variables that a started server inherits; ``headers`` go with every request to a URL.
    A value ``"$NAME"`` in either is read from this process's environment when it connects, so that no secret stands in
    code. ``connect_secs`` bounds connecting and listing.
    """

    name: str
    command: Sequence[str] = ()
    url: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_secs: float = 30.0

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url) or isinstance(self.command, str):
            raise ConfigError(f"MCP server {self.name!r}: give its command, as a list, or its url")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"MCP server {self.name!r}: the url begins with http:// or https://, not {self.url!r}")

    def tools(
        self,
        only: Collection[str] | None = None,
        *,
        prefix: str = "",
        idempotent: Collection[str] = (),
        on_unknown: Rule | None = None,
        timeout: float | None = None,
        queue: str | None = None,
    ) -> list[Tool]:
        """Connect, and make a tool of each one the server lists now, or of those named in ``only``.

        A character that no provider takes in a name becomes ``_``; ``prefix`` goes before each name. ``idempotent``
        names those that may run twice: what servers say of that themselves is not believed. The rest as for ``@tool``.
        Raises ConfigError where the server cannot be reached, lists no such tool, or has a schema that is none.
        """
        found = {tool.name: tool for tool in _at_once(self._list(), self)}
        wanted = list(found) if only is None else list(only)
        for name in [*wanted, *idempotent]:
            if name not in found:
                raise ConfigError(f"MCP server {self.name!r} has no tool {name!r}; it has {', '.join(found) or 'none'}")
        options = {"timeout": timeout, "queue": queue}
        rules = {name: "retry" if name in idempotent else on_unknown or "report" for name in wanted}
        return [self._tool(found[name], prefix, rules[name], options) for name in wanted]

    async def _list(self) -> list[Any]:
        async with _library(self).Client(self._target(), read_timeout_seconds=self.connect_secs) as client:
            page = await client.list_tools()
            listed = list(page.tools)
            while page.next_cursor:
                page = await client.list_tools(cursor=page.next_cursor)
                listed += page.tools
            return listed

    def _tool(self, listed: Any, prefix: str, rule: Any, options: dict[str, Any]) -> Tool:
        name = _fit_name(prefix + listed.name)
        check_options(name, options["timeout"], options["queue"], inline=False)
        return Tool(
            name=name,
            description=clean(listed.description or listed.title or ""),
            function=partial(_call, self, listed.name, rule == "retry"),
            parameters=_Listed(listed.input_schema, f"tool {name!r} of MCP server {self.name!r}"),
            on_unknown=rule,
            **options,
        )

    def _target(self) -> Any:
        """What the official client connects to."""
        if self.url is None:
            program, *arguments = self.command
            stdio = import_module("mcp.client.stdio")
            return stdio.StdioServerParameters(
                command=program, args=arguments, env=self._revealed(self.env), cwd=self.cwd
            )
        return _over_http(self.url, self._revealed(self.headers))

    def _revealed(self, values: Mapping[str, str]) -> dict[str, str]:
        return {key: self._read(value) for key, value in values.items()}

    def _read(self, value: str) -> str:
        name = value.removeprefix("$")
        if name == value:
            return value
        if name not in os.environ:
            raise ConfigError(f"MCP server {self.name!r} needs the variable {name}, which is not set")
        return os.environ[name]


@asynccontextmanager
async def _over_http(url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    """The official client's transport, with headers of ours: it does not close an HTTP client that it was given."""
    transport = import_module("mcp.client.streamable_http").streamable_http_client
    make_client = import_module("mcp.shared._httpx_utils").create_mcp_http_client
    async with make_client(headers=headers) as client, transport(url, http_client=client) as streams:
        yield streams


class _Listed(Parameters):
    """The parameters of a tool by the schema that a server gave."""

    def __init__(self, schema: dict[str, Any], where: str) -> None:
        self.context_name = _CONTEXT
        self._checks = JsonSchema(schema, where, "its schema")
        self.schema = {"type": "object", "properties": {}, **self._checks.schema}
        if self.schema["type"] != "object":
            raise ConfigError(f"{where}: its parameters are no object")
        self.names = tuple(self.schema["properties"])

    def parse(self, text: str) -> dict[str, Any]:
        """See Parameters."""
        given = as_object(text)
        try:
            self._checks.check(given)
        except ProblemsError as error:
            # A habit of models: null for what is not given.
            required = self.schema.get("required", ())
            given = {name: value for name, value in given.items() if value is not None or name in required}
            try:
                self._checks.check(given)
            except ProblemsError:
                raise ArgumentsError(str(error)) from error
        return given


def _fit_name(name: str) -> str:
    fit = re.sub(r"[^a-zA-Z0-9_-]", "_", name)
    fit = fit if not fit[:1].isdigit() else f"_{fit}"
    return fit if NAME.fullmatch(fit) else f"{fit[:55]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _library(server: McpServer) -> Any:
    try:
        return import_module("mcp")
    except ImportError as error:
        raise ConfigError(
            f"MCP server {server.name!r} needs the package mcp, which is not installed; "
            "install agentq-celery with its extra [mcp]"
        ) from error


def _at_once(work: Any, server: McpServer) -> Any:
    """What it returns, within the server's time, for who waits. Raises ConfigError with the reason."""
    try:
        return run_async(work, copy_context(), server.connect_secs, lambda: False)
    except ConfigError:
        raise
    except ToolTimeoutError:
        raise ConfigError(f"MCP server {server.name!r} does not answer within {server.connect_secs:g} s") from None
    except Exception as error:
        raise ConfigError(f"MCP server {server.name!r} cannot be used: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Of the first that went wrong, where several things did: those of a task group are wrapped in one another."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return told(error)


# ---------------------------------------------------------------------------------------------- calls


async def _call(server: McpServer, name: str, may_run_twice: bool, **arguments: Any) -> Any:
    """A call of the tool. Raises ToolError for what the model may know of."""
    ctx: RunContext = arguments.pop(_CONTEXT)
    # For a server that wants to know a call when it sees it again.
    meta = {"agentq/idempotency_key": ctx.idempotency_key}
    for is_last in (not may_run_twice, True):
        try:
            connection = await _connected(server)
        except ConfigError as error:
            raise ToolError(f"{error.message}; the tool was not run") from error
        try:
            result = await connection.client.call_tool(name, arguments, meta=meta)
        except Exception as error:
            if getattr(getattr(error, "error", None), "code", _CLOSED) != _CLOSED:
                raise ToolError(f"MCP server {server.name!r} refused the call: {_reason(error)}") from error
            connection.close()
            if is_last:
                raise ToolError(
                    f"the connection to MCP server {server.name!r} was lost during the call: nobody knows whether it "
                    f"took effect ({_reason(error)})"
                ) from error
        else:
            return _value(result)
    raise AssertionError("the last try returns or raises")


def _value(result: Any) -> Any:
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    if result.is_error:
        raise ToolError(cut("\n".join(map(str, parts)), 4_000) or "it failed and said nothing")
    if all(isinstance(part, str) for part in parts):
        return "\n".join(str(part) for part in parts)
    return parts


def _part(block: Any) -> str | Image | File:
    match block.type:
        case "text":
            return str(block.text)
        case "image":
            return Image.from_bytes(base64.b64decode(block.data), media_type=block.mime_type)
        case "audio":
            return File.from_bytes(base64.b64decode(block.data), media_type=block.mime_type)
        case "resource":
            held = block.resource
            if getattr(held, "text", None) is not None:
                return str(held.text)
            return File.from_bytes(base64.b64decode(held.blob), media_type=held.mime_type, name=str(held.uri))
        case "resource_link":
            return f"{block.name}: {block.uri}"
        case _:
            return to_text(block.model_dump(mode="json"))


# ---------------------------------------------------------------------------------------------- connections


class _Connection:
    """One open connection, held by a task of its own: the client is to be left by the task that has entered it."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self.loop = asyncio.get_running_loop()
        self._ends = asyncio.Event()
        self._opened: asyncio.Future[Any] = self.loop.create_future()
        self._task = self.loop.create_task(self._hold())
        self.client: Any = None

    async def _hold(self) -> None:
        try:
            async with _library(self._server).Client(self._server._target()) as client:
                self._opened.set_result(client)
                await self._ends.wait()
        except BaseException as error:
            if not self._opened.done():
                self._opened.set_exception(error if isinstance(error, Exception) else RuntimeError(told(error)))

    async def open(self) -> None:
        try:
            self.client = await asyncio.wait_for(asyncio.shield(self._opened), self._server.connect_secs)
        except Exception as error:
            self._task.cancel()
            raise ConfigError(f"MCP server {self._server.name!r} cannot be used: {_reason(error)}") from error

    async def is_alive(self) -> bool:
        """Whether it can be trusted with a call: what is found out now need not be told as a call of unknown end."""
        if self._task.done() or self._ends.is_set():
            return False
        try:
            # The newest protocol has no pings.
            await asyncio.wait_for(self.client.list_tools(cache_mode="bypass"), self._server.connect_secs)
        except Exception:
            return False
        return True

    def close(self) -> None:
        self._ends.set()


# By process and loop: neither a forked child nor a new loop can use what another has opened.
_connections: dict[tuple[int, int, str], _Connection] = {}
_opening: dict[tuple[int, int, str], asyncio.Lock] = {}


async def _connected(server: McpServer) -> _Connection:
    """The process's connection to the server, opened where there is none that can be used. Raises ConfigError."""
    # With what it was given to be let in: another one's connection may do other things.
    given = [server.name, server.command, server.url, server.cwd, {**server.env}, {**server.headers}]
    key = (os.getpid(), id(asyncio.get_running_loop()), repr(given))
    async with _opening.setdefault(key, asyncio.Lock()):
        connection = _connections.get(key)
        if connection is not None and not await connection.is_alive():
            connection.close()
            connection = None
        if connection is None:
            connection = _Connection(server)
            await connection.open()
            _connections[key] = connection
        return connection


def close_all() -> None:
    """Close this process's connections; a started server ends with them. For tests."""
    for key, connection in list(_connections.items()):
        del _connections[key]
        with suppress(RuntimeError):
            connection.loop.call_soon_threadsafe(connection.close)
