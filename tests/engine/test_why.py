"""Why a run does not go on: told rightly in every situation, and a run that nothing moves is found."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import pytest

from agentq import ApprovalRule, Deferred, Handle, RunNotFoundError, tool
from agentq.elsewhere import NOBODY_SECS, SELDOM_SECS
from agentq.providers.scripted import Call
from agentq.storage import stuck
from agentq.storage.database import Database
from agentq.storage.why import DEPTH
from agentq.transition import UnexpectedOutcomeError
from agentq.why import PROBLEMS, Wait, Why
from tests.engine import situations
from tests.engine.drain import Drain
from tests.engine.situations import HELPER, SITUATIONS, Situation, Stage, agent


@pytest.fixture
def stage(database: Database) -> Stage:
    return Stage(database)


def texts(wait: Wait) -> str:
    return f"{wait.what}; {wait.moves}"


def stuck_runs(database: Database) -> dict[str, stuck.Stuck]:
    with database.autocommit() as connection:
        return {run.run_id: run for run in stuck.stuck(connection)}


def overdue(database: Database) -> list[stuck.Overdue]:
    with database.autocommit() as connection:
        return stuck.overdue(connection, prefix="agentq")


def everything(found: Why) -> list[Why]:
    return [found, *(run for wait in found.waiting_for if wait.run for run in everything(wait.run))]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.make.__name__)
def test_every_situation_is_told_with_its_kind_since_when_and_what_moves_it(stage: Stage, situation: Situation) -> None:
    found = situation.make(stage).why()
    assert [wait.kind for wait in found.waiting_for] == [kind for kind, _ in situation.waits]
    for wait, (_, fragments) in zip(found.waiting_for, situation.waits, strict=True):
        assert [fragment for fragment in fragments if fragment not in texts(wait)] == [], texts(wait)
        assert wait.since is not None
        assert wait.since <= found.at
    assert (found.ended or "").startswith(situation.ended or "")
    assert (found.ended is None) == (situation.ended is None)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.make.__name__)
def test_no_healthy_situation_is_taken_for_stuck(stage: Stage, situation: Situation) -> None:
    handle = situation.make(stage)
    assert stuck_runs(stage.database) == {}
    assert not any(run.is_stuck for run in everything(handle.why()))
    # Nor at any later time: nobody does anything, and leases and due times run out.
    stage.drain.age(3600, past_a_crash=True)
    assert stuck_runs(stage.database) == {}
    assert not any(run.is_stuck for run in everything(handle.why()))


def test_no_moment_of_a_whole_run_is_taken_for_stuck(stage: Stage) -> None:
    handle = stage.start(situations.boss(*situations.acts(10)), HELPER)
    moments = 0
    while not handle.run().is_terminal:
        assert stuck_runs(stage.database) == {}
        assert not any(run.is_stuck for run in everything(handle.why()))
        assert handle.why().waiting_for
        for approval in stage.drain.client.approvals():
            stage.drain.client.handle(approval.run_id).approve(approval.call_id)
        stage.drain.do(stage.drain.wake_ups.pop(0))
        moments += 1
    assert moments > 10


def test_a_sub_agents_run_is_explained_inside_its_parents(stage: Stage) -> None:
    (wait,) = situations.sub_agent(stage).why().waiting_for
    assert wait.run is not None
    assert (wait.run.agent, wait.run.status) == ("helper", "waiting")
    (inner,) = wait.run.waiting_for
    assert f"agentq approvals approve {wait.run.run_id} call_0" in inner.moves


def test_levels_below_the_deepest_that_is_looked_at_are_named(stage: Stage) -> None:
    found = everything(situations.sub_agents_below_sub_agents(stage).why())
    assert len(found) == 1 + DEPTH
    (wait,) = found[-1].waiting_for
    assert (wait.kind, wait.run) == ("run", None)
    below = wait.moves.removeprefix("agentq why ")
    assert stage.drain.client.handle(below).why().agent == "level0"


def test_a_sub_agents_run_that_has_ended_says_that_its_parent_is_to_be_told(stage: Stage) -> None:
    parent = situations.child_not_told_of(stage)
    (child,) = [run.id for run in stage.drain.client.runs() if run.agent == "helper"]
    found = stage.drain.client.handle(child).why()
    assert found.ended == "final_answer"
    assert [(wait.kind, wait.what) for wait in found.waiting_for] == [("family", f"its parent {parent.id} is told")]


def test_the_lease_the_due_time_and_the_next_look_are_told(stage: Stage) -> None:
    (wait,) = situations.backoff(stage).why().waiting_for
    assert wait.until is not None
    assert wait.since is not None
    assert timedelta(seconds=55) < wait.until - wait.since < timedelta(seconds=75)
    (wait,) = situations.call(Stage(stage.database)).why().waiting_for[:1]
    assert wait.until is not None
    assert wait.since is not None
    assert wait.until - wait.since == timedelta(seconds=15)


@tool
def hand_over() -> str:
    """Hand it over."""
    raise Deferred(deadline_secs=600)


@pytest.mark.parametrize("asked", ["approval", "deferred"])
@pytest.mark.parametrize("calls", [1, 2])
def test_until_when_a_person_or_the_outside_may_answer_is_told(stage: Stage, asked: str, calls: int) -> None:
    if asked == "approval":
        made = agent(situations.acts(calls), "done", approve={"act": ApprovalRule(deadline_secs=600)})
    else:
        made = agent([Call("hand_over", {}) for _ in range(calls)], "done", tools=[hand_over])
    handle = stage.work(made)
    waits = handle.why().waiting_for
    assert [wait.until for wait in waits] == [approval.expires_at for approval in handle.approvals()]
    assert len(waits) == calls
    assert None not in [wait.until for wait in waits]


def test_a_run_that_does_not_exist_is_not_found(database: Database) -> None:
    with pytest.raises(RunNotFoundError, match="run_nope"):
        Drain(database).client.handle("run_nope").why()


# ---------------------------------------------------------------------------------------------- broken by hand


@dataclass(frozen=True)
class Broken:
    """A row changed by hand so that none of the three is left; ``is_child`` where it is the sub-agent's that stands."""

    make: Callable[[Stage], Handle]
    statement: str
    problem: str
    can_cancel: bool = True


