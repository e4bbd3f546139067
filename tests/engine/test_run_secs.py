"""The time limit of a whole run: nothing new begins after it, whoever or whatever the run waits for."""

import time
from typing import Any

import pytest

from agentq import Agent, Handle, LimitExceededError, tool
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.engine.drain import Drain
from tests.engine.test_crashes import results


@tool
def act(n: int = 0) -> str:
    """Work."""
    return f"did {n}"


def later(drain: Drain, handle: Handle, seconds: float) -> None:
    """Let the run grow older."""
    with drain.database.transaction() as connection:
        connection.execute(
            "update agentq.runs set created_at = created_at - make_interval(secs => %s),"
            " deadline_at = deadline_at - make_interval(secs => %s) where id = %s",
            (seconds, seconds, handle.id),
        )


def over(handle: Handle) -> None:
    with pytest.raises(LimitExceededError, match="limit of 60 seconds") as caught:
        handle.result()
    assert caught.value.details["limit"] == "run_secs"
    assert caught.value.details["value"] == 60


def columns(drain: Drain, handle: Handle, names: str) -> tuple[Any, ...]:
    with drain.database.autocommit() as connection:
        row = connection.execute(f"select {names} from agentq.runs where id = '{handle.id}'").one()
    return tuple(row)


def test_a_run_within_its_time_is_not_touched(database: Database) -> None:
    test = Agent("test", model=Scripted([Call("act"), "done"]), tools=[act], limits={"run_secs": 60})
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    later(drain, handle, 50)
    assert drain.sweep() == 0
    drain.work()
    assert handle.result().text == "done"
    assert columns(drain, handle, "deadline_at") == (None,)


@pytest.mark.parametrize("given", ["agent", "enqueue"])
def test_no_step_begins_after_the_time_is_over(database: Database, given: str) -> None:
    limits = {"run_secs": 60}
    asked: list[str] = []

    def late(request: ModelRequest) -> str:
        asked.append("asked")
        return "too late"

    script = Scripted([Call("act"), late])
    test = Agent("test", model=script, tools=[act], limits=limits if given == "agent" else None)
    drain = Drain(database, test)
    handle = drain.enqueue(test, limits=limits if given == "enqueue" else None)
    while handle.run().turn == 0:
        drain.do(drain.wake_ups.pop(0))
    later(drain, handle, 61)
    drain.work()
    over(handle)
    assert asked == []
    # The transcript stays valid: the call that was not run has a result that says so.
    assert [result.code for result in results(handle)] == ["cancelled"]


@pytest.mark.parametrize("calls", [1, 12])
def test_no_call_begins_after_the_time_is_over_and_what_came_back_is_kept(database: Database, calls: int) -> None:
    drains: list[tuple[Drain, Handle]] = []

    @tool
    def slow(n: int) -> str:
        """Take all the time."""
        if n == 2 or calls == 1:
            later(*drains[0], 61)
        return f"did {n}"

    asked = [Call("slow", {"n": n}) for n in range(calls)]
    test = Agent("test", model=Scripted([asked, "never"]), tools=[slow], limits={"run_secs": 60})
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    drains.append((drain, handle))
    drain.work()
    over(handle)
    codes = [result.code for result in results(handle)]
    assert codes == ([None] if calls == 1 else [None] * 3 + ["cancelled"] * 9)


def test_a_run_that_waits_for_a_person_is_ended_by_the_sweep(database: Database) -> None:
    test = Agent("test", model=Scripted([Call("act")]), tools=[act], approve=["act"], limits={"run_secs": 60})
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    drain.work()
    assert handle.status() == "waiting"
    later(drain, handle, 61)
    assert drain.sweep() == 1
    over(handle)
    assert drain.client.approvals() == []
    assert drain.sweep() == 0


def test_a_run_that_no_worker_takes_is_ended_by_the_sweep(database: Database) -> None:
    drain = Drain(database, test := Agent("test", model=Scripted(["never"]), limits={"run_secs": 60}))
    handle = drain.enqueue(test)
    later(drain, handle, 61)
    drain.sweep()
    over(handle)
    drain.work()
    over(handle)


def test_a_run_whose_sub_agent_takes_too_long_is_ended_with_it(database: Database) -> None:
    child = Agent("child", model=Scripted(["never"]))
    parent = Agent(
        "parent", model=Scripted([Call("child", {"input": "go"})]), tools=[child.as_tool()], limits={"run_secs": 60}
    )
    drain = Drain(database, parent, child)
    handle = drain.enqueue(parent)
    while not (below := [run for run in drain.client.runs() if run.agent == "child"]):
        drain.do(drain.wake_ups.pop(0))
    later(drain, handle, 61)
    drain.sweep()
    over(handle)
    assert drain.client.handle(below[0].id).status() == "cancelled"


def test_a_run_somebody_is_at_is_left_to_its_step(database: Database) -> None:
    seen: list[str] = []
    drains: list[tuple[Drain, Handle]] = []

    def slow(request: ModelRequest) -> Any:
        drain, handle = drains[0]
        later(drain, handle, 61)
        drain.sweep()
        seen.append(handle.status())
        return Call("act")

    drain = Drain(database, test := Agent("test", model=Scripted([slow]), tools=[act], limits={"run_secs": 60}))
    handle = drain.enqueue(test)
    drains.append((drain, handle))
    drain.work()
    assert seen == ["running"]
    over(handle)


def test_an_answer_that_took_a_little_too_long_is_kept(database: Database) -> None:
    drains: list[tuple[Drain, Handle]] = []

    def slow(request: ModelRequest) -> str:
        later(*drains[0], 61)
        return "done"

    drain = Drain(database, test := Agent("test", model=Scripted([slow]), limits={"run_secs": 60}))
    handle = drain.enqueue(test)
    drains.append((drain, handle))
    drain.work()
    assert handle.result().text == "done"


def test_a_model_call_gets_no_more_than_what_is_left(database: Database) -> None:
    given: list[float] = []

    def reply(request: ModelRequest) -> str:
        given.append(request.timeout_secs)
        return "done"

    drain = Drain(database, test := Agent("test", model=Scripted([reply]), limits={"run_secs": 60}))
    handle = drain.enqueue(test)
    later(drain, handle, 50)
    drain.work()
    assert handle.result().text == "done"
    assert 0 < given[0] <= 10


@pytest.mark.parametrize("calls", [1, 2])
def test_a_tool_is_stopped_when_the_runs_time_is_over(database: Database, calls: int) -> None:
    @tool(timeout=30)
    def sleep() -> None:
        """Sleep for too long."""
        time.sleep(30)

    asked = [Call("sleep")] * calls
    test = Agent("test", model=Scripted([asked, "never"]), tools=[sleep], limits={"run_secs": 60})
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    later(drain, handle, 59)
    drain.work()
    over(handle)
    assert results(handle)[0].code == "timeout"
