"""The user's code called beside the loop: what it gives and raises comes through, and what hangs is left to itself."""

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar, Token, copy_context
from typing import Any

import pytest

from agentq import aside
from tests.waiting import eventually

NAME: ContextVar[str] = ContextVar("name", default="nobody")


@pytest.fixture
def free() -> Iterator[threading.Event]:
    """Set at the end of the test: what hangs in it waits for that."""
    event = threading.Event()
    yield event
    event.set()
    eventually(lambda: not any(thread.is_alive() for thread in aside._left))


def call(function: Any, secs: float = 20) -> Any:
    return copy_context().run(aside.call, function, secs)


async def answer() -> str:
    await asyncio.sleep(0)
    return "yes"


def test_the_value_of_a_sync_and_of_an_async_function_comes_back() -> None:
    assert call(lambda: 7) == 7
    assert call(answer) == "yes"


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("its own"), SystemExit(3), KeyboardInterrupt()])
def test_what_it_raises_comes_through(error: BaseException) -> None:
    def fails() -> None:
        raise error

    async def fails_later() -> None:
        fails()

    for function in (fails, fails_later):
        with pytest.raises(type(error)) as caught:
            call(function)
        assert caught.value is error


def test_one_that_hangs_in_a_copy_of_the_context_holds_up_no_other_copy(free: threading.Event) -> None:
    def calls() -> None:
        assert aside.call(lambda: 7, 20) == 7
        with pytest.raises(aside.TookTooLong):
            call(free.wait, 0.05)
        assert [call(lambda: 8), aside.call(lambda: 9, 20)] == [8, 9]

    copy_context().run(calls)


def test_what_hangs_is_left_alone_whether_sync_or_async(free: threading.Event) -> None:
    async def hangs() -> None:
        await asyncio.to_thread(free.wait)

    for function in (free.wait, hangs):
        with pytest.raises(aside.TookTooLong, match=r"no answer within 0\.05 s"):
            call(function, 0.05)


def test_a_process_leaves_only_so_many_to_themselves(free: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "MAX_LEFT", 2)
    for says in ("no answer", "no answer", "2 calls before it still hang"):
        with pytest.raises(aside.TookTooLong, match=says):
            call(free.wait, 0.01)
    free.set()
    assert eventually(lambda: not any(thread.is_alive() for thread in aside._left))
    assert call(lambda: 7) == 7


def test_without_any_time_left_nothing_is_begun() -> None:
    began: list[int] = []
    with pytest.raises(aside.TookTooLong, match="used up"):
        call(lambda: began.append(1), 0)
    assert began == []


def test_what_one_sets_in_a_context_variable_is_seen_by_the_caller_and_by_the_next() -> None:
    async def set_async() -> None:
        NAME.set("async")

    def step() -> list[str]:
        seen = []
        aside.call(lambda: NAME.set("first"), 20)
        seen.append(NAME.get())
        aside.call(lambda: seen.append(NAME.get()), 20)
        NAME.set("here")
        aside.call(lambda: seen.append(NAME.get()), 20)
        aside.call(set_async, 20)
        return [*seen, NAME.get()]

    assert copy_context().run(step) == ["first", "first", "here", "async"]
    assert NAME.get() == "nobody"


def test_a_token_of_one_is_good_in_the_next_as_for_spans_of_a_trace() -> None:
    tokens: list[Token[str]] = []

    def step() -> str:
        NAME.set("before")
        aside.call(lambda: tokens.append(NAME.set("inside")), 20)
        assert NAME.get() == "inside"
        aside.call(lambda: NAME.reset(tokens[0]), 20)
        return NAME.get()

    assert copy_context().run(step) == "before"


def test_after_one_that_hangs_the_next_sees_what_holds_now(free: threading.Event) -> None:
    def step() -> str:
        NAME.set("before")
        with pytest.raises(aside.TookTooLong):
            aside.call(free.wait, 0.01)
        return str(aside.call(NAME.get, 20))

    assert copy_context().run(step) == "before"