_RUN, _CALL = "UPDATE agentq.runs SET", "UPDATE agentq.tool_calls SET"
_CHILD = "WHERE parent_run_id IS NOT NULL"
_END = "status = 'completed', finished_at = now(), lease_until = NULL, lease_token = NULL, sweep_at = NULL"
BROKEN = (
    Broken(situations.queued, f"{_RUN} sweep_at = NULL", "not_announced"),
    Broken(situations.queued, f"{_RUN} sweep_at = NULL, due_at = NULL", "no_next_step"),
    Broken(situations.queued, f"{_RUN} due_at = NULL", "no_next_step"),
    Broken(situations.backoff, f"{_RUN} sweep_at = NULL", "not_announced"),
    Broken(situations.for_later, f"{_RUN} sweep_at = NULL", "not_announced"),
    Broken(situations.in_line, "DELETE FROM agentq.runs WHERE has_place", "line_stands"),
    Broken(situations.held, "DELETE FROM agentq.runs WHERE held IS NULL", "thread_stands"),
    Broken(situations.single_call_announced, f"{_RUN} sweep_at = NULL", "not_announced"),
    Broken(situations.model_call, f"{_RUN} lease_until = NULL", "endless_lease", can_cancel=False),
    Broken(situations.single_call, f"{_RUN} lease_until = NULL", "endless_lease", can_cancel=False),
    Broken(situations.model_call, f"{_RUN} lease_until = NULL, lease_token = NULL", "not_announced"),
    Broken(situations.person, "DELETE FROM agentq.approvals", "nobody_asked"),
    Broken(situations.person, "UPDATE agentq.approvals SET status = 'approved'", "nobody_asked"),
    Broken(situations.batch, f"{_CALL} status = 'done', sweep_at = NULL", "batch_over"),
    Broken(situations.batch, f"{_CALL} sweep_at = NULL WHERE index = 3", "call_not_announced"),
    Broken(situations.batch, f"{_CALL} status = 'pending', sweep_at = NULL", "call_no_lane"),
    Broken(situations.batch, f"{_RUN} open_calls = open_calls + 1", "batch_miscounted"),
    Broken(situations.batch, f"{_RUN} open_calls = 1", "batch_miscounted"),
    Broken(
        situations.call, f"{_CALL} lease_until = NULL WHERE index = 0", "call_endless_lease", can_cancel=False
    ),
    Broken(situations.sub_agent, f"{_CALL} child_run_id = NULL WHERE kind = 'agent'", "child_missing"),
    Broken(situations.sub_agent, f"DELETE FROM agentq.runs {_CHILD}", "child_missing"),
    Broken(situations.sub_agent, f"{_RUN} {_END} {_CHILD}", "child_untold"),
)  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: f"{broken.make.__name__}-{broken.problem}")
def test_a_run_that_nothing_moves_is_found_and_explained(stage: Stage, broken: Broken) -> None:
    handle = broken.make(stage)
    stage.sql(broken.statement)
    found = stuck_runs(stage.database)
    assert list(found) == [handle.id]
    assert (found[handle.id].problem, found[handle.id].can_cancel) == (broken.problem, broken.can_cancel)
    told = handle.why()
    assert told.is_stuck
    assert told.row is not None
    assert told.row["id"] == handle.id
    problem = next(wait for wait in told.waiting_for if wait.kind == "nothing")
    assert problem.what.startswith(PROBLEMS[broken.problem])
    assert (f"agentq runs cancel {handle.id} ends it" in problem.moves) == broken.can_cancel


