"""``agentq check-inflight``: the runs that new code could not go on with, before it is deployed."""

import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentq import Agent, Client
from agentq.inflight import Report
from agentq.registry import load_agents
from agentq.storage import leases
from agentq.storage.database import Database
from agentq.storage.inflight import open_runs
from agentq.wire import BatchMessage
from tests.cli.program import Program, one_line
from tests.engine.drain import Drain

HEAD = """
from agentq import Agent, Deferred, tool
from agentq.providers.scripted import Call, Scripted
"""
OLD = """
@tool
def old_refund(order_id: str) -> str:
    "Pay money back."
    return order_id

@tool
def look(n: int) -> str:
    "Look."
    return "seen"

@tool
def hand_over(n: int) -> str:
    "Hand it over."
    raise Deferred

one = Call("old_refund", {"order_id": "7"}, id="call_1")
single = Agent("single", model=Scripted([one, "done"]), tools=[old_refund])
batch = Agent("batch", model=Scripted([[one, Call("look", {"n": 1})], "done"]), tools=[old_refund, look])
waits = Agent("waits", model=Scripted([one, "done"]), tools=[old_refund], approve=["old_refund"])
edits = Agent("edits", model=Scripted([[one, Call("look", {"n": 1}, id="call_2")], "done"]), tools=[old_refund, look],
              approve=["old_refund", "look"])
outside = Agent("outside", model=Scripted([Call("hand_over", {"n": 1}), "done"]), tools=[hand_over])
held = Agent("held", model=Scripted([one, "done"]), tools=[old_refund], on_change="hold")
fails = Agent("fails", model=Scripted([one, "done"]), tools=[old_refund], on_change="fail")
begun = Agent("begun", model=Scripted([one, "done"]), tools=[old_refund], on_change="fail")
"""


@pytest.fixture(autouse=True)
def nothing_stays_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = {*sys.modules}
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in {*sys.modules} - before:
        if "_code" in name:
            del sys.modules[name]


@pytest.fixture
def old(tmp_path: Path, database: Database) -> Drain:
    (tmp_path / "old_code.py").write_text(HEAD + OLD)
    return Drain(database, *load_agents(str(tmp_path / "old_code.py")).values())  # type: ignore[arg-type]


def start(old: Drain, name: str, steps: int = 0) -> str:
    """A run of an agent, that many steps on."""
    agent = old.agents[name]
    assert isinstance(agent, Agent)
    run_id = old.enqueue(agent).id
    old.wake_ups[:] = old.wake_ups[-1:]
    for _ in range(steps):
        old.do(old.wake_ups.pop(0))
        if old.wake_ups and isinstance(old.wake_ups[0], BatchMessage):
            old.do(old.wake_ups.pop(0))
    old.wake_ups.clear()
    return run_id


def new_code(installation: Program, text: str) -> str:
    place = installation.folder / "new_code.py"
    place.write_text(HEAD + text)
    return str(place)


def found(installation: Program, place: str) -> list[tuple[str, str, list[str]]]:
    done = installation("check-inflight", "--agents", place, "--json")
    assert done.code == (0 if done.json["ok"] else 1)
    return [(each["reason"], each["agent"], each["run_ids"]) for each in done.json["found"]]


def test_the_same_code_goes_on_with_everything(installation: Program, old: Drain) -> None:
    for name in old.agents:
        start(old, name, 1)
    place = new_code(installation, OLD)
    done = installation("check-inflight", "--agents", place)
    assert (done.code, done.out) == (0, "OK    in flight   8 open runs: this code can go on with all of them\n")
    assert installation("check-inflight", "--agents", place, "--json").json == {
        "ok": True,
        "open": 8,
        "affected": 0,
        "found": [],
    }


