"""A worker's connection to its broker: back soon after an outage, and quick to hear that the worker is to stop."""

import os
import signal
import threading
from typing import Any

import kombu
from celery import Celery, bootsteps

# Kombu waits up to 30 s between its tries, which makes an outage of a second one of half a minute.
RETRY: dict[str, Any] = {"interval_start": 0.5, "interval_step": 0.5, "interval_max": 2.0}


class Connection(kombu.Connection):
    """Kombu's, with our waits, and a loss that always ends in a new connection."""

    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        return super().ensure_connection(*args, **(RETRY | options))

    def _do_close_transport(self) -> None:
        """Leave the transport its way back to the address, which kombu takes away.

        Messages of a lost connection to Redis are acknowledged, or put back, by number on a new one. Without the
        address that is an AttributeError in the event loop, which ends the worker and the calls that run in it.
        """
        self._transport = None


class WakeUp(bootsteps.StartStopStep):
    """End the event loop's wait when a signal comes; it sleeps for up to ten seconds and is not told otherwise."""

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._read, write = os.pipe()
        for descriptor in (self._read, write):
            os.set_blocking(descriptor, False)
        # A worker in a thread, as in tests, gets no signals.
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Called for each new connection: a lost one takes the loop's readers with it."""
        hub.add_reader(self._read, os.read, self._read, 4096)


def attach(app: Celery) -> None:
    """Give the app's workers these connections."""
    app.amqp.Connection = Connection
    app.steps["consumer"].add(WakeUp)
