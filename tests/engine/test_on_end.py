"""Hooks hear of a run's end once, whoever ended it, and whatever dies meanwhile."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from agentq import Agent, Handle, Hooks, RunContext
from agentq.control import Control
from agentq.providers.scripted import Call, Scripted
from agentq.storage import endings, leases
from agentq.storage.database import Database
from tests.cases.stored import assert_over
from tests.engine.counting import counted
from tests.engine.drain import Died, Drain
from tests.waiting import eventually


class Ends(Hooks):
    """Writes down what it hears of, and does then what it was given."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.heard: list[str] = []
        self._then = then

    def on_end(self, ctx: RunContext, status: str) -> None:
        self.heard.append(f"{ctx.agent} {status}")
        self._then()


def agent(*script: Any, hooks: list[Hooks], **more: Any) -> Agent:
    return Agent(more.pop("name", "test"), model=Scripted(script or ["done"]), hooks=hooks, **more)


def known(database: Database, *hearing: str, others: tuple[str, ...] = ()) -> None:
    """What a starting worker writes down of its agents."""
    with database.autocommit() as connection:
        leases.know_agents(connection, [*hearing, *others], hearing=hearing)


def mark(handle: Handle) -> Any:
    with handle.client.database.autocommit() as connection:
        query = "select on_end_at, sweep_at, sweep_look_at from agentq.runs"
        return tuple(at is not None for at in connection.execute(f"{query} where id = '{handle.id}'").one())


TOLD, UNTOLD = (False, False, False), (True, True, True)


def is_told(handle: Handle) -> None:
    eventually(lambda: mark(handle) == TOLD, what="nothing is left to tell")
    assert_over(handle.client.database, handle)


def test_they_hear_once_of_an_end_in_their_worker_and_nothing_is_left_of_it(database: Database) -> None:
    ends = Ends()
    drain = Drain(database, test := agent(hooks=[ends]))
    handle = drain.enqueue(test)
    drain.work()
    is_told(handle)
    drain.age(600)
    assert drain.sweep() == 0
    assert ends.heard == ["test completed"]


@pytest.mark.parametrize("ending", ["cancelled", "failed"])
def test_they_hear_of_an_end_that_a_process_without_the_agent_has_brought(database: Database, ending: str) -> None:
    ends = Ends()
    worker = Drain(database, test := agent(hooks=[ends], limits={"run_secs": 60}))
    handle = worker.enqueue(test)
    known(database, "test")
    stranger = Drain(database)
    if ending == "cancelled":
        stranger.client.handle(handle.id).cancel()
    else:
        stranger.engine.expire(handle.id)
        assert handle.status() == "queued"
        with database.transaction() as connection:
            connection.execute("update agentq.runs set deadline_at = now()")
        stranger.engine.expire(handle.id)
    assert handle.status() == ending
    assert mark(handle) == UNTOLD
    # One that does not have the agent leaves it to one that does.
    stranger.sweep()
    assert mark(handle) == UNTOLD
    assert ends.heard == []
    worker.sweep()
    is_told(handle)
    worker.sweep()
    assert ends.heard == [f"test {ending}"]


