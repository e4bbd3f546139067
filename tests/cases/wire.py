"""A model played on a real socket, in the words of each API, whole or streamed, to an agent with its whole loop."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agentq import Agent, Handle
from agentq.providers.anthropic import Anthropic
from agentq.providers.base import Delta, HasOutputFormat, ModelReply, ModelRequest, OutputFormat, Provider
from agentq.providers.openai_chat import OpenAIChat
from agentq.storage.database import Database
from tests.engine.drain import Drain
from tests.providers.fake_server import Answer, Asked, FakeServer, serve
from tests.providers.stubs import Calls, answer, chat_reply, messages_reply

KEY = "sk-secret-0123456789"


@dataclass(frozen=True)
class Streamed:
    """The provider, asked for a stream each time."""

    provider: Provider
    model: str = "m"

    @property
    def name(self) -> str:
        return self.provider.name

    def output_format(self, schema: dict[str, Any], *, forced: bool) -> OutputFormat | None:
        assert isinstance(self.provider, HasOutputFormat)
        return self.provider.output_format(schema, forced=forced)

    def complete(self, request: ModelRequest) -> ModelReply:
        def show(_: Delta) -> None: ...

        return self.provider.complete(replace(request, on_delta=show))


@dataclass(frozen=True)
class Api:
    """One of the two APIs, and how it is asked."""

    name: str
    streamed: bool

    def __str__(self) -> str:
        return f"{self.name} streamed" if self.streamed else self.name

    def provider(self, url: str) -> Provider:
        chat = OpenAIChat(base_url=url, api_key=KEY, model="m")
        provider: Provider = chat if self.name == "chat" else Anthropic(base_url=url, api_key=KEY, model="m")
        return Streamed(provider) if self.streamed else provider

    def reply(self, text: str = "", calls: Calls = (), **fields: Any) -> dict[str, Any]:
        """A document of this API; a text beside calls is left out where it is empty."""
        if self.name == "chat":
            return chat_reply(text or None, calls, **fields)
        return messages_reply(text, calls, **fields)


APIS = [Api(name, streamed) for name in ("chat", "messages") for streamed in (False, True)]
each_api = pytest.mark.parametrize("api", APIS, ids=str)

Reply = dict[str, Any] | Callable[[Asked], Answer]


@contextmanager
def played(replies: Sequence[Reply]) -> Iterator[FakeServer]:
    """A server that gives these replies one after the other, the last one for ever."""
    waiting = list(replies)

    def next_answer(asked: Asked) -> Answer:
        reply = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        return reply(asked) if callable(reply) else answer(asked.path, reply, streamed=bool(asked.body.get("stream")))

    with serve(next_answer) as server:
        yield server


def run(database: Database, agent: Agent, **options: Any) -> Handle:
    """The run of an agent when all is done that can be done; time passes for what waits."""
    drain = Drain(database, agent)
    handle = drain.enqueue(agent, **options)
    for _ in range(20):
        drain.work()
        if handle.run().is_terminal:
            return handle
        drain.age(120)
        drain.sweep()
    raise AssertionError(handle.run())


def sent_results(asked: Asked) -> list[tuple[str, str, str]]:
    """Calls and results of the last request, as id at the call, id at the result, and text, in order."""
    calls, results = list[str](), list[tuple[str, str]]()
    for message in asked.body["messages"]:
        calls += [call["id"] for call in message.get("tool_calls", ())]
        if message["role"] == "tool":
            results.append((message["tool_call_id"], message["content"]))
        for block in message["content"] if isinstance(message.get("content"), list) else ():
            if block["type"] == "tool_use":
                calls.append(block["id"])
            elif block["type"] == "tool_result":
                results.append((block["tool_use_id"], block["content"]))
    return [(call, result, text) for call, (result, text) in zip(calls, results, strict=True)]
