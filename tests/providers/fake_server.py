"""A small threaded server on 127.0.0.1 that answers with the very bytes it is given and keeps what it was asked."""

import json
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.providers.order import check


@dataclass(frozen=True)
class Asked:
    path: str
    headers: dict[str, str]
    body: Any


Answer = Iterable[bytes]


@dataclass
class FakeServer:
    """``answer`` makes the raw bytes of one response, piece by piece; the connection is closed after the last one.

    A request that the real API would refuse (see order.py) is answered too, and fails the test at its end.
    """

    answer: Callable[[Asked], Answer]
    asked: list[Asked] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serve(answer: Callable[[Asked], Answer] | Answer, *, tls: ssl.SSLContext | None = None) -> Iterator[FakeServer]:
    fake = FakeServer(answer if callable(answer) else lambda _: answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            asked = Asked(self.path, {k.lower(): v for k, v in self.headers.items()}, json.loads(raw))
            fake.asked.append(asked)
            try:
                check(asked.path, asked.body)
            except (AssertionError, LookupError, TypeError, ValueError) as error:
                fake.refused.append(f"{asked.path}: {error!r}")
            try:
                for piece in fake.answer(asked):
                    self.wfile.write(piece)
                    self.wfile.flush()
            except OSError:
                pass  # the client went away, as some tests want
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 200
        daemon_threads = True

        def finish_request(self, request: Any, client_address: Any) -> None:
            if tls is not None:
                try:
                    request = tls.wrap_socket(request, server_side=True)
                except OSError:
                    return  # the client does not trust us, as some tests want
            super().finish_request(request, client_address)
            request.close()

    server = Server(("127.0.0.1", 0), Handler)
    fake.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert not fake.refused, f"a real server would refuse this: {fake.refused}"


def response(body: Any = b"", status: int = 200, **headers: str) -> list[bytes]:
    """One complete response. Header names are written with underscores; a body that is not bytes is sent as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"content-type": "application/json", "content-length": str(len(content)), "connection": "close"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    return [head(status, sent), content]


def head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {responses.get(status, 'Unknown')}", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
