"""Replies that are watched while they are written: every piece is an event, in order, without gaps, and for good."""

import threading
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest

from agentq import Agent, Event, Handle, tool
from agentq.errors import ProviderError, UnavailableError
from agentq.messages import AssistantMessage, Usage
from agentq.providers.base import Delta, ModelReply, ModelRequest
from agentq.providers.openai_chat import OpenAIChat
from agentq.providers.scripted import Call, Scripted
from agentq.recovery import take_back
from agentq.storage import deltas
from agentq.storage.database import Database
from agentq.storage.sql import Connection, text
from agentq.text import clean
from agentq.wire import StepMessage
from tests.engine.counting import counted
from tests.engine.drain import Died, Drain
from tests.engine.test_crashes import die_once
from tests.providers.fake_server import response, serve
from tests.waiting import eventually

Write = Callable[[Callable[[Delta], None]], str | AssistantMessage]


@tool
def look(where: str) -> str:
    """Look somewhere."""
    return "nothing"


class Writer:
    """A model that does in its call what it is told."""

    name = "writer"

    def __init__(self, *write: Write) -> None:
        self._write = list(write)

    def complete(self, request: ModelRequest) -> ModelReply:
        assert request.on_delta is not None
        said = self._write.pop(0)(request.on_delta)
        return ModelReply(said if isinstance(said, AssistantMessage) else AssistantMessage(text=said), Usage())


def texts(*pieces: str) -> Write:
    def write(on_delta: Callable[[Delta], None]) -> str:
        for piece in pieces:
            on_delta(Delta("text", piece))
        return "".join(pieces)

    return write


def shown(events: list[Event]) -> str:
    """What somebody sees in the end who goes by the events, as docs/guide.md does it."""
    text = ""
    for event in events:
        if event.type == "model.reset":
            text = ""
        elif event.type == "model.delta" and event.data["kind"] == "text":
            text += event.data["text"]
    return text


def all_events(handle: Handle) -> list[Event]:
    events = list(handle.events(follow=False))
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    for after in range(len(events)):
        assert list(handle.events(after=after, follow=False)) == events[after:]
    return events


def kinds(events: list[Event]) -> list[str]:
    return [event.type for event in events]


def test_a_watched_reply_is_told_in_events_that_stay(database: Database) -> None:
    script = Scripted([["Let me look.", Call("look", {"where": "x"})], "It is not there."])
    drain = Drain(database, agent := Agent("test", model=script, tools=[look], stream=True))
    handle = drain.enqueue(agent)
    drain.work()
    events = all_events(handle)
    told = [(event.data["kind"], event.data["text"]) for event in events if event.type == "model.delta"]
    said = [(kind, "".join(piece for _, piece in of_kind)) for kind, of_kind in groupby(told, key=itemgetter(0))]
    assert said == [("text", "Let me look."), ("arguments", '{"where": "x"}'), ("text", "It is not there.")]
    asked = next(event.data for event in events if event.data.get("kind") == "arguments")
    assert (asked["tool"], asked["call"]) == ("look", 0)
    steps = {event.data["seq"] for event in events if event.type == "step" and event.data["phase"] == "model"}
    assert {event.data["seq"] for event in events if event.type == "model.delta"} == steps
    assert "model.reset" not in kinds(events)


def test_only_an_agent_that_says_so_is_streamed(database: Database) -> None:
    seen: list[Any] = []

    def reply(request: ModelRequest) -> str:
        seen.append(request.on_delta)
        return "done"

    drain = Drain(database, agent := Agent("test", model=Scripted([reply])))
    handle = drain.enqueue(agent)
    drain.work()
    assert seen == [None]
    assert "model.delta" not in kinds(all_events(handle))


def test_a_piece_is_seen_by_others_while_the_model_still_writes(database: Database) -> None:
    go_on = threading.Event()

    def write(on_delta: Callable[[Delta], None]) -> str:
        on_delta(Delta("text", "Wait"))
        assert go_on.wait(30)
        on_delta(Delta("text", " for it."))
        return "Wait for it."

    drain = Drain(database, agent := Agent("test", model=Writer(write), stream=True))
    handle = drain.enqueue(agent)
    worker = threading.Thread(target=drain.work)
    worker.start()
    try:
        eventually(lambda: shown(list(handle.events(follow=False))) == "Wait", what="the first word is seen")
        assert handle.messages()[1:] == ()
    finally:
        go_on.set()
        worker.join()
    events = all_events(handle)
    assert shown(events) == "Wait for it."
    assert kinds(events).count("model.delta") == 2
    assert handle.result().text == "Wait for it."


