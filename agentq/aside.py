"""Call the user's code beside the loop within a time limit: what hangs is left to itself, and the loop goes on."""

import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any

from agentq.invoke import ToolTimeoutError, run_async

# So many calls that hang are left to themselves in one process; threads are not free.
MAX_LEFT = 64


class TookTooLong(Exception):
    """It did not answer in time. Nothing can stop a thread, so it may still be running."""


_left: list[threading.Thread] = []
# Where the calls of one step run: a token that one of them got from a ContextVar is good in the next.
_BESIDE: ContextVar[Context | None] = ContextVar("agentq_beside", default=None)


def call(function: Callable[[], Any], secs: float) -> Any:
    """The value of a function, sync or async. What it sets in a ContextVar is set here too.

    Raises TookTooLong after ``secs``, or what the function raises.
    """
    _left[:] = [thread for thread in _left if thread.is_alive()]
    if len(_left) >= MAX_LEFT:
        raise TookTooLong(f"{MAX_LEFT} calls before it still hang")
    if secs <= 0:
        raise TookTooLong("those before it have used up the time")
    context, outcome = _context(), Future[Any]()
    # Also where a signal could stop it (the main thread of a tool's process): one that waits in C would stop us.
    thread = threading.Thread(target=_work, args=(function, context, secs, outcome), name="agentq-aside", daemon=True)
    thread.start()
    wait([outcome], secs)
    # Asked once: it may come back at any moment.
    if not outcome.done():
        _left.append(thread)
        _BESIDE.set(None)
        raise TookTooLong(f"no answer within {secs:g} s")
    _adopt(context)
    try:
        return outcome.result()
    except ToolTimeoutError:
        raise TookTooLong(f"no answer within {secs:g} s") from None


def _work(function: Callable[[], Any], context: Context, secs: float, outcome: "Future[Any]") -> None:
    try:
        value = context.run(function)
        if inspect.iscoroutine(value):
            value = run_async(value, context, secs, lambda: False)
    except BaseException as error:
        outcome.set_exception(error)
    else:
        outcome.set_result(value)


def _context() -> Context:
    beside = _BESIDE.get()
    if beside is not None:
        # One that a call hangs in, begun where this context was copied from, cannot be entered again.
        with suppress(RuntimeError):
            beside.run(_adopt, copy_context())
            return beside
    beside = copy_context()
    _BESIDE.set(beside)
    return beside


def _adopt(other: Context) -> None:
    """Set here what is set there."""
    for variable, value in other.items():
        if variable is not _BESIDE and variable.get(_BESIDE) is not value:
            variable.set(value)