def test_each_reason_names_its_runs(installation: Program, old: Drain) -> None:
    single, batch, waits = start(old, "single", 1), start(old, "batch", 2), start(old, "waits", 2)
    edits = start(old, "edits", 2)
    old.client.handle(edits).approve("call_2", arguments={"n": 5})
    start(old, "outside", 2)
    held, fails = start(old, "held", 1), start(old, "fails", 1)
    start(old, "begun")
    text = OLD.replace("old_refund", "new_refund").replace("Pay money back", "Pay it back")
    place = new_code(installation, text.replace("n: int", "n: int = 0"))
    by_reason: dict[str, set[str]] = {}
    for reason, agent, run_ids in found(installation, place):
        for run_id in run_ids:
            assert old.client.handle(run_id).run().agent == agent
            by_reason.setdefault(reason, set()).add(run_id)
    # Not that of the call that is outside, nor of the run that nobody has begun.
    assert by_reason == {
        "tool_missing": {single, batch, waits, edits, held, fails},
        "agent_changed": {held, fails},
    }


def test_arguments_that_do_not_fit_any_more_are_those_that_would_run(installation: Program, old: Drain) -> None:
    waits, edits = start(old, "waits", 2), start(old, "edits", 2)
    old.client.handle(edits).approve("call_1", arguments={"order_id": "x" * 20})
    start(old, "single", 1)
    short = OLD.replace("order_id: str", "order_id: Annotated[str, Field(max_length=10)]")
    place = new_code(installation, "from typing import Annotated\nfrom pydantic import Field\n" + short)
    assert found(installation, place) == [("arguments_refused", "edits", [edits])]
    long = OLD.replace("order_id: str", "order_id: Annotated[str, Field(min_length=10)]")
    place = new_code(installation, "from typing import Annotated\nfrom pydantic import Field\n" + long)
    assert {run_id for _, _, run_ids in found(installation, place) for run_id in run_ids} >= {waits}
    assert edits not in {run_id for _, _, run_ids in found(installation, place) for run_id in run_ids}


def test_a_person_reads_how_many_why_which_and_what_to_do(installation: Program, old: Drain) -> None:
    runs = [start(old, "single") for _ in range(3)]
    place = new_code(installation, 'other = Agent("other", model=Scripted(["x"]))')
    done = installation("check-inflight", "--agents", place, "--show", "2")
    assert done.code == 1
    assert done.out.splitlines() == [
        "FAIL  agent_missing 3 runs: there is no agent 'single'",
        f"{'':<18}fix: name the place of the agent in --agents, or let a worker with it live until they have ended",
        f"{'':<18}{runs[0]} {runs[1]} and 1 more",
        "3 of 3 open runs would not go on with this code",
    ]


def test_where_projects_share_a_database_each_looks_at_its_own_agents(
    installation: Program, old: Drain, database: Database
) -> None:
    single = start(old, "single")
    start(old, "batch")
    with database.autocommit() as connection:
        leases.know_agents(connection, ["single", "batch"])
    place = new_code(installation, 'other = Agent("other", model=Scripted(["x"]))')
    done = installation("check-inflight", "--agents", place, "--agent", "other")
    assert (done.code, done.out) == (0, "OK    in flight   0 open runs: this code can go on with all of them\n")
    # One that was taken away can be named as well, and a slip of the pen is no success.
    done = installation("check-inflight", "--agents", place, "--agent", "other", "--agent", "single", "--json")
    assert (done.code, done.json["open"], done.json["found"][0]["run_ids"]) == (1, 1, [single])
    slip = one_line(installation("check-inflight", "--agents", place, "--agent", "othr"), 2)
    assert "did you mean 'other'?" in slip


def test_runs_that_have_ended_are_not_looked_at(installation: Program, old: Drain) -> None:
    start(old, "single", 3)
    old.client.handle(start(old, "waits", 2)).cancel()
    place = new_code(installation, 'other = Agent("other", model=Scripted(["x"]))')
    assert "0 open runs" in installation("check-inflight", "--agents", place).out