def test_of_many_sweeps_one_tells_them(database: Database) -> None:
    ends = Ends()
    test = agent(hooks=[ends])
    workers = [Drain(database, test) for _ in range(4)]
    handle = workers[0].enqueue(test)
    known(database, "test")
    Drain(database).client.handle(handle.id).cancel()
    threads = [threading.Thread(target=worker.sweep) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    is_told(handle)
    assert ends.heard == ["test cancelled"]


@pytest.mark.parametrize("point", ["committed", "announced"])
def test_they_hear_of_it_later_when_the_process_died_before_it_told_them(database: Database, point: str) -> None:
    def die(where: str, what: str) -> None:
        if where == point:
            raise Died

    ends = Ends()
    test = agent(hooks=[ends])
    drain = Drain(database, test, probe=die)
    handle = drain.enqueue(test)
    with pytest.raises(Died):
        drain.work()
    assert (mark(handle), ends.heard) == (UNTOLD, [])
    another = Drain(database, test)
    # It may be at it still.
    assert another.sweep() == 0
    another.age(endings.HOLD_SECS + 1)
    another.sweep()
    is_told(handle)
    assert ends.heard == ["test completed"]


def test_they_hear_again_when_the_process_died_while_it_told_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least once: nobody knows how far they came."""
    with monkeypatch.context() as patch:
        patch.setattr(endings, "told", lambda *_: None)
        ends = Ends()
        drain = Drain(database, test := agent(hooks=[ends]))
        handle = drain.enqueue(test)
        drain.work()
        eventually(lambda: ends.heard == ["test completed"])
        drain.age(1)
    assert mark(handle) == UNTOLD
    another = Drain(database, test)
    another.age(endings.HOLD_SECS + 1)
    another.sweep()
    is_told(handle)
    assert ends.heard == ["test completed"] * 2


@pytest.mark.parametrize("fault", ["raises", "hangs"])
def test_one_that_fails_has_heard_and_those_after_it_hear_too(database: Database, fault: str) -> None:
    free = threading.Event()

    def fail() -> None:
        if fault == "hangs":
            free.wait()
        raise RuntimeError("no")

    first, second = Ends(fail), Ends()
    drain = Drain(database, test := agent(hooks=[first, second], hook_timeout_secs=0.2))
    handle = drain.enqueue(test)
    drain.work()
    is_told(handle)
    free.set()
    assert (first.heard, second.heard) == (["test completed"],) * 2


def test_an_end_that_is_taken_back_before_they_heard_of_it_is_none(database: Database) -> None:
    """The run is retried; they hear of the end that it comes to then."""
    ends = Ends()
    worker = Drain(database, test := agent(hooks=[ends]))
    handle = worker.enqueue(test)
    known(database, "test")
    stranger = Drain(database)
    stranger.client.handle(handle.id).cancel()
    assert mark(handle) == UNTOLD
    stranger.client.handle(handle.id).retry()
    worker.wake_ups.clear()
    worker.age(10)
    # The sweep looks at it as at any run that is due.
    assert worker.sweep() == 1
    worker.work()
    eventually(lambda: mark(handle) == TOLD)
    assert ends.heard == ["test completed"]


def test_parents_and_children_each_hear_of_their_own_end(database: Database) -> None:
    ends = Ends()
    helper = agent("helped", name="helper", hooks=[ends])
    boss = Agent("boss", model=Scripted([Call("helper", {"input": "x"}), "done"]), tools=[helper.as_tool()])
    boss.hooks = (ends,)
    drain = Drain(database, boss, helper)
    handle = drain.enqueue(boss)
    drain.work()
    assert handle.result().text == "done"
    for run in drain.client.runs():
        is_told(drain.client.handle(run.id))
    assert sorted(ends.heard) == ["boss completed", "helper completed"]


def test_a_cancel_by_a_process_without_the_agents_is_heard_down_the_tree(database: Database) -> None:
    ends = Ends()
    helper = agent("helped", name="helper", hooks=[ends])
    boss = Agent("boss", model=Scripted([Call("helper", {"input": "x"})]), tools=[helper.as_tool()], hooks=[ends])
    drain = Drain(database, boss, helper)
    handle = drain.enqueue(boss)
    for _ in range(2):
        drain.do(drain.wake_ups.pop(0))
    known(database, "boss", "helper")
    Drain(database).client.handle(handle.id).cancel()
    drain.age(10)
    while drain.sweep():
        drain.age(10)
    for run in drain.client.runs():
        is_told(drain.client.handle(run.id))
    assert sorted(ends.heard) == ["boss cancelled", "helper cancelled"]


def test_who_has_no_such_hooks_pays_nothing_for_those_who_do(database: Database) -> None:
    known(database, others=("test",))
    drain = Drain(database, test := agent(hooks=[]))
    handle = drain.enqueue(test)
    Drain(database).client.handle(handle.id).cancel()
    assert mark(handle) == TOLD
    assert drain.sweep() == 0


def test_what_no_worker_can_tell_is_looked_at_once_a_minute_and_for_a_day(database: Database) -> None:
    worker = Drain(database, test := agent(hooks=[Ends()]))
    handle = worker.enqueue(test)
    known(database, "test")
    stranger = Drain(database)
    stranger.client.handle(handle.id).cancel()
    stranger.age(10)
    assert stranger.sweep() == 1
    assert mark(handle) == UNTOLD
    assert stranger.sweep() == 0
    with database.transaction() as connection:
        connection.execute("update agentq.runs set finished_at = finished_at - interval '25 hours'")
    stranger.age(70)
    assert stranger.sweep() == 1
    assert mark(handle) == TOLD


def test_a_sweep_has_only_so_many_told_at_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentq.control.MAX_TELLING", 2)
    free = threading.Event()
    ends = Ends(free.wait)
    worker = Drain(database, test := agent(hooks=[ends]))
    handles = [worker.enqueue(test) for _ in range(4)]
    known(database, "test")
    producer = Drain(database)
    for handle in handles:
        producer.client.handle(handle.id).cancel()
    worker.sweep()
    assert sorted(map(mark, handles)) == [UNTOLD] * 4
    eventually(lambda: len(ends.heard) == 2)
    worker.sweep()
    assert len(ends.heard) == 2
    free.set()
    eventually(lambda: sum(mark(handle) == TOLD for handle in handles) == 2)
    eventually(lambda: worker.sweep() >= 0 and all(mark(handle) == TOLD for handle in handles))
    assert len(ends.heard) == 4


def test_telling_costs_one_statement_that_waits_for_no_fsync(database: Database) -> None:
    ends = Ends()
    drain = Drain(database, test := agent(hooks=[ends]))
    handle = drain.enqueue(test)
    with counted(database) as counts:
        drain.work()
        drain.age(0)
    is_told(handle)
    drain = Drain(database, plain := agent(hooks=[], name="plain"))
    drain.enqueue(plain)
    with counted(database) as without:
        drain.work()
        drain.age(0)
    assert counts - without == {"claims": 1}
    assert isinstance(drain.engine, Control)
