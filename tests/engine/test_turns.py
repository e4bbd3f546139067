"""A message for a thread that is busy waits for its turn."""

from collections.abc import Callable
from threading import Thread, current_thread
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from agentq import (
    Agent,
    ConfigError,
    Deferred,
    Handle,
    LimitExceededError,
    RunCancelledError,
    RunFinishedError,
    ThreadBusyError,
    tool,
)
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from agentq.storage.sql import text
from tests.engine.desk import Desk, texts
from tests.engine.drain import Drain
from tests.engine.mishaps import Moment, ObservedDatabase


def test_messages_that_wait_for_their_turn_are_answered_in_their_order(desk: Desk) -> None:
    handles = [desk.say(f"m{n}", on_busy="enqueue") for n in range(4)]
    assert [handle.run().is_held for handle in handles] == [False, True, True, True]
    # Nothing wakes them, and no sweep looks at them, before the one before them has ended.
    assert len(desk.drain.wake_ups) == 1
    desk.drain.work()
    assert [handle.result().text for handle in handles] == ["m0", "m1", "m2", "m3"]
    assert desk.history() == ["u:m0", "a:m0", "u:m1", "a:m1", "u:m2", "a:m2", "u:m3", "a:m3"]
    assert [len(seen) for seen in desk.seen] == [1, 3, 5, 7]
    assert not any(handle.run().is_held for handle in handles)


@pytest.mark.parametrize("end", ["fails", "is cancelled", "runs out of time"])
def test_the_next_message_begins_however_the_one_before_it_ended(desk: Desk, end: str) -> None:
    first = desk.say("work", limits={"model_calls": 1} if end == "fails" else {"run_secs": 5})
    second = desk.say("next", on_busy="enqueue")
    if end == "is cancelled":
        first.cancel()
    if end == "runs out of time":
        with desk.drain.database.transaction() as connection:
            connection.execute("update agentq.runs set deadline_at = now() where held is null")
        desk.drain.sweep()
    desk.settle()
    with pytest.raises((LimitExceededError, RunCancelledError)):
        first.result()
    assert second.result().text == "next"


def test_a_message_that_waits_is_cancelled_alone(desk: Desk) -> None:
    first, second, third = (desk.say(f"m{n}", on_busy="enqueue") for n in range(3))
    second.cancel()
    assert (second.status(), third.run().is_held) == ("cancelled", True)
    desk.drain.work()
    assert (first.result().text, third.result().text) == ("m0", "m2")
    # What was said was said.
    assert desk.history() == ["u:m0", "a:m0", "u:m1", "u:m2", "a:m2"]


def test_who_does_not_say_so_does_not_wait_and_does_not_overtake(desk: Desk) -> None:
    first = desk.say("m0")
    for _ in range(2):
        with pytest.raises(ThreadBusyError, match=f"busy with run {first.id}.*on_busy="):
            desk.say("m1")
        desk.say("m2", on_busy="enqueue")
    desk.drain.work()
    assert desk.say("m3").run().status == "queued"


def test_the_time_limit_of_a_message_that_waits_counts_from_its_turn(desk: Desk) -> None:
    desk.say("m0")
    second = desk.say("m1", on_busy="enqueue", limits={"run_secs": 60})
    desk.drain.age(3600)
    with desk.drain.database.transaction() as connection:
        connection.execute("update agentq.runs set created_at = created_at - interval '1 hour'")
    desk.drain.sweep()
    assert second.status() == "queued"
    desk.drain.work()
    assert second.result().text == "m1"


@pytest.mark.parametrize("options", [{}, {"delay_secs": 7200}])
def test_the_time_limit_of_a_message_that_never_had_its_turn_counts_from_its_retry(desk: Desk, options: Any) -> None:
    desk.say("m0")
    second = desk.say("m1", on_busy="enqueue", limits={"run_secs": 60}, **options)
    second.cancel()
    desk.drain.work()
    with desk.drain.database.transaction() as connection:
        connection.execute("update agentq.runs set created_at = created_at - interval '1 hour'")
    second.retry()
    with desk.drain.database.transaction() as connection:
        left = "select extract(epoch from deadline_at - now())::float from agentq.runs where id = :id"
        assert 50 < connection.execute(text(left), {"id": second.id}).scalar() <= 60
    desk.drain.sweep()
    desk.drain.work()
    assert second.result().text == "m1"


