"""A message for a thread whose run waits for a person, or whose process dies."""

from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest

from agentq import (
    Agent,
    ApprovalRule,
    Handle,
    ThreadBusyError,
    tool,
)
from agentq.providers.scripted import Call, Scripted
from agentq.storage import threads
from agentq.storage.database import Database
from tests.engine.desk import Desk, texts
from tests.engine.drain import Died, Drain
from tests.engine.mishaps import Moment, ObservedDatabase

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
