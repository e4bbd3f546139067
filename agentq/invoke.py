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
from typing import Any, TypeVar

# A tool that swallows the word that its time is up hears it again after this long.
AGAIN_SECS = 5.0
# How long a cancelled async tool may take to clean up, and a loop to answer, before they are left alone.
_STOP_SECS = 1.0
_STUCK_SECS = 2.0


class ToolTimeoutError(BaseException):
    """The time is up. Not an Exception, so that a tool's ``except Exception`` does not swallow it."""


class ToolCancelledError(Exception):
    """The run was cancelled while an async tool was running; the tool was told."""


T = TypeVar("T")


def invoke(
    function: Callable[..., Any],
    arguments: dict[str, Any],
    shape: Callable[[Any], T],
    *,
    timeout_secs: float,
    is_cancelled: Callable[[], bool],
) -> T:
    """``shape`` of the function's value, both within the time limit.

    Raises ToolTimeoutError, ToolCancelledError (async only), or what the function raises.

    A sync function is stopped by a timer signal where this is the main thread (a prefork child); in a thread of a
    threads pool nothing can stop it, and its lease is let go instead.
    """
    context = contextvars.copy_context()
    with _alarm(timeout_secs):
        value = context.run(function, **arguments)
        # Asked of the value: an async function may be hidden in a partial, an object or a decorator.
        if not inspect.iscoroutine(value):
            return context.run(shape, value)
    value = run_async(value, context, timeout_secs, is_cancelled)
    with _alarm(timeout_secs):
        return context.run(shape, value)


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    rung: list[bool] = []

    def expired(*_: object) -> None:
        rung.append(True)
        raise ToolTimeoutError

    previous = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECS)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Exception as error:
        if rung:
            # It made something else of the alarm.
            raise ToolTimeoutError from error
        raise
    finally:
        # Apart, because the alarm may still come between the tool's end and the line above.
        signal.signal(signal.SIGALRM, previous)


def run_async(
    coroutine: Coroutine[Any, Any, Any],
    context: contextvars.Context,
    timeout_secs: float,
    is_cancelled: Callable[[], bool],
) -> Any:
    """What a coroutine returns, run on the loop of this process; see ``invoke`` for what it raises."""
    future: Future[Any] = Future()
    loop = _loop()

    def start() -> None:
        task = loop.create_task(_bounded(coroutine, context, timeout_secs, is_cancelled))
        task.add_done_callback(lambda done: _hand_over(done, future))

    loop.call_soon_threadsafe(start)
    try:
        return future.result(timeout_secs + _STOP_SECS + _STUCK_SECS)
    except TimeoutError:
        if future.done():
            raise
        # The tool does not let go of the loop (a blocking call inside async code): leave both to themselves.
        _forget(loop)
        raise ToolTimeoutError from None


async def _bounded(
    coroutine: Coroutine[Any, Any, Any],
    context: contextvars.Context,
    timeout_secs: float,
    is_cancelled: Callable[[], bool],
) -> Any:
    task = asyncio.get_running_loop().create_task(_shielded(coroutine), context=context)
    clock = asyncio.get_running_loop().time
    end = clock() + timeout_secs
    while (left := end - clock()) > 0:
        # Looked at four times a second: the word to cancel comes from the heartbeat, which is slower than that.
        done, _ = await asyncio.wait({task}, timeout=min(0.25, left))
        if done:
            if task.cancelled():
                raise RuntimeError("the tool cancelled itself")
            return task.result()
        if is_cancelled():
            await _stop(task)
            raise ToolCancelledError
    await _stop(task)
    raise _TimedOut


async def _shielded(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        # These two would end the loop, and with it every async tool of the process.
        raise _Escaped(error) from error


class _TimedOut(Exception):
    pass


class _Escaped(Exception):
    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


async def _stop(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    # A tool may take cancelling badly; it gets a second and is then left alone.
    await asyncio.wait({task}, timeout=_STOP_SECS)
    if task.done() and not task.cancelled():
        task.exception()  # looked at, so that nobody is told of an error that was never retrieved


def _hand_over(done: "asyncio.Task[Any]", future: "Future[Any]") -> None:
    error = ToolCancelledError() if done.cancelled() else done.exception()
    if isinstance(error, _TimedOut):
        future.set_exception(ToolTimeoutError())
    elif isinstance(error, _Escaped):
        future.set_exception(error.error)
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


_loops: dict[int, asyncio.AbstractEventLoop] = {}
_lock = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """One loop a process, in a thread of its own, kept for its life: the clients of async tools stay usable."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            _loops.clear()
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="agentq-tools", daemon=True).start()
        return loop


def _forget(loop: asyncio.AbstractEventLoop) -> None:
    """The next async tool gets a new loop; this one goes on by itself, should it ever come free."""
    with _lock:
        if _loops.get(os.getpid()) is loop:
            del _loops[os.getpid()]