def let_time_pass(drain: Drain) -> None:
    for _ in range(4):
        drain.age(70)
        drain.sweep()
        # A wrong count is noticed by each call that comes back.
        while drain.wake_ups:
            with suppress(UnexpectedOutcomeError):
                drain.work()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: f"{broken.make.__name__}-{broken.problem}")
def test_a_run_that_nothing_moves_stands_still_and_a_cancel_ends_it_where_that_is_said(
    stage: Stage, broken: Broken
) -> None:
    """The loop itself is asked whether the diagnosis is right."""
    handle = broken.make(stage)
    stage.sql(broken.statement)
    stage.die_at.clear()
    stage.drain.wake_ups.clear()
    let_time_pass(stage.drain)
    assert not handle.run().is_terminal
    handle.cancel()
    let_time_pass(stage.drain)
    assert (handle.status() == "cancelled") == broken.can_cancel


def test_every_problem_is_among_those_tried() -> None:
    assert {broken.problem for broken in BROKEN} == set(PROBLEMS)


def test_a_parent_is_not_called_stuck_for_what_its_sub_agent_is(stage: Stage) -> None:
    handle = situations.sub_agent(stage)
    stage.sql("DELETE FROM agentq.approvals")
    parent, child = everything(handle.why())
    assert (parent.is_stuck, child.is_stuck) == (False, True)
    assert list(stuck_runs(stage.database)) == [child.run_id]


# ---------------------------------------------------------------------------------------------- nobody there


WAITING_FOR_WORKERS = {
    situations.queued_without_workers: ("test", "agentq"),
    situations.queued_where_nobody_consumes: ("test", "agentq"),
    situations.single_call_announced: ("test", "gpu"),
    situations.batch_on_a_queue_nobody_consumes: ("test", "gpu"),
    situations.lost_step: ("test", "agentq"),
}


@pytest.mark.parametrize("make", WAITING_FOR_WORKERS, ids=lambda make: make.__name__)
def test_long_overdue_work_that_no_running_worker_takes_is_told_apart(
    stage: Stage, make: Callable[[Stage], Handle]
) -> None:
    handle = make(stage)
    assert overdue(stage.database) == []
    stage.drain.age(300, past_a_crash=True)
    (found,) = overdue(stage.database)
    assert (found.agent, found.queue, found.runs, found.oldest) == (*WAITING_FOR_WORKERS[make], 1, handle.id)
    assert stuck_runs(stage.database) == {}


def test_a_run_put_off_by_workers_without_its_agent_is_overdue_however_often_it_is_put_off(stage: Stage) -> None:
    handle = situations.agent_nobody_has(stage)
    stage.sql("UPDATE agentq.journal SET at = at - interval '5 min'")
    (found,) = overdue(stage.database)
    assert (found.oldest, "has agent 'test'" in found.gap.what) == (handle.id, True)
    (wait,) = handle.why().waiting_for
    assert wait.since is not None
    assert handle.why().at - wait.since > timedelta(minutes=4)


def test_a_long_queue_that_workers_consume_is_not_told(stage: Stage) -> None:
    situations.queued(stage)
    stage.drain.age(300, past_a_crash=True)
    assert overdue(stage.database) == []


def test_runs_that_wait_for_the_same_worker_are_one_line(stage: Stage) -> None:
    oldest = stage.start(agent("hello"))
    stage.drain.age(10)
    for _ in range(4):
        stage.drain.enqueue(agent("hello"))
    stage.drain.age(300, past_a_crash=True)
    (found,) = overdue(stage.database)
    assert (found.runs, found.oldest) == (5, oldest.id)


def test_the_overdue_look_reaches_as_far_as_a_worker_without_the_agent_puts_a_run_off() -> None:
    assert max(NOBODY_SECS, SELDOM_SECS) < 15
