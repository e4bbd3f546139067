"""``agentq why`` and ``agentq doctor --stuck``: what a person reads, what a program reads, and the exit code."""

import pytest

from agentq.storage.database import Database
from tests.cli.program import Program, one_line
from tests.engine import situations
from tests.engine.situations import Stage


@pytest.fixture
def stage(database: Database) -> Stage:
    return Stage(database)


def test_a_run_that_waits_for_a_person_names_who_since_when_and_the_command(
    installation: Program, stage: Stage
) -> None:
    run_id = situations.person(stage).id
    head, *waits = installation("why", run_id).out.splitlines()
    assert head == f"{run_id} (test) is waiting: turn 1, review"
    assert waits[0].startswith("  waits for a person's decision on act (call_0), since 20")
    assert waits[1].startswith(f"    what moves it: agentq approvals approve {run_id} call_0, or ")
    approve = waits[1].partition("agentq ")[2].partition(",")[0].split()
    assert installation(*approve).code == 0
    assert "call_0" not in installation("why", run_id).out


def test_a_run_without_a_worker_names_the_queue_of_this_installation(installation: Program, stage: Stage) -> None:
    out = installation("why", situations.queued_without_workers(stage).id).out
    assert f"waits for a worker on queue {installation.settings['AGENTQ_QUEUE']}: no worker is running" in out
    assert "what moves it: start one: agentq worker --agents my_agents.py (next looked at 20" in out


def test_a_step_under_way_shows_its_lease_and_that_it_is_to_be_cancelled(installation: Program, stage: Stage) -> None:
    out = installation("why", situations.model_call_to_be_cancelled(stage).id).out
    assert "recall, cancel requested\n" in out
    assert "which worker drain is at, since 20" in out
    assert "(lease until 20" in out


def test_a_run_that_has_ended_says_how(installation: Program, stage: Stage) -> None:
    run_id = situations.failed(stage).id
    (line,) = installation("why", run_id).out.splitlines()
    assert line.startswith(f"{run_id} (test) is failed since 20")
    assert "provider_quota_exceeded: " in line


def test_a_sub_agents_run_is_indented_below_the_wait_for_it(installation: Program, stage: Stage) -> None:
    lines = installation("why", situations.sub_agent(stage).id).out.splitlines()
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 2, 4, 4, 6, 8]
    assert "(helper) is waiting" in lines[3]


def test_json_has_kinds_times_and_the_runs_below(installation: Program, stage: Stage) -> None:
    found = installation("why", situations.sub_agent(stage).id, "--json").json
    assert (found["status"], found["is_stuck"], found["ended"]) == ("running", False, None)
    (wait,) = found["waiting_for"]
    assert (wait["kind"], wait["run"]["agent"]) == ("run", "helper")
    (inner,) = wait["run"]["waiting_for"]
    assert (inner["kind"], inner["call_id"]) == ("person", "call_0")
    assert inner["since"] <= found["at"]


def test_a_run_that_does_not_exist_is_code_5(installation: Program) -> None:
    assert "run_nope" in one_line(installation("why", "run_nope"), 5)


def test_a_run_that_nothing_moves_is_shown_with_its_row(installation: Program, stage: Stage) -> None:
    run_id = situations.queued(stage).id
    stage.sql("UPDATE agentq.runs SET sweep_at = NULL")
    done = installation("why", run_id)
    assert "  stuck: its next step is in no sweep's sight, since 20" in done.out
    assert '  row: {"queue":"agentq"' in done.out
    assert installation("why", run_id, "--json").json["is_stuck"]


def test_the_doctor_finds_a_run_that_nothing_moves_and_what_it_advises_ends_it(
    installation: Program, stage: Stage
) -> None:
    run_id = situations.queued(stage).id
    stage.sql("UPDATE agentq.runs SET sweep_at = NULL")
    stage.sql("UPDATE agentq.journal SET at = now() - interval '3 h'")
    done = installation("doctor", "--stuck")
    assert done.code == 1
    head, fix = done.out.splitlines()
    assert head == f"FAIL  stuck       {run_id} (test, queued) since 3h: its next step is in no sweep's sight"
    assert f"agentq why {run_id}; agentq runs cancel {run_id} ends it" in fix
    found = installation("doctor", "--stuck", "--json")
    assert (found.code, found.json["ok"]) == (1, False)
    assert [(run["run_id"], run["problem"]) for run in found.json["stuck"]] == [(run_id, "not_announced")]
    assert installation("runs", "cancel", run_id).code == 0
    assert installation("doctor", "--stuck").code == 0


def test_the_doctor_tells_runs_without_a_worker_apart_and_they_are_no_failure(
    installation: Program, stage: Stage
) -> None:
    run_id = situations.queued_without_workers(stage).id
    assert installation("doctor", "--stuck").out.splitlines() == [
        "OK    stuck       every open run has a live lease, a due time, a turn it waits for, or a person"
    ]
    stage.drain.age(300, past_a_crash=True)
    done = installation("doctor", "--stuck")
    assert done.code == 0
    queue = installation.settings["AGENTQ_QUEUE"]
    assert f"WARN  no worker   1 run of test since 5m: waits for a worker on queue {queue}: no worker is" in done.out
    assert f"fix: agentq worker --agents my_agents.py; see: agentq why {run_id}\n" in done.out
    found = installation("doctor", "--stuck", "--json").json
    assert (found["ok"], found["stuck"]) == (True, [])
    (waiting,) = found["waiting_for_a_worker"]
    assert (waiting["oldest"], waiting["runs"], waiting["gap"]["fix"]) == (
        run_id,
        1,
        "agentq worker --agents my_agents.py",
    )


def test_the_doctor_cannot_look_for_runs_where_there_is_no_database(installation: Program) -> None:
    done = installation("doctor", "--stuck", AGENTQ_DATABASE_URL="postgresql://u@127.0.0.1:1/x")
    assert "cannot be used" in one_line(done, 3)