def test_a_message_for_later_waits_for_its_turn_and_for_its_time(desk: Desk) -> None:
    desk.say("m0")
    later = desk.say("m1", on_busy="enqueue", delay_secs=300)
    desk.settle()
    assert (later.status(), later.run().is_held) == ("queued", False)
    desk.drain.age(300)
    desk.drain.sweep()
    desk.drain.work()
    assert later.result().text == "m1"


def test_a_message_with_a_concurrency_key_joins_the_line_with_its_turn(desk: Desk) -> None:
    key = {"concurrency_key": "k", "concurrency_limit": 1}
    desk.say("m0")
    held = desk.say("m1", on_busy="enqueue", **key)
    elsewhere = desk.drain.enqueue(desk.agent, "x", thread="other", **key)
    # It takes no place while it waits for its turn.
    assert (held.run().has_place, elsewhere.run().has_place) == (None, True)
    desk.drain.do(desk.drain.wake_ups.pop(0))
    assert held.run().has_place is False
    desk.drain.work()
    assert (elsewhere.result().text, held.result().text) == ("x", "m1")


def test_the_same_key_waits_once(desk: Desk) -> None:
    desk.say("m0")
    one, two = (desk.say("m1", on_busy="enqueue", idempotency_key="k") for _ in range(2))
    assert (one.id, one.is_new, two.is_new) == (two.id, True, False)


def test_a_run_that_was_cancelled_while_it_waited_is_retried_when_nobody_is_at_work(desk: Desk) -> None:
    desk.say("m0")
    held = desk.say("m1", on_busy="enqueue")
    held.cancel()
    with pytest.raises(ThreadBusyError):
        held.retry()
    desk.drain.work()
    held.retry()
    desk.drain.work()
    assert held.result().text == "m1"
    assert desk.history() == ["u:m0", "a:m0", "u:m1", "a:m1"]


def test_a_failed_run_is_not_retried_past_those_that_came_after_it(desk: Desk) -> None:
    first = desk.say("m0")
    second = desk.say("m1", on_busy="enqueue")
    first.cancel()
    with pytest.raises(RunFinishedError, match="not the last"):
        first.retry()
    desk.drain.work()
    assert second.result().text == "m1"


def test_a_rewind_takes_messages_that_wait_with_it_and_leaves_the_run_before_them(desk: Desk) -> None:
    first = desk.say("m0")
    second = desk.say("m1", on_busy="enqueue")
    desk.drain.client.thread("t").rewind(1)
    assert (first.status(), second.status()) == ("queued", "cancelled")
    desk.drain.work()
    assert desk.history() == ["u:m0", "a:m0"]
    third = desk.say("m2", on_busy="enqueue")
    desk.drain.work()
    assert third.result().text == "m2"


class _Meanwhile:
    """Has another process do something at the moment ``at`` of this one; what waits for a lock of ours goes on then."""

    def __init__(self, database: ObservedDatabase, at: int, act: Callable[[], object]) -> None:
        self.left: int | None = at
        self._other = Thread(target=act)
        database.moment = self._moment

    def _moment(self, what: Moment) -> None:
        if self.left is None or current_thread() is self._other:
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            self._other.start()
            self._other.join(0.2)

    def end(self) -> bool:
        """Whether the moment came."""
        was_hit, self.left = self.left is None, None
        if was_hit:
            self._other.join()
        return was_hit


def test_a_message_that_is_cancelled_at_the_moment_of_its_turn_begins_or_leaves_it_to_the_next(
    observed: ObservedDatabase,
) -> None:
    at, was_hit = 0, True
    while was_hit:
        desk = Desk(observed)
        options: dict[str, Any] = {"thread": f"t{at}", "on_busy": "enqueue", "limits": {"run_secs": 60}}
        first, second, third = (desk.say(f"m{n}", **options) for n in range(3))
        meanwhile = _Meanwhile(observed, at, second.cancel)
        desk.work_at(first)
        was_hit = meanwhile.end()
        second.cancel()
        desk.settle()
        assert [handle.status() for handle in (first, second, third)] == ["completed", "cancelled", "completed"], at
        with observed.autocommit() as connection:
            left = "select 1 from agentq.runs where coalesce(deadline_at, sweep_at, lease_look_at) is not null"
            assert connection.execute(left).all() == [], at
        at += 1
    assert at > 10


