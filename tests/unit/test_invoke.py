"""Tools run within their time, in a context of their own, sync and async; whatever they do stays theirs."""

import asyncio
import contextvars
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentq import invoke as invoke_module
from agentq.invoke import ToolCancelledError, ToolTimeoutError, invoke

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("TENANT", default="nobody")


def run(function: Callable[..., Any], /, *, timeout: float = 5.0, **given: Any) -> Any:
    return invoke(function, given, lambda value: value, timeout_secs=timeout, is_cancelled=lambda: False)


def spin() -> None:
    while True:
        time.perf_counter()


class Add:
    async def __call__(self, a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b


async def add(a: int, b: int) -> int:
    return await Add()(a, b)


def hidden(a: int, b: int) -> Any:
    return add(a, b)


@pytest.mark.parametrize("function", [lambda a, b: a + b, add, functools.partial(add, 1), Add(), hidden])
def test_sync_and_async_functions_in_every_wrapping_give_their_value(function: Any) -> None:
    given: dict[str, Any] = {"b": 2} if isinstance(function, functools.partial) else {"a": 1, "b": 2}
    assert run(function, **given) == 3


def test_any_parameter_name_reaches_the_function() -> None:
    def act(function: int, self: int, callable: int, timeout_secs: int) -> list[int]:
        return [function, self, callable, timeout_secs]

    given = {"function": 1, "self": 2, "callable": 3, "timeout_secs": 4}
    assert invoke(act, given, lambda value: value, timeout_secs=5, is_cancelled=lambda: False) == [1, 2, 3, 4]


# ---------------------------------------------------------------------------------------------- time


def test_a_sync_tool_is_stopped_when_its_time_is_up() -> None:
    started = time.monotonic()
    with pytest.raises(ToolTimeoutError):
        run(spin, timeout=0.05)
    assert time.monotonic() - started < 1


def test_a_tool_that_swallows_exceptions_is_stopped_all_the_same() -> None:
    def stubborn() -> None:
        while True:
            try:
                spin()
            except Exception:
                continue

    with pytest.raises(ToolTimeoutError):
        run(stubborn, timeout=0.05)


def test_the_alarm_is_put_away_after_every_end() -> None:
    before = signal.getsignal(signal.SIGALRM)
    run(lambda: 1)
    with pytest.raises(ToolTimeoutError):
        run(spin, timeout=0.05)
    with pytest.raises(StopIteration):
        run(lambda: next(iter(())))
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_in_another_thread_a_sync_tool_runs_without_an_alarm() -> None:
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(run, lambda: threading.current_thread() is threading.main_thread()).result() is False


def test_an_async_tool_is_cancelled_when_its_time_is_up() -> None:
    seen = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with pytest.raises(ToolTimeoutError):
        run(slow, timeout=0.05)
    assert seen == ["cancelled"]


def test_an_async_tool_that_ignores_being_cancelled_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invoke_module, "_STOP_SECS", 0.02)
    over = threading.Event()

    async def stubborn() -> None:
        while not over.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    with pytest.raises(ToolTimeoutError):
        run(stubborn, timeout=0.02)
    assert run(add, a=1, b=2) == 3
    over.set()


def test_an_async_tool_that_blocks_its_loop_does_not_take_the_others_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invoke_module, "_STOP_SECS", 0.02)
    monkeypatch.setattr(invoke_module, "_STUCK_SECS", 0.02)
    over = threading.Event()

    async def blocking() -> None:
        over.wait(10)

    with pytest.raises(ToolTimeoutError):
        run(blocking, timeout=0.02)
    assert run(add, a=1, b=2) == 3
    over.set()


def test_a_time_out_of_the_tools_own_is_its_own() -> None:
    async def impatient() -> None:
        raise TimeoutError("the shop does not answer")

    with pytest.raises(TimeoutError, match="the shop"):
        run(impatient)


# ---------------------------------------------------------------------------------------------- ends of other kinds


def test_an_async_tool_hears_that_its_run_was_cancelled() -> None:
    started = time.monotonic()
    with pytest.raises(ToolCancelledError):
        invoke(asyncio.sleep, {"delay": 60}, str, timeout_secs=5, is_cancelled=lambda: True)
    assert time.monotonic() - started < 1


def test_a_tool_that_cancels_itself_is_not_a_cancelled_run() -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="cancelled itself"):
        run(gives_up)


class OddError(Exception):
    def __init__(self, a: int, *, b: int) -> None:
        super().__init__(a, b)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("error", [RuntimeError(), OddError(1, b=2), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_what_a_tool_raises_comes_out_as_it_is(kind: str, error: BaseException) -> None:
    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    with pytest.raises(type(error)) as made:
        run(fail if kind == "sync" else fail_async)
    assert made.value is error
    assert run(add, a=1, b=2) == 3


def test_leaving_the_process_from_an_async_tool_leaves_the_loop_alone() -> None:
    async def leave() -> None:
        sys.exit(1)

    with pytest.raises(SystemExit):
        run(leave)
    assert run(add, a=1, b=2) == 3


# ---------------------------------------------------------------------------------------------- context


def read() -> str:
    return TENANT.get()


def write() -> str:
    TENANT.set("somebody else")
    return TENANT.get()


async def read_async() -> str:
    return TENANT.get()


async def write_async() -> str:
    TENANT.set("somebody else")
    return TENANT.get()


def test_tools_see_the_runs_context_and_do_not_change_it() -> None:
    def one_run() -> None:
        TENANT.set("acme")
        for reader, writer in ((read, write), (read_async, write_async)):
            assert run(reader) == "acme"
            assert run(writer) == "somebody else"
            assert run(reader) == "acme"

    contextvars.copy_context().run(one_run)
    assert run(read) == run(read_async) == "nobody"


def test_async_tools_share_one_loop_for_the_life_of_the_process() -> None:
    async def its_loop() -> int:
        return id(asyncio.get_running_loop())

    with ThreadPoolExecutor(4) as threads:
        loops = set(threads.map(lambda _: run(its_loop), range(8)))
    assert loops == {run(its_loop)}


def test_the_text_of_a_value_is_made_within_the_time_limit_too() -> None:
    def endless() -> Any:
        while True:
            time.sleep(0.01)
            yield 1

    with pytest.raises(ToolTimeoutError):
        invoke(endless, {}, list, timeout_secs=0.1, is_cancelled=lambda: False)


def test_an_alarm_that_the_tool_turned_into_another_error_is_still_a_time_out() -> None:
    def clumsy() -> None:
        try:
            spin()
        except BaseException as error:
            raise RuntimeError("something went wrong") from error

    with pytest.raises(ToolTimeoutError):
        invoke(clumsy, {}, str, timeout_secs=0.05, is_cancelled=lambda: False)
