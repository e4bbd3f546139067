"""Whatever the network does is a ProviderError of kind network (or reply_invalid), in time, and without the key."""

import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentq.errors import ProviderError
from agentq.messages import UserMessage
from agentq.providers import http
from agentq.providers.anthropic import Anthropic
from agentq.providers.base import ModelRequest
from agentq.providers.openai_chat import OpenAIChat
from tests.providers.fake_server import Asked, head, response, serve

KEY = "sk-secret-0123456789"
GOOD = {"choices": [{"finish_reason": "stop", "message": {"content": "hello"}}]}
LENGTH = str(len(response(GOOD)[1]))


def ask(url: str, timeout_secs: float = 10.0, **settings: Any) -> str:
    provider = OpenAIChat(base_url=url, api_key=KEY)
    request = ModelRequest("m", "", [UserMessage(text="hi")], settings=settings, timeout_secs=timeout_secs)
    return provider.complete(request).message.text


def fails(url: str, timeout_secs: float = 10.0, **settings: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        ask(url, timeout_secs, **settings)
    assert KEY not in f"{caught.value} {caught.value.__cause__!r} {caught.value.details}"
    return caught.value


def test_a_refused_connection_is_a_network_error() -> None:
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))  # bound, not listening: refused, and nobody else gets the port
        port = placeholder.getsockname()[1]
        error = fails(f"http://127.0.0.1:{port}")
    assert (error.kind, error.retryable) == ("network", True)
    assert f"127.0.0.1:{port}" in error.message


def test_an_unknown_host_is_a_network_error() -> None:
    error = fails("http://nowhere.invalid/v1?key=very-secret")
    assert error.kind == "network"
    assert "nowhere.invalid" in error.message
    assert "very-secret" not in error.message


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    free = threading.Event()

    def hang(_: Asked) -> Iterator[bytes]:
        free.wait(10)
        yield b""

    with serve(hang) as server:
        started = time.monotonic()
        error = fails(server.url, 0.3)
        assert time.monotonic() - started < 2
        free.set()
    assert error.kind == "network"
    assert "within 0.3 s" in error.message


@pytest.mark.parametrize("where", ["headers", "body", "stall after drips"])
def test_drips_do_not_stretch_the_total_time(where: str) -> None:
    def drip(_: Asked) -> Iterator[bytes]:
        if where != "headers":
            yield head(200, {"content-length": "1000"})
        else:
            yield b"HTTP/1.1 200 OK\r\nx-slow: "
        for _i in range(14 if where == "stall after drips" else 60):
            yield b"x"
            time.sleep(0.1)
        time.sleep(4)

    with serve(drip) as server:
        started = time.monotonic()
        error = fails(server.url, 1.5)
        assert time.monotonic() - started < 2.6
    assert error.kind == "network"


def test_a_connection_used_before_keeps_the_total_time_too() -> None:
    def answers(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"".join([head(200, {"content-length": LENGTH}), response(GOOD)[1]]))
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nx-slow: ")
            for _i in range(120):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answers, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert ask(url) == "hello"
        started = time.monotonic()
        assert fails(url, 0.5).kind == "network"
        assert time.monotonic() - started < 3
        thread.join()


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([b""], "network"),
        ([b"nonsense\r\n\r\n"], "network"),
        ([b"HTTP/1.1 200 OK\r\ncontent-le"], "network"),
        ([head(200, {"content-length": "999"}), b'{"choices": ['], "network"),
        ([head(200, {"transfer-encoding": "chunked"}), b'5\r\n{"cho\r\n'], "network"),
        ([head(200, {"connection": "close"}), b'{"choices": ['], "reply_invalid"),
        ([head(200, {"content-encoding": "gzip", "content-length": "4"}), b"junk"], "network"),
        (response(b"<html><title>Proxy login</title></html>", content_type="text/html"), "reply_invalid"),
        (response(b"<html>busy</html>", 503, content_type="text/html"), "overloaded"),
        (response('{"choices": "caf\u00e9"}'.encode("latin-1")), "reply_invalid"),
        (response({"choices": []}), "reply_invalid"),
        (response({"id": None, "choices": None, "usage": None}), "reply_invalid"),
        (response(b"", 301, location="http://127.0.0.1:9/elsewhere"), "request_rejected"),
    ],
)
def test_a_broken_answer_is_a_typed_error(pieces: list[bytes], kind: str) -> None:
    with serve(pieces) as server:
        assert fails(server.url).kind == kind
        assert len(server.asked) == 1


def test_a_body_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 2**20)

    def endless(_: Asked) -> Iterator[bytes]:
        yield head(200, {"connection": "close"})
        while True:
            yield b" " * 65536

    with serve(endless) as server:
        error = fails(server.url)
    assert error.kind == "reply_invalid"
    assert "larger than 1 MB" in error.message


