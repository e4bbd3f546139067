"""Old code and new code beside each other, as in a rolling deploy: real workers of both on one queue."""

from pathlib import Path

from agentq import Handle
from tests.waiting import eventually
from tests.workers.fleet import Fleet

CODE = """
import json, os, sys, time
sys.path.insert(0, {folder!r})
from agentq import Agent, RunContext, tool
from agentq.providers.scripted import Call, Scripted
from tests.workers.agents_under_test import log

@tool(timeout=30)
def nap(n: int, secs: float, ctx: RunContext) -> str:
    "Sleep, and say with which code."
    log("begin", n=n, code={code!r}, run=ctx.run_id)
    time.sleep(secs)
    log("end", n=n, code={code!r}, run=ctx.run_id)
    return {code!r}

turns = [Call("nap", {{"n": n, "secs": 0.2}}) for n in range(4)]
batch = [Call("nap", {{"n": n, "secs": 0.2}}) for n in range(4, 7)]
test = Agent("test", model=Scripted([*turns, batch, "done"]), instructions="in {code} words", tools=[nap],
             on_change={on_change!r})
"""


def code(fleet: Fleet, name: str, on_change: str = "hold") -> None:
    """What workers that are started from now on have."""
    place = fleet.folder / f"{name}_agents.py"
    place.write_text(CODE.format(folder=str(Path(__file__).parents[2]), code=name, on_change=on_change))
    fleet.agents = place


def enqueue(fleet: Fleet, number: int) -> list[Handle]:
    return fleet.client.enqueue_many("test", ["go"] * number)


def begun_by(fleet: Fleet) -> list[str]:
    return [call["code"] for call in fleet.calls("begin")]


def assert_each_call_ran_once(fleet: Fleet, runs: list[Handle]) -> None:
    begun = [(call["run"], call["n"]) for call in fleet.calls("begin")]
    assert sorted(begun) == sorted((run.id, n) for run in runs for n in range(7))


def test_runs_end_on_the_code_they_began_with_while_workers_of_it_are_there(redis_fleet: Fleet) -> None:
    code(redis_fleet, "old")
    redis_fleet.both(concurrency=4)
    runs = enqueue(redis_fleet, 3)
    redis_fleet.began(3)
    code(redis_fleet, "new")
    redis_fleet.both(concurrency=4)
    with_new_code = enqueue(redis_fleet, 3)
    assert [run.wait(timeout=90).text for run in runs] == ["done"] * 3
    assert_each_call_ran_once_by(redis_fleet, runs, "old")
    assert len({run.run().agent_version for run in runs}) == 1
    # Whoever takes a run first has it; those go on with that, too.
    assert [run.wait(timeout=90).text for run in with_new_code] == ["done"] * 3
    for run in with_new_code:
        assert len({call["code"] for call in redis_fleet.calls("begin") if call["run"] == run.id}) == 1
    assert_each_call_ran_once(redis_fleet, runs + with_new_code)


def assert_each_call_ran_once_by(fleet: Fleet, runs: list[Handle], name: str) -> None:
    ids = {run.id for run in runs}
    assert {call["code"] for call in fleet.calls("begin") if call["run"] in ids} == {name}


def test_when_the_old_workers_have_gone_runs_are_held_until_they_are_adopted(redis_fleet: Fleet) -> None:
    code(redis_fleet, "old")
    old = redis_fleet.both(concurrency=4)
    runs = enqueue(redis_fleet, 3)
    redis_fleet.began(2)
    code(redis_fleet, "new")
    redis_fleet.both(concurrency=4)
    for worker in old:
        worker.terminate(within=60)
    eventually(lambda: all(run.run().outdated_at for run in runs), within=60, what="all are held")
    before = begun_by(redis_fleet)
    assert set(before) == {"old"}
    (wait, *_) = runs[0].why().waiting_for
    assert wait.kind == "version"
    assert redis_fleet.client.adopt("test") == 3
    assert [run.wait(timeout=90).text for run in runs] == ["done"] * 3
    assert begun_by(redis_fleet)[: len(before)] == before
    assert set(begun_by(redis_fleet)[len(before) :]) == {"new"}
    assert_each_call_ran_once(redis_fleet, runs)


def test_a_roll_back_takes_held_runs_up_again(redis_fleet: Fleet) -> None:
    code(redis_fleet, "old")
    old = redis_fleet.both(concurrency=4)
    runs = enqueue(redis_fleet, 2)
    redis_fleet.began(2)
    for worker in old:
        worker.terminate(within=60)
    code(redis_fleet, "new")
    new = redis_fleet.both(concurrency=4)
    eventually(lambda: all(run.run().outdated_at for run in runs), within=60, what="all are held")
    for worker in new:
        worker.terminate(within=60)
    code(redis_fleet, "old")
    redis_fleet.both(concurrency=4)
    assert [run.wait(timeout=90).text for run in runs] == ["done"] * 2
    assert set(begun_by(redis_fleet)) == {"old"}
    assert_each_call_ran_once(redis_fleet, runs)


def test_by_default_runs_go_on_with_whatever_code_there_is(redis_fleet: Fleet) -> None:
    code(redis_fleet, "old", "continue")
    old = redis_fleet.both(concurrency=4)
    runs = enqueue(redis_fleet, 3)
    redis_fleet.began(2)
    code(redis_fleet, "new", "continue")
    redis_fleet.both(concurrency=4)
    for worker in old:
        worker.terminate(within=60)
    assert [run.wait(timeout=90).text for run in runs] == ["done"] * 3
    assert_each_call_ran_once(redis_fleet, runs)
    versions = {run.run().agent_version for run in runs}
    assert len(versions) == 1
    for run in runs:
        changes = [event for event in run.events(follow=False) if event.type == "agent.changed"]
        assert changes, "it began with the old code"
        assert {changes[-1].data["to"]} == versions
