"""The connections of one process: lent to a thread for a statement or a transaction, kept open in between."""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from agentq.errors import UnavailableError
from agentq.storage.sql import Connection

# A thread waits so long for one of the others to be done.
_WAIT_SECS = 30.0
# Some middlebox may forget a connection that has been open for very long.
_RECYCLE_SECS = 1800.0


class Pool:
    """At most ``size`` connections, opened when they are needed; the one that was used last is lent first. Thread-safe.

    A library's pool costs a step a tenth of its time. This one relies on the list's and the queue's own locks.
    """

    def __init__(self, connect: Callable[[], Connection], size: int) -> None:
        self._connect = connect
        self._free: list[Connection] = []
        self._is_closed = False
        # Something to take for each connection there may be.
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(size):
            self._permits.put(None)

    def take(self) -> Connection:
        """Raises UnavailableError where all stay busy, or what the connect function raises."""
        try:
            self._permits.get(timeout=_WAIT_SECS)
        except Empty:
            raise UnavailableError(
                "all Postgres connections of this process are busy; see AGENTQ_DB_POOL_SIZE"
            ) from None
        try:
            while connection := self._last_used():
                if time.monotonic() - connection.opened_at < _RECYCLE_SECS:
                    return connection
                connection.close()
            return self._connect()
        except BaseException:
            self._permits.put(None)
            raise

    def give_back(self, connection: Connection, *, usable: bool = True) -> None:
        """Take back what was lent; it is closed where it is not usable."""
        if usable:
            self._free.append(connection)
        else:
            connection.close()
        if self._is_closed:
            self.close()
        self._permits.put(None)

    def close(self) -> None:
        """Close what is not lent now, and the rest when it comes back."""
        self._is_closed = True
        while connection := self._last_used():
            connection.close()

    def _last_used(self) -> Connection | None:
        try:
            return self._free.pop()
        except IndexError:
            return None
