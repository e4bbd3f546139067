"""Streams over a real socket: bounded in time, cut, ignored by the server, and the connection after them."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from agentq.errors import ProviderError
from agentq.messages import UserMessage
from agentq.providers.anthropic import Anthropic
from agentq.providers.base import Delta, ModelReply, ModelRequest, Provider
from agentq.providers.openai_chat import OpenAIChat
from agentq.providers.profiles import PROFILES
from tests.providers.fake_server import Answer, Asked, head, response, serve
from tests.providers.rows import BY_ID

KEY = "sk-test-0123456789"
STREAM = {"content-type": "text/event-stream", "connection": "close"}
CHUNKED = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
APIS = ("chat", "messages")
ROWS = {"chat": "openai-chat-b282b6-t0", "messages": "anthropic-maxtk1-t0"}
WHOLE = {
    "chat": {"choices": [{"finish_reason": "stop", "message": {"content": "hello"}}]},
    "messages": {"content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn"},
}

each_api = pytest.mark.parametrize("api", APIS)


def body(api: str) -> bytes:
    return str(BY_ID[ROWS[api]]["response"]["sse"]).encode()


def begun(api: str) -> bytes:
    """The first half of it, up to the end of an event."""
    return body(api)[: body(api).index(b"\n\n", len(body(api)) // 2) + 2]


def provider(api: str, url: str) -> Provider:
    if api == "messages":
        return Anthropic(base_url=url, api_key=KEY)
    return OpenAIChat(api_key=KEY, profile=replace(PROFILES["openai"], base_url=url))


def ask(api: str, url: str, timeout_secs: float = 20.0, deltas: list[Delta] | None = None) -> ModelReply:
    show: list[Delta] = [] if deltas is None else deltas
    request = ModelRequest("m", "", [UserMessage(text="hi")], timeout_secs=timeout_secs, on_delta=show.append)
    return provider(api, url).complete(request)


def fails(api: str, answer: Callable[[Asked], Answer] | Answer, timeout_secs: float = 20.0) -> ProviderError:
    with serve(answer) as server:
        with pytest.raises(ProviderError) as caught:
            ask(api, server.url, timeout_secs)
        assert len(server.asked) == 1
    return caught.value


@each_api
def test_a_stream_is_shown_before_it_is_whole(api: str) -> None:
    shown = threading.Event()

    class Deltas(list[Delta]):
        def append(self, delta: Delta) -> None:
            super().append(delta)
            shown.set()

    def answer(_: Asked) -> Iterator[bytes]:
        yield head(200, STREAM) + begun(api)
        assert shown.wait(20)
        yield body(api)[len(begun(api)) :]

    deltas = Deltas()
    with serve(answer) as server:
        reply = ask(api, server.url, deltas=deltas)
    assert "".join(delta.text for delta in deltas) == reply.message.text != ""


@each_api
@pytest.mark.parametrize("drip", [b": still there\n\n", b"x"], ids=["comments", "a line without end"])
def test_a_stream_that_drips_for_ever_is_given_up(api: str, drip: bytes) -> None:
    gone = threading.Event()

    def answer(_: Asked) -> Iterator[bytes]:
        yield head(200, STREAM) + begun(api)
        while not gone.wait(0.02):
            yield drip

    error = fails(api, answer, timeout_secs=0.5)
    gone.set()
    assert (error.kind, error.retryable) == ("network", True)
    assert "within 0.5 s" in error.message


@each_api
def test_a_stream_that_stalls_is_given_up(api: str) -> None:
    gone = threading.Event()

    def answer(_: Asked) -> Iterator[bytes]:
        yield head(200, STREAM) + begun(api)
        gone.wait(60)

    error = fails(api, answer, timeout_secs=0.5)
    gone.set()
    assert error.kind == "network"


@each_api
@pytest.mark.parametrize("framing", [STREAM, {**STREAM, "content-length": "9999999"}, CHUNKED])
def test_a_stream_cut_by_the_network_is_an_error_of_it(api: str, framing: dict[str, str]) -> None:
    sent = begun(api)
    framed = f"{len(sent):x}\r\n".encode() + sent + b"\r\n" if framing is CHUNKED else sent
    error = fails(api, [head(200, framing), framed])
    assert (error.kind, error.retryable) == ("network", True)


@each_api
@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8"])
def test_a_server_that_does_not_stream_is_read_all_the_same(api: str, content_type: str) -> None:
    with serve(response(WHOLE[api], content_type=content_type)) as server:
        assert ask(api, server.url).message.text == "hello"
        assert server.asked[0].body["stream"] is True


@each_api
def test_an_error_instead_of_a_stream_is_that_error(api: str) -> None:
    error = fails(api, response({"error": {"message": "slow down"}}, 429, retry_after="7"))
    assert (error.kind, error.retry_after) == ("rate_limited", 7)
    # Some send the status alone, and the body as an event.
    event = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}\n\n'
    assert fails(api, [head(200, STREAM), event]).kind == "overloaded"
    assert fails(api, [head(529, STREAM), event]).kind == "overloaded"
    assert fails(api, response(b"<html><title>Login</title></html>", content_type="text/html")).kind == "reply_invalid"
    assert fails(api, [head(200, STREAM)]).kind == "network"


def test_a_chat_stream_without_its_marker_is_cut_at_the_servers_own_address_only() -> None:
    sent = body("chat").replace(b"data: [DONE]", b"")
    assert fails("chat", [head(200, STREAM), sent]).kind == "network"
    with serve([head(200, STREAM), sent]) as server:
        request = ModelRequest("m", "", [UserMessage(text="hi")], on_delta=lambda _: None)
        assert OpenAIChat(base_url=server.url, api_key=KEY).complete(request).message.text


@contextmanager
def one_by_one(*answers: bytes) -> Iterator[tuple[str, list[int]]]:
    """A server that answers each request on the same connection as long as the client keeps it.

    It ends no answer. Beside its address, how many requests came on each connection.
    """
    waiting, counts = list(answers), list[int]()

    def accept(listener: socket.socket) -> None:
        while waiting:
            connection, _ = listener.accept()
            counts.append(0)
            with connection:
                while waiting and receive(connection):
                    counts[-1] += 1
                    connection.sendall(waiting.pop(0))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", counts
        thread.join(20)
        assert not thread.is_alive()


def receive(connection: socket.socket) -> bool:
    received = b""
    while b"\r\n\r\n" not in received or len(received) < length_of(received):
        if not (more := connection.recv(65536)):
            return False
        received += more
    return True


def length_of(request: bytes) -> int:
    headers, _, _ = request.partition(b"\r\n\r\n")
    size = next(line for line in headers.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return len(headers) + 4 + int(size.partition(b":")[2])


def chunked(content: bytes, *, ended: bool) -> bytes:
    return head(200, CHUNKED) + f"{len(content):x}\r\n".encode() + content + b"\r\n" + (b"0\r\n\r\n" if ended else b"")


@each_api
def test_a_connection_is_used_again_behind_a_stream_and_closed_behind_one_that_does_not_end(api: str) -> None:
    good, endless = chunked(body(api), ended=True), chunked(body(api), ended=False)
    cut, last = chunked(begun(api) + b"data: junk\n\n", ended=True), chunked(body(api), ended=True)
    with one_by_one(good, good, endless, cut, last) as (url, counts):
        expected = ask(api, url)
        assert ask(api, url) == expected
        assert ask(api, url) == expected
        with pytest.raises(ProviderError):
            ask(api, url)
        assert ask(api, url) == expected
    assert counts == [3, 1, 1]


def test_a_delta_that_cannot_be_shown_leaves_no_connection_behind() -> None:
    def broken(_: Delta) -> None:
        raise RuntimeError("shown to nobody")

    good: Any = json.dumps({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]})
    sent = chunked(f"data: {good}\n\ndata: [DONE]\n\n".encode(), ended=True)
    with one_by_one(sent, sent) as (url, counts):
        request = ModelRequest("m", "", [UserMessage(text="hi")], on_delta=broken)
        with pytest.raises(RuntimeError):
            provider("chat", url).complete(request)
        assert ask("chat", url).message.text == "x"
    assert sum(counts) == 2