def test_a_rewind_of_a_message_that_waits_leaves_what_the_run_before_it_says_meanwhile(
    observed: ObservedDatabase,
) -> None:
    at, was_hit = 0, True
    while was_hit:
        desk = Desk(observed)
        first, second = (desk.say(text, on_busy="enqueue", thread=f"t{at}") for text in ("work", "m1"))
        thread = desk.drain.client.thread(f"t{at}")
        meanwhile = _Meanwhile(observed, at, lambda desk=desk, first=first: desk.work_at(first))
        rewound = thread.rewind(-1)
        was_hit = meanwhile.end()
        desk.settle()
        kept = [texts(message) for message in thread.history()]
        assert kept == ["u:work", "a:act", "t:did 1", "a:work"], (at, kept)
        assert (first.status(), second.status(), rewound.effects) == ("completed", "cancelled", ()), at
        assert 1 <= rewound.messages <= 4
        at += 1
    assert at > 5


def test_a_rewind_lists_what_the_run_behind_the_cut_does_meanwhile(observed: ObservedDatabase) -> None:
    at, was_hit = 0, True
    while was_hit:
        desk = Desk(observed)
        desk.say("work", thread=f"t{at}")
        thread = desk.drain.client.thread(f"t{at}")
        meanwhile = _Meanwhile(observed, at, desk.drain.work)
        rewound = thread.rewind(0)
        was_hit = meanwhile.end()
        desk.settle()
        assert (len(rewound.effects), thread.history()) == (len(desk.did), ()), at
        at += 1
    assert at > 5


@pytest.mark.parametrize("at_work", [False, True])
def test_a_run_that_failed_is_the_last_again_when_what_came_after_it_is_taken_away(desk: Desk, at_work: bool) -> None:
    thread = desk.drain.client.thread("t")
    first = desk.say("work", limits={"model_calls": 1})
    desk.drain.work()
    ended = desk.history()
    later = desk.say("m1")
    if at_work:
        desk.meanwhile["model"] = lambda: thread.rewind(len(ended))
        desk.drain.work()
    else:
        desk.drain.work()
        thread.rewind(len(ended))
    assert thread.retry(limits={"model_calls": 5}).id == first.id
    with pytest.raises(ThreadBusyError, match=first.id):
        desk.say("m2")
    held = desk.say("m3", on_busy="enqueue")
    desk.settle()
    assert (first.status(), held.result().text) == ("completed", "m3")
    assert desk.history() == [*ended, "a:work", "u:m3", "a:m3"]
    with pytest.raises(RunFinishedError):
        later.retry()


def test_a_thread_with_messages_that_wait_is_not_deleted(desk: Desk) -> None:
    desk.say("m0").cancel()
    desk.say("m1")
    desk.say("m2", on_busy="enqueue")
    with pytest.raises(ThreadBusyError):
        desk.drain.client.thread("t").delete()


def test_twenty_at_once_wait_in_one_order_and_none_is_lost(desk: Desk) -> None:
    handles: list[Handle] = []
    threads = [Thread(target=lambda n=n: handles.append(desk.say(f"m{n}", on_busy="enqueue"))) for n in range(20)]
    for thread in threads:
        thread.start()
    working = Thread(target=desk.settle)
    working.start()
    for thread in threads:
        thread.join()
    working.join()
    desk.settle()
    assert sorted(str(handle.result().text) for handle in handles) == sorted(f"m{n}" for n in range(20))
    history = desk.history()
    assert history[::2] == [said.replace("a:", "u:") for said in history[1::2]]
    assert len(history) == 40


