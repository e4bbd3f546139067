"""The port to the broker: something that can carry a wake-up."""

from typing import Protocol

from agentq.wire import WakeUp


class Dispatcher(Protocol):
    """Sends wake-ups. Raises UnavailableError when the broker does not take one; the sweep will send it again."""

    def send(self, wake_up: WakeUp) -> None: ...
