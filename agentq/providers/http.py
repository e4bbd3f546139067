"""One JSON request over HTTP within one total time: the only module that knows httpx."""

import json
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import httpx

from agentq.errors import ConfigError, ProviderError

CONNECT_SECS = 10.0
# Below the 5 s after which uvicorn (vLLM and others) drops an idle connection, so that none is used as it closes.
IDLE_SECS = 4.0
# What may come behind the end of a stream: a few bytes that close it, in a moment.
REST_SECS = 0.2
REST_PIECES = 8
MAX_BODY_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class HttpReply:
    """An answer with any status. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @cached_property
    def document(self) -> Any:
        """The body as JSON, or None when it is something else (HTML, Latin-1, cut in the middle)."""
        try:
            return json.loads(self.body.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            return None


def post_json(url: str, headers: Mapping[str, str], body: Mapping[str, Any], timeout_secs: float) -> HttpReply:
    """POST ``body`` and read the whole answer; redirects are not followed, for the key would go with them.

    ``timeout_secs`` bounds all of it: connecting, waiting, and a body that comes in drips. Raises ProviderError
    ``network`` with a text that never has a header or more of the URL than host and port.
    """
    with open_stream(url, headers, body, timeout_secs) as stream:
        return stream.whole()


@dataclass(frozen=True)
class HttpStream:
    """An answer whose body is still on its way: read it by ``pieces`` or as a ``whole``, once."""

    status: int
    headers: Mapping[str, str]
    pieces: Iterator[bytes]

    def whole(self) -> HttpReply:
        """All of the body. Raises ProviderError ``reply_invalid`` when there is no end to it."""
        received = bytearray()
        for piece in self.pieces:
            received += piece
            if len(received) > MAX_BODY_BYTES:
                raise ProviderError("reply_invalid", f"the answer is larger than {MAX_BODY_BYTES >> 20} MB")
        return HttpReply(self.status, self.headers, bytes(received))


@contextmanager
def open_stream(
    url: str, headers: Mapping[str, str], body: Mapping[str, Any], timeout_secs: float
) -> Iterator[HttpStream]:
    """The same as ``post_json`` with the body piece by piece; all that is done with it is within the time.

    To be left before another call is made in this thread.
    """
    content = _encode(body)
    host = _host(url)
    _clock.deadline = time.monotonic() + timeout_secs
    try:
        with _in_words(host, timeout_secs), _exchange(url, headers, content, timeout_secs) as response:
            names = {name.lower(): value for name, value in response.headers.items()}
            pieces = _pieces(response, timeout_secs)
            try:
                yield HttpStream(response.status_code, names, pieces)
            except GeneratorExit:
                # Who reads events stops at their marker.
                _finish(pieces)
                raise
            _finish(pieces)
    finally:
        _clock.deadline = None


@contextmanager
def _in_words(host: str, timeout_secs: float) -> Iterator[None]:
    """Any fault of httpx as a ProviderError."""
    try:
        yield
    except httpx.ConnectTimeout as error:
        raise ProviderError("network", f"cannot connect to {host} in time") from error
    except httpx.TimeoutException as error:
        raise ProviderError("network", f"no complete answer from {host} within {timeout_secs:g} s") from error
    except httpx.ConnectError as error:
        raise ProviderError("network", f"cannot connect to {host}: {_short(error)}") from error
    except (httpx.LocalProtocolError, httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:
        # These quote what they refuse, and that may be the header with the key: neither text nor cause is kept.
        raise ProviderError("network", f"the request to {host} cannot be sent ({type(error).__name__})") from None
    except httpx.HTTPError as error:
        raise ProviderError("network", f"the exchange with {host} broke off: {_short(error)}") from error


def _exchange(
    url: str, headers: Mapping[str, str], content: bytes, timeout_secs: float
) -> AbstractContextManager[httpx.Response]:
    timeout = httpx.Timeout(_left(timeout_secs), connect=_left(CONNECT_SECS))
    sent = {"accept-encoding": "identity", **headers}
    return _client().stream("POST", url, headers=sent, content=content, timeout=timeout)


def _pieces(response: httpx.Response, timeout_secs: float) -> Iterator[bytes]:
    for piece in response.iter_bytes():
        _left(timeout_secs)
        yield piece


def _finish(pieces: Iterator[bytes]) -> None:
    """Read an end that is all but there, so that the connection can be used again; with more to come it is closed."""
    _clock.deadline = min(_clock.deadline or math.inf, time.monotonic() + REST_SECS)
    with suppress(httpx.HTTPError):
        for _ in islice(pieces, REST_PIECES):
            pass


def _encode(body: Mapping[str, Any]) -> bytes:
    # ASCII only: a lone surrogate in a signed block has no UTF-8 form, but goes back as the escape it came as.
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise ProviderError("request_rejected", f"the request has no JSON form, see the settings: {error}") from error


def _short(error: Exception) -> str:
    # A broken status line is quoted in full, however long it is.
    return str(error)[:200] or type(error).__name__


def _host(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "the given address"
    return f"{parsed.host}:{parsed.port}" if parsed.port else parsed.host or "the given address"


# ---------------------------------------------------------------------------------------------- the clock


class _Clock(threading.local):
    deadline: float | None = None


_clock = _Clock()


def _left(wanted: float | None) -> float | None:
    """``wanted`` seconds, or what is left of this thread's call if that is less."""
    if _clock.deadline is None:
        return wanted
    left = _clock.deadline - time.monotonic()
    if left <= 0:
        raise httpx.ReadTimeout("the time of the whole call is up")
    return left if wanted is None else min(wanted, left)


class _TimedStream:
    """A network stream that never waits longer than the call has left, however small the drips."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data: bytes = self._inner.read(max_bytes, timeout=_left(timeout))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, timeout=_left(timeout))

    def start_tls(self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None) -> Any:
        return _TimedStream(self._inner.start_tls(ssl_context, server_hostname, timeout=_left(timeout)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _TimedBackend:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **options: Any) -> _TimedStream:
        return _TimedStream(self._inner.connect_tcp(host, port, timeout=_left(timeout), **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


# ---------------------------------------------------------------------------------------------- one client a process

_clients: dict[int, httpx.Client] = {}
_lock = threading.Lock()


def _client() -> httpx.Client:
    """This process's client; a forked child makes its own, or the two would read each other's answers."""
    pid = os.getpid()
    if pid not in _clients:
        with _lock:
            if pid not in _clients:
                _clients[pid] = _new_client()
    return _clients[pid]


def _new_client() -> httpx.Client:
    # As many connections as there are threads: a pool limit would only make a model call wait for another one.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=IDLE_SECS)
    try:
        client = httpx.Client(limits=limits, follow_redirects=False)
    except (ImportError, OSError, ValueError) as error:
        raise ConfigError(f"the HTTP client cannot start, look at the proxy and SSL variables: {error}") from error
    # httpx's timeouts count from each byte to the next and it has no public place for another clock (0.28).
    for transport in (client._transport, *client._mounts.values()):
        if (pool := getattr(transport, "_pool", None)) is not None:
            pool._network_backend = _TimedBackend(pool._network_backend)
    return client


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it at the fork
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
