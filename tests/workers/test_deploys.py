"""Old code and new code beside each other, as in a rolling deploy: real workers of both on one queue."""

from pathlib import Path

import pytest

from agentq import Handle
from tests.waiting import eventually
from tests.workers.fleet import Fleet, Worker

CODE = """
import sys, time
sys.path.insert(0, {root!r})
from agentq import Agent, RunContext, tool
from agentq.providers.scripted import Call, Scripted
from tests.workers.agents_under_test import LOG, log

@tool(timeout=60)
def act(n: int, ctx: RunContext) -> str:
    "Say with which code it runs; the third waits for a file."
    log("begin", n=n, code={code!r}, run=ctx.run_id)
    while n == 2 and not (LOG / "go").exists():
        time.sleep(0.02)
    return {code!r}

turns = [Call("act", {{"n": n}}) for n in range(4)]
batch = [Call("act", {{"n": n}}) for n in range(4, 7)]
test = Agent("test", model=Scripted([*turns, batch, "done"]), instructions="in {code} words", tools=[act],
             on_change={on_change!r})
"""
CALLS = range(7)


def start(fleet: Fleet, code: str, on_change: str = "hold") -> tuple[Worker, Worker]:
    """Workers with this code, beside those that there are."""
    place = fleet.folder / f"{code}_agents.py"
    place.write_text(CODE.format(root=str(Path(__file__).parents[2]), code=code, on_change=on_change))
    fleet.agents = place
    return fleet.both(concurrency=4)


def under_way(fleet: Fleet, number: int) -> list[Handle]:
    """Runs that are in the middle of their third call."""
    runs = fleet.client.enqueue_many("test", ["go"] * number)
    fleet.began(3 * number)
    return runs


def go(fleet: Fleet) -> None:
    (fleet.folder / "go").touch()


def retire(fleet: Fleet, workers: tuple[Worker, Worker]) -> None:
    """Stop workers gently: they finish the calls that they have, and take nothing new."""
    for worker in workers:
        worker.process.terminate()
    # Before the calls end: their next step is then for the others.
    eventually(lambda: not workers[0].is_alive, within=60, what="the old steps worker has gone")
    go(fleet)
    assert [worker.process.wait(timeout=60) for worker in workers] == [0, 0]


def ran(fleet: Fleet, runs: list[Handle]) -> list[tuple[int, str]]:
    """The calls of these runs, in order, with the code they ran with."""
    ids = {run.id for run in runs}
    return sorted((call["n"], call["code"]) for call in fleet.calls("begin") if call["run"] in ids)


def all_with(code: str, numbers: range, number: int) -> list[tuple[int, str]]:
    return [(n, code) for n in numbers for _ in range(number)]


def are_held(runs: list[Handle]) -> None:
    eventually(lambda: all(run.run().outdated_at for run in runs), within=60, what="all are held")


@pytest.mark.long
def test_runs_end_on_the_code_they_began_with_while_workers_of_it_are_there(redis_fleet: Fleet) -> None:
    start(redis_fleet, "old")
    runs = under_way(redis_fleet, 3)
    start(redis_fleet, "new")
    go(redis_fleet)
    later = redis_fleet.client.enqueue_many("test", ["go"] * 3)
    assert [run.wait(timeout=90).text for run in runs + later] == ["done"] * 6
    assert ran(redis_fleet, runs) == all_with("old", CALLS, 3)
    # Whoever takes a run first has it; it goes on with that code, too.
    for run in later:
        code = ran(redis_fleet, [run])[0][1]
        assert ran(redis_fleet, [run]) == all_with(code, CALLS, 1)
    assert not any(event.type == "agent.changed" for run in runs + later for event in run.events(follow=False))


def test_when_the_old_workers_have_gone_runs_are_held_until_they_are_adopted(redis_fleet: Fleet) -> None:
    old = start(redis_fleet, "old")
    runs = under_way(redis_fleet, 3)
    start(redis_fleet, "new")
    retire(redis_fleet, old)
    are_held(runs)
    assert ran(redis_fleet, runs) == all_with("old", range(3), 3)
    (wait, *_) = runs[0].why().waiting_for
    assert wait.kind == "version"
    assert redis_fleet.client.adopt("test") == 3
    assert [run.wait(timeout=90).text for run in runs] == ["done"] * 3
    assert ran(redis_fleet, runs) == all_with("old", range(3), 3) + all_with("new", range(3, 7), 3)


@pytest.mark.long
def test_a_roll_back_takes_held_runs_up_again(redis_fleet: Fleet) -> None:
    old = start(redis_fleet, "old")
    runs = under_way(redis_fleet, 2)
    new = start(redis_fleet, "new")
    retire(redis_fleet, old)
    are_held(runs)
    retire(redis_fleet, new)
    start(redis_fleet, "old")
    assert [run.wait(timeout=90).text for run in runs] == ["done"] * 2
    assert ran(redis_fleet, runs) == all_with("old", CALLS, 2)


def test_by_default_runs_go_on_with_whatever_code_there_is(redis_fleet: Fleet) -> None:
    old = start(redis_fleet, "old", "continue")
    runs = under_way(redis_fleet, 3)
    start(redis_fleet, "new", "continue")
    retire(redis_fleet, old)
    assert [run.wait(timeout=90).text for run in runs] == ["done"] * 3
    assert ran(redis_fleet, runs) == all_with("old", range(3), 3) + all_with("new", range(3, 7), 3)
    for run in runs:
        (change,) = [event.data for event in run.events(follow=False) if event.type == "agent.changed"]
        assert change["to"] == run.run().agent_version


def test_runs_that_fail_on_a_change_say_so_and_begin_nothing_more(redis_fleet: Fleet) -> None:
    old = start(redis_fleet, "old", "fail")
    runs = under_way(redis_fleet, 2)
    start(redis_fleet, "new", "fail")
    retire(redis_fleet, old)
    eventually(lambda: all(run.run().is_terminal for run in runs), within=60, what="all have ended")
    assert {run.run().error.code for run in runs} == {"agent_changed"}  # type: ignore[union-attr]
    assert ran(redis_fleet, runs) == all_with("old", range(3), 2)
