"""Keep a worker's processes running until somebody says stop, and then stop them gently."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agentq.cli.pools import Child
from agentq.cli.program import INTERRUPTED, say

LOOK_SECS = 0.2
# After the second signal, for Celery's cold shutdown; then nothing is asked any more.
HARD_SECS = 5.0

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def supervise(children: Sequence[Child]) -> int:
    """Start the children, start again what dies, and return an exit code after a signal: 0 for a gentle stop."""
    with _counted_signals() as received:
        try:
            for child in children:
                child.start()
            _keep_running(children, received)
            return _shut_down(children, received)
        finally:
            for child in children:
                child.kill()
                child.wait()


@contextmanager
def _counted_signals() -> Iterator[list[int]]:
    received: list[int] = []

    def note(number: int, _frame: Any) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _keep_running(children: Sequence[Child], received: list[int]) -> None:
    due: dict[Child, float] = {}
    while not received:
        for child in children:
            if death := child.bury():
                code, pause = death
                say(f"the {child.pool.kind} process ended ({_how(code)}); starting it again in {pause:g} s")
                due[child] = time.monotonic() + pause
            if child in due and time.monotonic() >= due[child]:
                del due[child]
                child.start()
        time.sleep(LOOK_SECS)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _shut_down(children: Sequence[Child], received: list[int]) -> int:
    say("stopping: work in progress is finished first; once more to stop now")
    for child in children:
        child.signal(signal.SIGTERM)
    while any(child.is_running for child in children):
        if len(received) > 1:
            _stop_now(children)
            return INTERRUPTED
        time.sleep(LOOK_SECS / 4)
    say("stopped")
    return 0


def _stop_now(children: Sequence[Child]) -> None:
    say("stopping now: what is cut off goes on with the next worker")
    for child in children:
        child.signal(signal.SIGQUIT)
    give_up = time.monotonic() + HARD_SECS
    while any(child.is_running for child in children) and time.monotonic() < give_up:
        time.sleep(LOOK_SECS / 4)
