"""The broker of a machine without one: a kombu transport over files, for URLs ``agentq+file:///absolute/folder``.

Importing this module teaches kombu, and so Celery, the URL. Direct, topic and fanout exchanges work, so remote control
does too. A consumer that is killed loses what it held; nothing here brings it back.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty
from typing import Any
from urllib.parse import unquote, urlsplit

from kombu.exceptions import ChannelError
from kombu.log import get_logger
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.utils.json import dumps, loads

from agentq.embedded.folder import Binding, MessageFolder, Urgency
from agentq.errors import ConfigError

POLLING_SECONDS = 0.01
URGENT, NOT_URGENT = 5, 2
# A busy worker may not get round to its control queue for longer than the few seconds Celery lets those live.
SHORTEST_EXPIRY_SECONDS = 60.0

TRANSPORT_ALIASES["agentq"] = "agentq.embedded.broker:Transport"
logger = get_logger(__name__)


def connection_options(url: str) -> dict[str, Any]:
    """Celery's settings for the URL. Call it, or import this module, in every process that connects."""
    _folder_of(url.removeprefix("agentq+"))
    return {"broker_url": url, "broker_transport_options": {"polling_interval": POLLING_SECONDS}}


def _folder_of(url: str) -> Path:
    parts = urlsplit(url)
    folder = Path(unquote(parts.path))
    if parts.scheme != "file" or parts.netloc or not folder.is_absolute():
        raise ConfigError(f"{url!r} names no folder: use agentq+file:///absolute/folder", url=url)
    return folder


@contextmanager
def _channel_errors(queue: str) -> Iterator[None]:
    """A full disk and the like, as the error that kombu's and Celery's retries know."""
    try:
        yield
    except OSError as error:
        raise ChannelError(f"queue {queue!r}: {error}") from error


class Channel(virtual.Channel):
    supports_fanout = True

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._folder = MessageFolder(_folder_of(connection.client.hostname))
        self._expiries: dict[str, tuple[float, float]] = {}  # queue -> (seconds, monotonic time to say we live)

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        expires = kwargs.get("expires")
        return {**(arguments or {}), "x-expires": int(expires * 1000)} if expires else arguments

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        milliseconds = (kwargs.get("arguments") or {}).get("x-expires")
        if milliseconds:
            self._expiries[queue] = (max(milliseconds / 1000, SHORTEST_EXPIRY_SECONDS), 0.0)
            self._keep_alive(queue)

    def _keep_alive(self, queue: str) -> None:
        seconds, due = self._expiries[queue]
        if time.monotonic() < due:
            return
        self._expiries[queue] = (seconds, time.monotonic() + seconds / 4)
        if not self._folder.keep_alive(queue, seconds):
            # A process that slept too long comes back: its queue was removed with its bindings.
            for exchange, routing_key, arguments in list(self.state.queue_bindings(queue)):
                meta = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)
                self._queue_bind(exchange, *meta)

    def _put(self, queue: str, message: Any, **_kwargs: Any) -> None:
        with _channel_errors(queue):
            self._folder.put(queue, dumps(message), _urgency(message))

    def _put_fanout(self, exchange: str, message: Any, _routing_key: str, **_kwargs: Any) -> None:
        for _, _, queue in self.get_table(exchange):
            self._put(queue, message)

    def _get(self, queue: str, _timeout: float | None = None) -> Any:
        with _channel_errors(queue):
            if queue in self._expiries:
                self._keep_alive(queue)
            while (text := self._folder.take(queue)) is not None:
                try:
                    return loads(text)
                except ValueError:  # cut short when the machine lost power
                    logger.warning("queue %r: dropped an unreadable message", queue)
        raise Empty

    def _size(self, queue: str) -> int:
        return self._folder.size(queue)

    def _purge(self, queue: str) -> int:
        return self._folder.purge(queue)

    def _delete(self, queue: str, exchange: str, *meta: Any, **_kwargs: Any) -> None:
        self._expiries.pop(queue, None)
        self._folder.delete(queue)
        self._folder.unbind(exchange, _binding(*meta))

    def _queue_bind(self, exchange: str, *meta: Any) -> None:
        with _channel_errors(exchange):
            self._folder.bind(exchange, _binding(*meta))

    def queue_unbind(
        self, queue: str, exchange: Any = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        super().queue_unbind(queue, exchange, routing_key, arguments, **kwargs)
        meta = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)
        self._folder.unbind(exchange, _binding(*meta))

    def get_table(self, exchange: str) -> Any:
        return self._folder.bindings(exchange)


def _urgency(message: Any) -> Urgency:
    """Of a priority from 1 to 9, the highest of which goes first; 0 says nothing."""
    priority = message["properties"].get("priority") or 0
    return "high" if priority >= URGENT else "low" if 0 < priority <= NOT_URGENT else "normal"


def _binding(*meta: Any) -> Binding:
    routing_key, pattern, queue = meta
    return (routing_key or "", pattern or "", queue or "")


class Transport(virtual.Transport):
    Channel = Channel
    polling_interval = POLLING_SECONDS
    can_parse_url = True  # kombu hands over the URL as it is, without the part up to "+"
    default_port = 0
    driver_type = "agentq"
    driver_name = "agentq"
    # With an event loop Celery takes the pool whose processes share nothing: in the other one, a process that is killed
    # while it waits takes along the lock that all others need to get their next task.
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        loop.call_repeatedly(self.polling_interval, self._deliver_all)

    def _deliver_all(self) -> None:
        """What is there now and may be consumed."""
        cycle: Any = self.cycle
        with suppress(Empty):
            while True:
                cycle.get(self._deliver, timeout=0)

    def driver_version(self) -> str:
        return "1"