def test_it_needs_no_broker_and_the_agents_of_the_environment_will_do(installation: Program, old: Drain) -> None:
    place = new_code(installation, OLD)
    done = installation("check-inflight", AGENTQ_AGENTS=place, AGENTQ_BROKER_URL="redis://127.0.0.1:1")
    assert done.code == 0


def test_without_agents_or_database_it_says_so(installation: Program) -> None:
    assert "--agents" in one_line(installation("check-inflight", AGENTQ_AGENTS=""), 2)
    assert "no file" in one_line(installation("check-inflight", "--agents", "nowhere.py"), 2)
    away = {"AGENTQ_DATABASE_URL": "postgresql://u@127.0.0.1:1/x"}
    assert "cannot be used" in one_line(installation("check-inflight", **away), 3)


def test_many_open_runs_are_never_in_memory_together(old: Drain, database: Database) -> None:
    texts = ["x" * 500] * 10_000
    client: Client = old.client
    for _ in range(2):
        client.enqueue_many("single", texts)
    report = Report(shown=10)
    tracemalloc.start()
    try:
        with database.transaction() as connection:
            for run in open_runs(connection):
                report.add(run, {})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (report.looked_at, report.affected) == (20_000, 20_000)
    (each,) = report.worst_first
    assert (each.runs, len(each.run_ids)) == (20_000, 10)
    assert peak < 2_000_000


def test_held_runs_are_listed_shown_told_by_the_doctor_and_adopted(
    installation: Program, old: Drain, database: Database
) -> None:
    runs = [start(old, "held", 1) for _ in range(2)]
    changed = new_code(installation, OLD.replace("Pay money back", "Pay it back"))
    new = Drain(database, *load_agents(changed).values())  # type: ignore[arg-type]
    for run_id in runs:
        new.engine.run_step(run_id, 1)
    was, now = old.agents["held"].version, new.agents["held"].version
    start(old, "single", 1)
    listed = installation("runs", "ls", "--outdated")
    assert len(listed.out.splitlines()) == 3
    assert listed.out.count(f"held at tools: agent changed from {was} to {now}") == 2
    assert installation("runs", "ls", "--outdated", "--json").lines[0]["outdated_by"] == now
    shown = installation("runs", "show", runs[0]).out
    assert f": agent changed to {now}" in shown
    assert f"needs version {was}, the code is {now}" in shown
    why = installation("why", runs[0]).out
    assert f"waits for a worker with version {was} of agent 'held', to go on with old_refund (call_1): " in why
    stuck = installation("doctor", "--stuck")
    assert stuck.code == 0
    told = f"its agent has changed, began with version {was}, the code is {now}"
    fix = f"fix: agentq runs adopt --agent held, or start a worker with the old code; see: agentq why {runs[0]}"
    assert "WARN  held        2 runs of held since " in stuck.out
    assert f": {told}\n{'':<18}{fix}\n" in stuck.out
    assert installation("doctor", "--stuck", "--json").json["agent_changed"][0]["runs"] == 2
    assert f": {told}\n" in installation("doctor").out
    assert installation("runs", "adopt", runs[0]).out == f"run {runs[0]} goes on with the new code\n"
    assert "not held because its agent has changed" in one_line(installation("runs", "adopt", runs[0]), 1)
    several = installation("runs", "adopt", "run_nope", runs[0], runs[1])
    assert (several.code, several.out) == (1, f"run {runs[1]} goes on with the new code\n")
    unknown, not_held = several.err.splitlines()
    assert ("run_nope" in unknown, runs[0] in not_held) == (True, True)
    runs.append(start(old, "held", 1))
    new.engine.run_step(runs[2], 1)
    assert installation("runs", "adopt", "--agent", "held").out == "1 run of held adopted\n"
    assert "--agent" in installation("runs", "adopt").err
    new.sweep()
    new.work()
    assert [old.client.handle(run_id).result().text for run_id in runs] == ["done"] * 3