def failing(error: ProviderError) -> Write:
    def write(on_delta: Callable[[Delta], None]) -> str:
        on_delta(Delta("text", "Half a"))
        raise error

    return write


def test_what_a_failed_call_has_shown_is_taken_back_with_its_end(database: Database) -> None:
    model = Writer(failing(ProviderError("network", "cut")))
    drain = Drain(database, agent := Agent("test", model=model, fallback=[Writer(texts("Whole."))], stream=True))
    model._write *= 3
    handle = drain.enqueue(agent)
    eventually(lambda: drain.work() or drain.sweep() * 0 or handle.run().is_terminal, what="the fallback answers")
    events = all_events(handle)
    assert shown(events) == handle.result().text == "Whole."
    for at, event in enumerate(events):
        if event.type == "step" and event.data.get("error"):
            assert events[at - 1].type == "model.reset"


def test_what_was_shown_of_a_reply_that_says_something_else_is_taken_back(database: Database) -> None:
    def refused(on_delta: Callable[[Delta], None]) -> AssistantMessage:
        on_delta(Delta("text", "You do it like"))
        return AssistantMessage(stop="blocked")

    drain = Drain(database, agent := Agent("test", model=Writer(refused), stream=True))
    handle = drain.enqueue(agent)
    drain.work()
    assert kinds(all_events(handle))[-4:] == ["model.delta", "model.reset", "step", "run.ended"]


def test_what_the_reply_says_instead_of_what_was_shown_is_shown(database: Database) -> None:
    def twice(on_delta: Callable[[Delta], None]) -> str:
        # As behind a proxy that tried again in the middle of its answer.
        on_delta(Delta("text", "Half a"))
        on_delta(Delta("text", "Whole."))
        return "Whole."

    drain = Drain(database, agent := Agent("test", model=Writer(twice), stream=True))
    handle = drain.enqueue(agent)
    drain.work()
    assert shown(all_events(handle)) == handle.result().text == "Whole."


def test_what_a_lost_worker_has_shown_is_taken_back_before_anything_else_is_shown(database: Database) -> None:
    def half(on_delta: Callable[[Delta], None]) -> str:
        on_delta(Delta("text", "Half a"))
        eventually(lambda: shown(list(handle.events(follow=False))) == "Half a", what="it is seen")
        return "Half a"

    agent = Agent("test", model=Writer(half, texts("Whole.")), stream=True)
    drain = Drain(database, agent, probe=die_once("effect", "model"))
    handle = drain.enqueue(agent)
    with pytest.raises(Died):
        drain.work()
    drain.age(20)
    drain.sweep()
    drain.work()
    events = all_events(handle)
    assert [kind for kind in kinds(events) if kind.startswith("model.")] == [
        "model.delta",
        "model.reset",
        "model.delta",
    ]
    assert shown(events) == handle.result().text == "Whole."


def test_who_lost_the_run_shows_nothing_any_more(database: Database) -> None:
    go_on = threading.Event()

    def slow(on_delta: Callable[[Delta], None]) -> str:
        assert go_on.wait(30)
        on_delta(Delta("text", "Late."))
        # Longer than any flush: what comes first is the other one's.
        assert second.wait(30)
        return "Late."

    second = threading.Event()
    model = Writer(slow, texts("In time."))
    drain = Drain(database, agent := Agent("test", model=model, stream=True), lease_secs=3600)
    other = Drain(database, agent)
    handle = drain.enqueue(agent)
    late = threading.Thread(target=drain.work)
    late.start()
    eventually(lambda: handle.status() == "running", what="it is claimed")
    drain.age(3700)
    other.sweep()
    go_on.set()
    other.work()
    second.set()
    late.join()
    assert shown(all_events(handle)) == "In time."


