"""A message for a thread that is busy interrupts the run at work, or joins it."""

from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from agentq import (
    Agent,
    EndRun,
    Handle,
    Hooks,
    RunCancelledError,
    RunContext,
    RunFailedError,
    tool,
)
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Fault, Scripted
from agentq.storage import threads
from agentq.storage.database import Database
from tests.engine.desk import Desk, texts
from tests.engine.drain import Drain
from tests.engine.mishaps import ObservedDatabase

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
