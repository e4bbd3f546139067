"""A message for a thread that is busy, or waits for a person: it is rejected, waits, interrupts, or joins the run."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Thread, current_thread
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from agentq import (
    Agent,
    ApprovalRule,
    ConfigError,
    Deferred,
    EndRun,
    Handle,
    Hooks,
    LimitExceededError,
    Message,
    RunCancelledError,
    RunContext,
    RunFailedError,
    RunFinishedError,
    ThreadBusyError,
    ToolMessage,
    UserMessage,
    tool,
)
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Fault, Scripted
from agentq.storage import threads
from agentq.storage.database import Database
from agentq.storage.sql import text
from tests.engine.drain import Died, Drain
from tests.engine.mishaps import Moment, ObservedDatabase


class Desk:
    """An agent that calls a tool when it is told ``work``, and answers by repeating what it heard last.

    ``meanwhile`` is done in the first model call (by name "model") or in its tool ("tool"), once.
    """

    def __init__(self, database: Database, *, approve: bool = False, **options: Any) -> None:
        self.did: list[int] = []
        self.seen: list[tuple[Message, ...]] = []
        self.meanwhile: dict[str, Callable[[], object]] = {}

        @tool
        def act(n: int) -> str:
            """Do something outside."""
            self.did.append(n)
            self._meanwhile("tool")
            return f"did {n}"

        self.agent = Agent(
            "desk", model=Scripted([self._answer] * 30), tools=[act], approve=["act"] if approve else [], **options
        )
        self.drain = Drain(database, self.agent)

    def _answer(self, request: ModelRequest) -> Any:
        self.seen.append(request.messages)
        self._meanwhile("model")
        last = request.messages[-1]
        heard = [message.text for message in request.messages if isinstance(message, UserMessage)][-1]
        return Call("act", {"n": len(self.seen)}) if isinstance(last, UserMessage) and heard == "work" else heard

    def _meanwhile(self, where: str) -> None:
        if act := self.meanwhile.pop(where, None):
            act()

    def say(self, text: str, **options: Any) -> Handle:
        return self.drain.enqueue(self.agent, text, **({"thread": "t"} | options))

    def history(self) -> list[str]:
        return [texts(message) for message in self.drain.client.history("t")]

    def work_at(self, run: Handle) -> None:
        """Work off what is first, as long as it is of the run."""
        waiting: list[Any] = self.drain.wake_ups
        while waiting and waiting[0].run_id == run.id:
            self.drain.do(waiting.pop(0))

    def settle(self) -> None:
        """Work and sweep until nothing is left to do."""
        for _ in range(4):
            self.drain.work()
            self.drain.age(20)
            self.drain.sweep()
        assert self.drain.wake_ups == []


def texts(message: Message) -> str:
    if isinstance(message, ToolMessage):
        return f"t:{message.result.code or message.result.text}"
    if isinstance(message, UserMessage):
        return f"u:{message.text}"
    called = "".join(call.name for call in message.calls[:1])
    return f"a:{message.text or called}"


@pytest.fixture
def engine(database: Database) -> Iterator[sqlalchemy.Engine]:
    engine = create_engine("postgresql+psycopg://" + database.url.split("://", 1)[1])
    yield engine
    engine.dispose()


@pytest.fixture
def desk(database: Database) -> Desk:
    return Desk(database)


# ---------------------------------------------------------------------------------------------- in turn


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


# ---------------------------------------------------------------------------------------------- interrupt


def test_a_message_that_interrupts_ends_the_run_and_is_answered_with_all_that_was_said(desk: Desk) -> None:
    first = desk.say("m0")
    second = desk.say("m1", on_busy="enqueue")
    third = desk.say("m2", on_busy="interrupt")
    assert [handle.status() for handle in (first, second, third)] == ["cancelled", "cancelled", "queued"]
    desk.drain.work()
    assert third.result().text == "m2"
    assert [texts(message) for message in desk.seen[-1]] == ["u:m0", "u:m1", "u:m2"]


@pytest.mark.parametrize("where", ["model", "tool"])
def test_a_run_that_a_worker_is_at_is_interrupted_with_its_next_commit(desk: Desk, where: str) -> None:
    said: list[Handle] = []
    desk.meanwhile[where] = lambda: said.append(desk.say("stop", on_busy="interrupt"))
    first = desk.say("work")
    desk.drain.work()
    assert (first.status(), said[0].result().text) == ("cancelled", "stop")
    # What the worker did to its end is kept.
    results = {"model": "t:cancelled", "tool": "t:did 1"}
    assert desk.history() == ["u:work", "a:act", results[where], "u:stop", "a:stop"]
    assert desk.did == ([] if where == "model" else [1])


def test_messages_that_interrupt_runs_of_each_others_keys_at_once_all_begin(
    observed: ObservedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(observed)
    said: list[Handle] = []
    # Each has given away the place of the run it ends, and now wants one of the other key.
    both, placed = Barrier(2), threads.next_position

    def wait_for_the_other(*args: Any) -> int:
        with suppress(BrokenBarrierError):
            both.wait(2)
        return placed(*args)

    def say(thread: str, key: str) -> None:
        said.append(desk.say("m1", thread=thread, on_busy="interrupt", concurrency_key=key, concurrency_limit=1))

    for thread, key in (("t", "a"), ("u", "b")):
        desk.say("m0", thread=thread, concurrency_key=key, concurrency_limit=1)
    monkeypatch.setattr(threads, "next_position", wait_for_the_other)
    at_once = [Thread(target=say, args=each) for each in (("t", "b"), ("u", "a"))]
    for one in at_once:
        one.start()
    for one in at_once:
        one.join()
    desk.settle()
    assert [handle.result().text for handle in said] == ["m1", "m1"]


# ---------------------------------------------------------------------------------------------- steer


@pytest.mark.parametrize("where", ["model", "tool"])
def test_a_message_joins_the_run_before_its_next_model_call(desk: Desk, where: str) -> None:
    desk.meanwhile[where] = lambda: desk.say("rather this", on_busy="steer")
    first = desk.say("work")
    desk.drain.work()
    assert first.result().text == "rather this"
    assert desk.history() == ["u:work", "a:act", "t:did 1", "u:rather this", "a:rather this"]
    assert first.run().model_calls == 2


def test_a_run_that_has_its_answer_goes_on_for_a_message_that_came_meanwhile(desk: Desk) -> None:
    said: list[Handle] = []
    desk.meanwhile["model"] = lambda: said.extend(desk.say(f"and m{n}", on_busy="steer") for n in (1, 2))
    first = desk.say("m0")
    desk.drain.work()
    assert {handle.id for handle in said} == {first.id}
    assert not any(handle.is_new for handle in said)
    assert first.result().text == "and m2"
    assert desk.history() == ["u:m0", "a:m0", "u:and m1", "u:and m2", "a:and m2"]
    assert [event.type for event in first.events()].count("run.steered") == 2


def test_a_message_for_a_run_that_has_not_begun_is_part_of_its_first_call(desk: Desk) -> None:
    first = desk.say("m0")
    assert desk.say("m1", on_busy="steer").id == first.id
    desk.drain.work()
    assert first.result().text == "m1"
    assert [texts(message) for message in desk.seen[0]] == ["u:m0", "u:m1"]


def test_on_a_free_thread_it_is_a_message_like_any_other(desk: Desk) -> None:
    first = desk.say("m0", on_busy="steer", on_waiting="deny_and_continue")
    desk.drain.work()
    second = desk.say("m1", on_busy="steer")
    desk.drain.work()
    assert (first.result().text, second.result().text, second.is_new) == ("m0", "m1", True)


def test_a_message_for_a_run_that_is_being_cancelled_is_a_run_of_its_own(desk: Desk) -> None:
    said: list[Handle] = []

    def say() -> None:
        first.cancel()
        said.append(desk.say("m1", on_busy="steer"))

    desk.meanwhile["model"] = say
    first = desk.say("m0")
    desk.drain.work()
    assert (first.status(), said[0].id != first.id, said[0].result().text) == ("cancelled", True, "m1")


def test_the_same_key_joins_once_also_when_it_has_been_heard(desk: Desk) -> None:
    first = desk.say("m0")
    for _ in range(2):
        assert desk.say("m1", on_busy="steer", idempotency_key="k").id == first.id
    desk.drain.work()
    again = desk.say("m1", on_busy="steer", idempotency_key="k")
    assert (again.id, again.is_new) == (first.id, False)
    assert desk.history() == ["u:m0", "u:m1", "a:m1"]
    with desk.drain.database.autocommit() as connection:
        # It is stored once.
        assert connection.execute("select message from agentq.inbox").scalars() == [None]


def test_the_same_key_joins_once_also_for_another_agent_than_that_of_the_run(desk: Desk) -> None:
    other = Agent("other", model=Scripted(["never"]))
    desk.drain.client.agents["other"] = other
    first = desk.say("m0")
    for agent in (other, desk.agent, other, desk.agent):
        options: Any = {"on_busy": "steer", "idempotency_key": "k"}
        assert desk.drain.enqueue(agent, f"for {agent.name}", thread="t", **options).id == first.id
    desk.drain.work()
    assert desk.history() == ["u:m0", "u:for other", "u:for desk", "a:for desk"]


def test_the_same_key_is_no_new_message_in_a_transaction_of_the_caller(desk: Desk, engine: sqlalchemy.Engine) -> None:
    first = desk.say("m0")
    desk.say("m1", on_busy="steer", idempotency_key="k")
    with Session(engine) as session:
        again = desk.say("m1", on_busy="enqueue", idempotency_key="k", connection=session)
        session.commit()
    assert (again.id, again.is_new) == (first.id, False)


@pytest.mark.parametrize("then", ["another thread", "no thread", "many", "a transaction", "many in a transaction"])
def test_the_same_key_gives_the_run_it_joined_wherever_it_is_sent_then(
    desk: Desk, engine: sqlalchemy.Engine, then: str
) -> None:
    first = desk.say("m0")
    desk.say("m1", on_busy="steer", idempotency_key="k")
    client = desk.drain.client
    with Session(engine) as session:
        given = {"connection": session} if "transaction" in then else {}
        if "many" in then:
            keys = ["k", "new", None]
            again, *others = client.enqueue_many("desk", ["a", "b", "c"], idempotency_keys=keys, **given)
        else:
            thread = "other" if then == "another thread" else None
            again, others = client.enqueue("desk", "m1", idempotency_key="k", thread=thread, **given), []
        session.commit()
    assert (again.id, again.is_new) == (first.id, False)
    assert [other.is_new for other in others] == [True] * len(others)
    assert len(client.runs()) == 1 + len(others)


class Ends(Hooks):
    def after_model(self, ctx: RunContext, reply: Any) -> None:
        raise EndRun("enough")


@pytest.mark.parametrize("end", ["hook", "limit", "failure", "cancel"])
def test_a_message_that_nobody_can_answer_any_more_stays_with_the_conversation(database: Database, end: str) -> None:
    desk = Desk(database, hooks=[Ends()] if end == "hook" else [])
    if end == "failure":
        desk.agent.models = (Scripted([desk._answer, Fault("auth_failed", None), "x"]),)
    first = desk.say("work", limits={"model_calls": 1} if end == "limit" else {})
    if end == "failure":
        desk.meanwhile["tool"] = lambda: desk.say("unheard", on_busy="steer")
    else:
        desk.meanwhile["model"] = lambda: desk.say("unheard", on_busy="steer")
    if end == "cancel":
        desk.meanwhile["tool"] = first.cancel
    with suppress(RunFailedError, RunCancelledError):
        desk.drain.work()
        first.result()
    assert first.run().is_terminal
    history = desk.history()
    assert history[-1] == "u:unheard"
    assert history.count("u:unheard") == 1
    assert list(map(texts, first.messages())) == history


def test_a_message_joins_a_batch_behind_its_results(database: Database) -> None:
    @tool
    def one(n: int) -> str:
        """Do a part."""
        if n == 0:
            drain.enqueue(agent, "hurry", thread="t", on_busy="steer")
        return f"part {n}"

    agent = Agent("many", model=Scripted([[Call("one", {"n": n}) for n in range(3)], "done"]), tools=[one])
    drain = Drain(database, agent)
    drain.run(agent, thread="t")
    kinds = [texts(message) for message in drain.client.history("t")]
    assert kinds == ["u:go", "a:one", "t:part 0", "t:part 1", "t:part 2", "u:hurry", "a:done"]


def test_a_typed_answer_is_given_again_for_a_message_that_came_meanwhile(database: Database) -> None:
    def answer(request: ModelRequest) -> Any:
        if len(request.messages) == 1:
            drain.enqueue(agent, "two more", thread="t", on_busy="steer")
        return Call("final_answer", {"value": len(request.messages)})

    agent = Agent("typed", model=Scripted([answer] * 3), output=int, output_mode="tool")
    drain = Drain(database, agent)
    assert drain.run(agent, thread="t").output == 4
    assert [texts(m)[:2] for m in drain.client.history("t")] == ["u:", "a:", "t:", "u:", "a:", "t:"]


def test_what_a_memory_is_asked_is_the_message_that_joined(database: Database) -> None:
    asked: list[str] = []

    class Facts:
        def recall(self, ctx: RunContext, text: str) -> list[str]:
            asked.append(text)
            return []

    desk = Desk(database, memory=Facts())
    desk.meanwhile["model"] = lambda: desk.say("m1", on_busy="steer")
    desk.say("m0")
    desk.drain.work()
    assert asked == ["m0", "m1"]


# ---------------------------------------------------------------------------------------------- while a person is asked


@pytest.fixture
def asking(database: Database) -> Desk:
    desk = Desk(database, approve=True)
    desk.first = desk.say("work")  # type: ignore[attr-defined]
    desk.drain.work()
    return desk


def test_a_message_is_rejected_where_a_person_is_asked_whatever_a_busy_thread_would_do(asking: Desk) -> None:
    for on_busy in ("reject", "enqueue", "interrupt", "steer"):
        with pytest.raises(ThreadBusyError, match="waiting"):
            asking.say("m1", on_busy=on_busy)
    assert asking.drain.client.approvals()


def test_a_message_is_held_until_the_person_has_decided_and_the_run_has_ended(asking: Desk) -> None:
    held = asking.say("m1", on_waiting="hold")
    (question,) = asking.drain.client.approvals()
    asking.settle()
    assert held.run().is_held
    asking.drain.client.handle(question.run_id).approve(question.call_id)
    asking.drain.work()
    assert held.result().text == "m1"
    assert asking.did == [1]


def test_a_message_denies_what_people_are_asked_and_the_run_goes_on_with_it(asking: Desk) -> None:
    joined = asking.say("never mind", on_waiting="deny_and_continue")
    asking.drain.work()
    assert joined.result().text == "never mind"
    assert asking.did == []
    assert asking.history() == ["u:work", "a:act", "t:rejected", "u:never mind", "a:never mind"]
    (record,) = asking.drain.client.approvals(status=None)
    assert (record.status, record.decided_by) == ("rejected", "the next message")


def test_a_message_denies_what_sub_agents_ask(database: Database) -> None:
    act = tool(name="act")(lambda: "acted")
    child = Agent("child", model=Scripted([Call("act"), "refrained"]), tools=[act], approve=["act"])
    top = Agent("top", model=Scripted([Call("child", {"input": "x"}), "over"]), tools=[child.as_tool()])
    drain = Drain(database, top, child)
    first = drain.enqueue(top, thread="t")
    drain.work()
    with pytest.raises(ThreadBusyError, match="waiting"):
        drain.enqueue(top, "m1", thread="t", on_busy="steer")
    assert drain.enqueue(top, "m1", thread="t", on_waiting="deny_and_continue").id == first.id
    drain.work()
    assert first.result().text == "over"
    assert [texts(m) for m in drain.client.history("t")] == ["u:go", "a:child", "t:refrained", "u:m1", "a:over"]


@pytest.mark.parametrize(
    ("on_expiry", "history"),
    [
        ("report", ["a:act", "t:expired", "u:never mind", "a:never mind"]),
        ("approve", ["a:act", "t:did 1", "u:never mind", "a:never mind"]),
        ("fail", ["a:act", "t:cancelled", "u:never mind", "a:never mind"]),
    ],
)
@pytest.mark.parametrize("through_sub_agent", [False, True])
def test_a_message_that_denies_too_late_finds_done_what_the_rule_says(
    database: Database, on_expiry: Any, history: list[str], through_sub_agent: bool
) -> None:
    desk = Desk(database)
    (act,) = desk.agent.tools.values()
    rule = {"act": ApprovalRule(deadline_secs=30, on_expiry=on_expiry)}
    asking = Agent("asking", model=Scripted([desk._answer] * 9), tools=[act], approve=rule)
    top = Agent("top", model=Scripted([desk._answer] * 9), tools=[asking.as_tool(name="act")])
    drain = Drain(database, top, asking)
    agent = top if through_sub_agent else asking
    first = drain.enqueue(agent, "work", thread="t")
    if through_sub_agent:
        top.models = (Scripted([Call("act", {"input": "work"}), desk._answer, desk._answer]),)
        history = [history[0], "t:approval_expired" if on_expiry == "fail" else "t:work", *history[2:]]
    drain.work()
    # No sweep has come by.
    drain.age(31)
    joined = drain.enqueue(agent, "never mind", thread="t", on_waiting="deny_and_continue")
    drain.work()
    assert joined.result().text == "never mind"
    assert [texts(message) for message in drain.client.history("t")] == ["u:work", *history]
    assert (joined.id == first.id) == (on_expiry != "fail" or through_sub_agent)
    (record,) = first.approvals(status=None)
    assert (record.status, record.decided_by) == ("expired", None)


def test_who_decides_while_a_message_denies_either_wins_or_hears_of_it(asking: Desk) -> None:
    (question,) = asking.drain.client.approvals()
    failures: list[BaseException] = []

    def decide() -> None:
        try:
            asking.drain.client.handle(question.run_id).approve(question.call_id)
        except BaseException as error:
            failures.append(error)

    said: list[Handle] = []
    threads = [Thread(target=decide), Thread(target=lambda: said.append(asking.say("m1", **BOTH)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asking.settle()
    (record,) = asking.drain.client.approvals(status=None)
    assert (record.status == "rejected") == bool(failures)
    assert asking.did == ([] if failures else [1])
    assert said[0].result().text == "m1"
    assert asking.history().count("u:m1") == 1


@pytest.mark.parametrize("change", ["approve", "reject", "respond", "cancel", "expire", "deny_expired"])
def test_who_changes_a_run_waits_for_nobody_who_has_its_thread(asking: Desk, change: str) -> None:
    """The one that has it may wait for the run."""
    (question,) = asking.drain.client.approvals()
    handle = asking.drain.client.handle(question.run_id)
    control = asking.drain.engine
    changes: dict[str, Callable[[], object]] = {
        "approve": lambda: handle.approve(question.call_id),
        "reject": lambda: handle.reject(question.call_id),
        "respond": lambda: handle.respond(question.call_id, "x"),
        "cancel": handle.cancel,
        "expire": lambda: control.expire(question.run_id),
        "deny_expired": lambda: control.expire_approvals(question.run_id),
    }
    with asking.drain.database.transaction() as connection:
        connection.execute("update agentq.runs set deadline_at = now()" if change == "expire" else "select 1")
        connection.execute("update agentq.approvals set expires_at = now()" if change == "deny_expired" else "select 1")
    with asking.drain.database.transaction() as connection:
        threads.lock(connection, "t")
        changes[change]()
        if handle.status() == "running":
            asking.drain.work()
    asking.settle()
    assert handle.run().is_terminal


BOTH: dict[str, Any] = {"on_busy": "steer", "on_waiting": "deny_and_continue"}


# ---------------------------------------------------------------------------------------------- deaths


@pytest.fixture
def observed(database: Database) -> Iterator[ObservedDatabase]:
    observed = ObservedDatabase(database.url)
    yield observed
    observed.dispose()


class _Deaths:
    """Kills whoever comes to the moment ``at``, counted from the last ``begin``."""

    def __init__(self, database: ObservedDatabase, at: int) -> None:
        self.left: int | None = None
        self._at = at
        database.moment = self._moment

    def begin(self) -> None:
        self.left = self._at

    def _moment(self, what: Moment) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            raise Died


@pytest.mark.parametrize("how", ["enqueue", "interrupt", "steer", "deny_and_continue"])
def test_a_process_that_dies_at_any_statement_leaves_each_message_answered_once_or_never_said(
    observed: ObservedDatabase, how: str
) -> None:
    at, was_hit = 0, True
    while was_hit:
        was_hit = _die(observed, how, at)
        at += 1
    # It was tried, and not only once.
    assert at > 10


def _die(observed: ObservedDatabase, how: str, at: int) -> bool:
    with observed.transaction() as connection:
        connection.execute("truncate agentq.runs, agentq.threads cascade")
    desk = Desk(observed, approve=how == "deny_and_continue")
    deaths = _Deaths(observed, at)
    first = desk.say("work")
    if how == "deny_and_continue":
        desk.drain.work()
    deaths.begin()
    option: dict[str, Any] = {"on_waiting": how} if how == "deny_and_continue" else {"on_busy": how}
    with suppress(Died):
        desk.say("m1", idempotency_key="k", **option)
        desk.drain.work()
    was_hit, deaths.left = deaths.left is None, None
    # Who does not know whether it was heard sends it again; what died with its process is found by the sweep.
    desk.say("m1", idempotency_key="k", **({"on_busy": "enqueue"} | option))
    desk.drain.wake_ups.clear()
    for _ in range(6):
        desk.drain.age(20)
        desk.drain.sweep()
        with suppress(Died):
            desk.drain.work()
    assert all(run.is_terminal for run in desk.drain.client.runs()), at
    history = desk.history()
    assert history.count("u:m1") == 1, (at, history)
    assert history[-1] == "a:m1", (at, history)
    assert len(desk.did) <= 1
    assert first.run().is_terminal
    return was_hit