def test_a_key_that_no_header_can_carry_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("sk-secret\nx", "sk-secr\u00e9t", "sk secret"):
        monkeypatch.setenv("OPENAI_API_KEY", bad)
        with pytest.raises(ProviderError) as caught:
            OpenAIChat().complete(ModelRequest("m", "", []))
        assert caught.value.kind == "auth_failed"
        assert "OPENAI_API_KEY" in caught.value.message
        assert "sk" not in caught.value.message.replace("OPENAI_API_KEY", "")


def test_a_header_of_ones_own_that_cannot_be_sent_is_not_quoted() -> None:
    provider = OpenAIChat(base_url="http://127.0.0.1:9", api_key=KEY, headers={"x-token": "tok\r\nsecret\u20ac"})
    with pytest.raises(ProviderError) as caught:
        provider.complete(ModelRequest("m", "", []))
    assert "tok" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "answer", [response({"error": {"message": f"bad key {KEY}"}}, 401), response(KEY.encode(), 503)]
)
def test_a_server_that_echoes_the_key_does_not_get_it_into_the_error(answer: list[bytes]) -> None:
    with serve(answer) as server:
        for provider in (OpenAIChat(base_url=server.url, api_key=KEY), Anthropic(base_url=server.url, api_key=KEY)):
            with pytest.raises(ProviderError) as caught:
                provider.complete(ModelRequest("m", "", [UserMessage(text="hi")]))
            assert KEY not in f"{caught.value!r}{caught.value.details}{provider!r}{vars(provider)}"
            assert "[key]" in caught.value.message
        assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
        assert server.asked[1].headers["x-api-key"] == KEY


def test_a_setting_without_a_json_form_is_rejected_before_it_is_sent() -> None:
    with serve(response(GOOD)) as server:
        assert fails(server.url, temperature=float("nan")).kind == "request_rejected"
        assert fails(server.url, stop={"a set"}).kind == "request_rejected"
        assert not server.asked


def test_a_hundred_threads_get_each_its_own_answer() -> None:
    def echo(asked: Asked) -> list[bytes]:
        time.sleep(0.05)
        return response({"choices": [{"message": {"content": asked.body["messages"][0]["content"]}}]})

    got: dict[int, str] = {}
    with serve(echo) as server:
        provider = OpenAIChat(base_url=server.url, api_key=KEY)

        def one(number: int) -> None:
            request = ModelRequest("m", "", [UserMessage(text=f"number {number}")], timeout_secs=20)
            got[number] = provider.complete(request).message.text

        threads = [threading.Thread(target=one, args=(number,)) for number in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == {number: f"number {number}" for number in range(100)}


FORK = """
import os, sys
from agentq.providers import http
from agentq.providers.http import post_json
url = sys.argv[1]
assert post_json(url, {}, {"who": "parent"}, 10).status == 200
mine = http._client()
child = os.fork()
if child == 0:
    ok = post_json(url, {}, {"who": "child"}, 10).status == 200 and http._client() is not mine
    os._exit(0 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert http._client() is mine and post_json(url, {}, {"who": "parent"}, 10).status == 200
"""


def test_a_forked_child_has_a_client_of_its_own() -> None:
    with serve(response(GOOD)) as server:
        subprocess.run([sys.executable, "-c", FORK, server.url], check=True, timeout=60)
        assert [asked.body["who"] for asked in server.asked] == ["parent", "child", "parent"]


@pytest.fixture
def new_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client that reads the environment of this test."""
    monkeypatch.setattr(http, "_clients", {})
    yield
    for client in http._clients.values():
        client.close()


def good_then_drips() -> Callable[[Asked], Iterator[bytes]]:
    first = iter([True])

    def answer(_: Asked) -> Iterator[bytes]:
        if next(first, False):
            yield from response(GOOD)
            return
        yield b"HTTP/1.1 200 OK\r\nx-slow: "
        for _i in range(60):
            yield b"x"
            time.sleep(0.1)

    return answer


@pytest.mark.usefixtures("new_client")
def test_the_proxy_of_the_environment_is_used_and_keeps_the_total_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(good_then_drips()) as server:
        monkeypatch.setenv("http_proxy", server.url)
        assert ask("http://api.invalid/v1") == "hello"
        assert server.asked[0].path == "http://api.invalid/v1/chat/completions"
        started = time.monotonic()
        assert fails("http://api.invalid/v1", 0.5).kind == "network"
        assert time.monotonic() - started < 3


@pytest.mark.usefixtures("new_client")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_tls_is_checked_and_keeps_the_total_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"]
    subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True, timeout=60)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    with serve(good_then_drips(), tls=context) as server:
        url = f"https://localhost:{server.port}"
        assert "certificate" in fails(url).message
        assert not server.asked
        http._clients.popitem()[1].close()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert ask(url) == "hello"
        started = time.monotonic()
        assert fails(url, 0.5).kind == "network"
        assert time.monotonic() - started < 3


def test_no_answer_is_waited_for_when_there_is_no_time() -> None:
    with serve(response(GOOD)) as server:
        assert fails(server.url, 0).kind == "network"
        assert not server.asked