def test_a_message_in_the_callers_transaction_waits_for_its_turn_once_it_is_committed(
    desk: Desk, engine: sqlalchemy.Engine
) -> None:
    first = desk.say("m0")
    with Session(engine) as session:
        second = desk.say("m1", on_busy="enqueue", connection=session)
        third = desk.say("m2", on_busy="enqueue", connection=session)
        # The run before it goes on and ends while the transaction is open.
        desk.drain.work()
        assert first.result().text == "m0"
        session.commit()
    desk.settle()
    assert (second.result().text, third.result().text) == ("m1", "m2")
    assert desk.history() == ["u:m0", "a:m0", "u:m1", "a:m1", "u:m2", "a:m2"]


def test_a_message_in_the_callers_transaction_stands_behind_a_run_that_goes_on(
    desk: Desk, engine: sqlalchemy.Engine
) -> None:
    desk.say("m0")
    with Session(engine) as session:
        second = desk.say("m1", on_busy="enqueue", connection=session)
        session.commit()
    desk.drain.sweep()
    assert second.run().is_held
    # Nobody looks at it any more, before the end of the other.
    assert desk.drain.sweep() == 0
    desk.drain.work()
    assert second.result().text == "m1"


@pytest.mark.parametrize("waits_for", ["a person", "a person, through a sub-agent", "the outside", "nobody"])
def test_the_callers_transaction_sees_who_the_thread_waits_for_as_any_other(
    database: Database, engine: sqlalchemy.Engine, waits_for: str
) -> None:
    @tool
    def act() -> str:
        """Do something outside."""
        raise Deferred

    is_asked = waits_for != "the outside"
    child = Agent("child", model=Scripted([Call("act"), "done"]), tools=[act], approve=["act"] if is_asked else [])
    top = Agent("top", model=Scripted([Call("child", {"input": "x"}), "done"]), tools=[child.as_tool()])
    drain = Drain(database, top, child)
    drain.enqueue(top if "sub-agent" in waits_for else child, thread="t")
    if waits_for != "nobody":
        drain.work()
    waits_for_people = waits_for.startswith("a person")
    right: dict[str, Any] = {"on_waiting": "hold"} if waits_for_people else {"on_busy": "enqueue"}
    wrong: dict[str, Any] = {"on_waiting": "hold"} if not waits_for_people else {"on_busy": "enqueue"}
    for connect in (Session, None):
        with Session(engine) as session:
            options = {"thread": "t"} | ({"connection": session} if connect else {})
            with pytest.raises(ThreadBusyError, match="waits for a person" if waits_for_people else "busy with"):
                drain.enqueue(top, **options, **wrong)
            assert drain.enqueue(top, **options, **right).is_new


@pytest.mark.parametrize("first_goes_on", [True, False])
def test_who_stands_behind_a_message_of_the_callers_transaction_is_let_go_also_where_that_is_cancelled(
    desk: Desk, engine: sqlalchemy.Engine, first_goes_on: bool
) -> None:
    first = desk.say("m0")
    with Session(engine) as session:
        second = desk.say("m1", on_busy="enqueue", connection=session)
        session.commit()
    third = desk.say("m2", on_busy="enqueue")
    if not first_goes_on:
        desk.drain.work()
    # Nobody has told the first run of it yet.
    second.cancel()
    desk.settle()
    assert [handle.status() for handle in (first, second, third)] == ["completed", "cancelled", "completed"]


@pytest.mark.parametrize("what", [{"on_busy": "steer"}, {"on_busy": "interrupt"}, {"on_waiting": "deny_and_continue"}])
def test_the_callers_transaction_changes_no_run_at_work(desk: Desk, engine: sqlalchemy.Engine, what: Any) -> None:
    desk.say("m0")
    with Session(engine) as session, pytest.raises(ConfigError, match="without connection="):
        desk.say("m1", connection=session, **what)


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ({"on_busy": "queue"}, "on_busy is one of 'reject', 'enqueue', 'interrupt', 'steer', not 'queue'"),
        ({"on_waiting": None}, "on_waiting is one of"),
        ({"on_busy": "steer", "thread": None}, "name it with thread="),
    ],
)
def test_what_is_no_way_to_meet_a_busy_thread_is_refused(desk: Desk, what: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        desk.drain.enqueue(desk.agent, **({"thread": "t"} | what))
    assert desk.drain.client.runs() == []
