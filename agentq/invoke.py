"""Run one tool function, sync or async, within its time limit and in a context of its own."""

import asyncio
import contextvars
import inspect
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any


class ToolTimeoutError(BaseException):
    """The time is up. Not an Exception, so that a tool's ``except Exception`` does not swallow it."""


class ToolCancelledError(Exception):
    """The run was cancelled while an async tool was running; the tool was told."""


def invoke(
    function: Callable[..., Any], arguments: dict[str, Any], *, timeout_secs: float, cancelled: threading.Event
) -> Any:
    """The function's value. Raises ToolTimeoutError, ToolCancelledError (async only), or what the function raises.

    A sync function is stopped by a timer signal where this is the main thread (a prefork child); in a thread of a
    threads pool nothing can stop it, and its lease is let go instead.
    """
    context = contextvars.copy_context()
    if inspect.iscoroutinefunction(function):
        return _run_async(function(**arguments), context, timeout_secs, cancelled)
    with _alarm(timeout_secs):
        return context.run(function, **arguments)


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expired(*_: object) -> None:
        raise ToolTimeoutError

    previous = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _run_async(
    coroutine: Coroutine[Any, Any, Any], context: contextvars.Context, timeout_secs: float, cancelled: threading.Event
) -> Any:
    future: Future[Any] = Future()
    loop = _loop()

    def start() -> None:
        task = loop.create_task(_bounded(coroutine, timeout_secs, cancelled), context=context)
        task.add_done_callback(lambda done: _hand_over(done, future))

    loop.call_soon_threadsafe(start)
    return future.result()


async def _bounded(coroutine: Coroutine[Any, Any, Any], timeout_secs: float, cancelled: threading.Event) -> Any:
    task = asyncio.ensure_future(coroutine)
    waited = 0.0
    while waited < timeout_secs:
        # Looked at four times a second: the word to cancel comes from the heartbeat, which is slower than that.
        slice_secs = min(0.25, timeout_secs - waited)
        done, _ = await asyncio.wait({task}, timeout=slice_secs)
        if done:
            return task.result()
        if cancelled.is_set():
            await _stop(task)
            raise ToolCancelledError
        waited += slice_secs
    await _stop(task)
    raise _TimedOut


class _TimedOut(Exception):  # noqa: N818 - stands in for ToolTimeoutError, which would end the loop's thread
    pass


async def _stop(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    # A tool may take cancelling badly; it gets a second and is then left alone.
    await asyncio.wait({task}, timeout=1.0)


def _hand_over(done: "asyncio.Task[Any]", future: "Future[Any]") -> None:
    if done.cancelled():
        future.set_exception(ToolCancelledError())
        return
    error = done.exception()
    if isinstance(error, _TimedOut):
        future.set_exception(ToolTimeoutError())
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


_loops: dict[int, asyncio.AbstractEventLoop] = {}
_lock = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """One loop a process, in a thread of its own, kept for the life of the process: clients of async tools stay usable."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            _loops.clear()
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="agentq-tools", daemon=True).start()
        return loop