def test_a_row_that_somebody_has_locked_keeps_neither_the_model_nor_other_runs(database: Database) -> None:
    seen: list[str] = []

    def write(on_delta: Callable[[Delta], None]) -> str:
        with database.transaction() as connection:
            connection.execute(text("SELECT 1 FROM agentq.runs WHERE id = :id FOR UPDATE"), {"id": first.id})
            on_delta(Delta("text", "A"))
            eventually(lambda: shown(list(second.events(follow=False))) == "B", what="the other run is seen")
            seen.append(shown(list(first.events(follow=False))))
        return "A"

    def beside(on_delta: Callable[[Delta], None]) -> str:
        on_delta(Delta("text", "B"))
        eventually(lambda: seen, what="the first was looked at")
        return "B"

    locked, free = Agent("locked", model=Writer(write), stream=True), Agent("free", model=Writer(beside), stream=True)
    drain = Drain(database, locked, free)
    first, second = drain.enqueue(locked), drain.enqueue(free)
    both = [threading.Thread(target=drain.do, args=(wake_up,)) for wake_up in drain.wake_ups]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert seen == [""]
    assert (shown(all_events(first)), shown(all_events(second))) == ("A", "B")


TURNS = 5


def test_streaming_costs_one_read_a_message_for_what_an_attempt_before_it_has_shown(
    database: Database,
) -> None:
    def reads(*, stream: bool) -> int:
        script = Scripted([[Call("look", {"where": "x"})]] * (TURNS - 1) + ["done"])
        drain = Drain(database, agent := Agent("test", model=script, tools=[look], stream=stream))
        handle = drain.enqueue(agent)
        with counted(database) as counts:
            drain.work()
        assert handle.result().text == "done"
        return counts["reads"]

    assert reads(stream=True) == reads(stream=False) + TURNS


def test_a_real_stream_ends_up_in_the_events(database: Database) -> None:
    pieces = [b'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n' % word for word in (b"One ", b"two.")]
    end = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    answer = response(b"".join([*pieces, end]), content_type="text/event-stream")
    with serve(answer) as server:
        model = OpenAIChat("openai", base_url=server.url, api_key="sk-test", model="m")
        drain = Drain(database, agent := Agent("test", model=model, stream=True))
        handle = drain.enqueue(agent)
        drain.work()
    assert server.asked[0].body["stream"] is True
    assert shown(all_events(handle)) == handle.result().text == "One two."


def test_an_attempt_that_was_given_back_uncounted_is_taken_back_too(database: Database) -> None:
    def half(on_delta: Callable[[Delta], None]) -> str:
        on_delta(Delta("text", "Half a"))
        eventually(lambda: shown(list(handle.events(follow=False))) == "Half a", what="it is seen")
        return "Half a"

    agent = Agent("test", model=Writer(half, texts("Whole.")), stream=True)
    drain = Drain(database, agent, probe=die_once("effect", "model"))
    handle = drain.enqueue(agent)
    with pytest.raises(Died):
        drain.work()
    # As a worker that is told to stop does with what it cannot finish.
    take_back(Drain(database, agent).engine, "drain", forgive=True)
    assert handle.run().attempt == 0
    other = Drain(database, agent)
    other.send(StepMessage(handle.id, handle.run().seq))
    other.work()
    assert shown(all_events(handle)) == handle.result().text == "Whole."


def test_a_piece_whose_saving_was_not_confirmed_is_not_shown_twice(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[bool] = []
    write_deltas = deltas.write

    def unconfirmed(connection: Connection, written: Any) -> set[str]:
        saved = write_deltas(connection, written)
        if not lost:
            lost.append(True)
            raise UnavailableError("the connection was lost behind it")
        return saved

    def write(on_delta: Callable[[Delta], None]) -> str:
        on_delta(Delta("text", "Once"))
        eventually(lambda: lost, what="the answer is lost")
        on_delta(Delta("text", " only."))
        return "Once only."

    monkeypatch.setattr(deltas, "write", unconfirmed)
    drain = Drain(database, agent := Agent("test", model=Writer(write), stream=True))
    handle = drain.enqueue(agent)
    drain.work()
    assert shown(all_events(handle)) == handle.result().text == "Once only."


@pytest.mark.parametrize("bad", ["a\x00b", "a\ud83db", "\ude00"])
def test_a_piece_that_nobody_can_store_is_shown_as_it_is_stored_in_the_end(database: Database, bad: str) -> None:
    drain = Drain(database, agent := Agent("test", model=Writer(texts("It is ", bad, ".")), stream=True))
    handle = drain.enqueue(agent)
    drain.work()
    assert shown(all_events(handle)) == handle.result().text == clean(f"It is {bad}.")
    assert "model.reset" not in kinds(all_events(handle))
