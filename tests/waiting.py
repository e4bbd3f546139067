"""Wait for a condition instead of for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(ask: Callable[[], T], *, within: float = 20.0, what: str = "") -> T:
    """The first true answer of ``ask``, which is repeated until ``within`` seconds have passed."""
    give_up = time.monotonic() + within
    while True:
        if answer := ask():
            return answer
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {within:g} s: {what or ask}; the last answer was {answer!r}")
        time.sleep(0.02)
