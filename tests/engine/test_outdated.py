"""A run whose agent has changed under it: goes on, waits for code of its version, or ends, at every moment."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import pytest

from agentq import Agent, Deferred, Handle, RunFailedError, RunNotFoundError, RunNotHeldError, Tool, tool
from agentq.agent import OnChange
from agentq.messages import ToolMessage
from agentq.providers.scripted import Call, Fault, Scripted
from agentq.recovery import wake_outdated
from agentq.storage import leases, outdated, stuck
from agentq.storage.database import Database
from agentq.wire import BatchMessage
from tests.cases.stored import assert_over, codes
from tests.engine.counting import counted
from tests.engine.drain import Died, Drain

Code = Literal["old", "new"]
ran: list[tuple[Code, int]] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    ran.clear()
    yield
    ran.clear()


def act(code: Code) -> Tool:
    @tool
    def act(n: int) -> str:
        """Do something."""
        ran.append((code, n))
        return f"did {n}"

    return act


def hand_over(code: Code) -> Tool:
    @tool
    def hand_over(n: int) -> str:
        """Hand it to the outside."""
        ran.append((code, n))
        raise Deferred

    return hand_over


def acts(number: int) -> list[Call]:
    return [Call("act", {"n": n}, id=f"call_{n}") for n in range(number)]


Make = Callable[..., list[Agent]]


def plain(*steps: Any, fault: Any = None, **more: Any) -> Make:
    """The agent as each code has it: the same but for its instructions. The old one's model fails first."""

    def make(code: Code, on_change: OnChange = "continue", **changes: Any) -> list[Agent]:
        tools = [act(code), hand_over(code)]
        said = [Fault(fault, retry_after=60)] if fault and code == "old" else []
        definition = {"instructions": f"in {code} words", "tools": tools, **more, **changes}
        return [Agent("test", model=Scripted([*said, *steps, "done"]), on_change=on_change, **definition)]

    return make


def with_helper(*steps: Any) -> Make:
    """An agent that stays as it is, and its sub-agent that does not."""

    def make(code: Code, on_change: OnChange = "continue", **changes: Any) -> list[Agent]:
        helper = plain(*steps)(code, on_change, **changes)[0]
        boss = Agent("boss", model=Scripted([Call("test", {"input": "x"}), "done"]), tools=[helper.as_tool()])
        return [boss, helper]

    return make


@dataclass
class Deploy:
    """Workers with the old code and with the new one, on one database and one queue."""

    database: Database
    make: Make
    old: Drain = field(init=False)
    new: Drain = field(init=False)
    handle: Handle = field(init=False)

    def __post_init__(self) -> None:
        self.old = Drain(self.database, *self.make("old", "hold"))

    def enqueue(self, **options: Any) -> Handle:
        first = next(iter(self.old.agents.values()))
        assert isinstance(first, Agent)
        self.handle = self.old.enqueue(first, **options)
        return self.handle

    def deploy(self, on_change: OnChange, **changes: Any) -> None:
        self.new = Drain(self.database, *self.make("new", on_change, **changes))
        self.new.wake_ups = self.old.wake_ups

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.old.do(self.old.wake_ups.pop(0))

    @property
    def run_id(self) -> str:
        """Of the run whose agent changes."""
        return next(run.id for run in self.old.client.runs() if run.agent == "test")

    @property
    def it(self) -> Handle:
        return self.old.client.handle(self.run_id)

    def time_passes(self, drain: Drain) -> None:
        """All that sweeps bring is done, until they bring nothing more."""
        for _ in range(8):
            drain.age(70)
            drain.sweep()
            drain.work()

    def starts(self, drain: Drain) -> None:
        """As a worker does when it starts, and each 15 s."""
        says_alive(self.database, drain)
        wake_outdated(drain.engine, is_new=True)
        drain.sweep()


def says_alive(database: Database, drain: Drain) -> None:
    versions = {name: agent.version for name, agent in drain.agents.items()}
    with database.autocommit() as connection:
        name = f"w@{id(drain)}:1"
        leases.seen(connection, name, pool="thread", queues=["agentq"], agents=[*versions], versions=versions)


def is_gone(database: Database, drain: Drain) -> None:
    with database.autocommit() as connection:
        leases.gone(connection, f"w@{id(drain)}:1")


def events(handle: Handle, *kinds: str) -> list[tuple[str, dict[str, Any]]]:
    return [(event.type, event.data) for event in handle.events(follow=False) if event.type in kinds]


CHANGES = ("agent.changed", "agent.held", "agent.adopted")

# ---------------------------------------------------------------------------------------------- moments


def after_the_model(deploy: Deploy) -> None:
    """Its single call is next, which has no row of its own."""
    deploy.enqueue()
    deploy.step()


def after_a_turn(deploy: Deploy) -> None:
    deploy.enqueue()
    deploy.step(2)


def in_a_batch(deploy: Deploy) -> None:
    """Opened, with its first call back."""
    deploy.enqueue()
    while not isinstance(deploy.old.wake_ups[0], BatchMessage):
        deploy.step()
    deploy.step(2)


def before_a_batch(deploy: Deploy) -> None:
    deploy.enqueue()
    deploy.step()


def approved(deploy: Deploy) -> None:
    deploy.enqueue()
    deploy.old.work()
    deploy.handle.approve("call_0")


def completed_outside(deploy: Deploy) -> None:
    deploy.enqueue()
    deploy.old.work()
    deploy.handle.complete("call_0", "from outside")


def in_a_backoff(deploy: Deploy) -> None:
    deploy.enqueue()
    deploy.old.work()
    deploy.old.age(70)
    deploy.old.sweep()


def in_a_sub_agent(deploy: Deploy) -> None:
    deploy.enqueue()
    deploy.step(3)
    assert deploy.it.run().phase == "tools"


@dataclass(frozen=True)
class Moment:
    """``ran`` are the calls that come after it, ``at`` is the phase."""

    reach: Callable[[Deploy], None]
    make: Make
    after: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    phase: str = "tools"


MOMENTS = (
    Moment(after_the_model, plain(acts(1)), after=(0,)),
    Moment(after_a_turn, plain(acts(1)), before=(0,), phase="recall"),
    Moment(before_a_batch, plain(acts(3)), after=(0, 1, 2)),
    Moment(in_a_batch, plain(acts(3)), before=(0,), after=(1, 2)),
    Moment(approved, plain(acts(1), approve=["act"]), after=(0,)),
    Moment(completed_outside, plain(Call("hand_over", {"n": 7}, id="call_0")), before=(7,), phase="recall"),
    Moment(in_a_backoff, plain(fault="overloaded"), phase="model"),
    Moment(in_a_sub_agent, with_helper(acts(1)), after=(0,)),
)
moments = pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.reach.__name__)


def reached(database: Database, moment: Moment, on_change: OnChange, **changes: Any) -> Deploy:
    deploy = Deploy(database, moment.make)
    moment.reach(deploy)
    assert ran == [("old", n) for n in moment.before]
    deploy.deploy(on_change, **changes)
    assert deploy.it.run().phase == moment.phase
    return deploy


def versions(deploy: Deploy) -> tuple[str, str]:
    return deploy.old.agents["test"].version, deploy.new.agents["test"].version


# ---------------------------------------------------------------------------------------------- continue


@moments
def test_a_run_goes_on_with_the_new_code_and_says_so_once(database: Database, moment: Moment) -> None:
    deploy = reached(database, moment, "continue")
    old, new = versions(deploy)
    assert deploy.it.run().agent_version == old
    deploy.new.work()
    assert deploy.handle.result().text == "done"
    assert ran == [("old", n) for n in moment.before] + [("new", n) for n in moment.after]
    assert events(deploy.it, *CHANGES) == [("agent.changed", {"from": old, "to": new})]
    assert deploy.it.run().agent_version == new
    assert_over(database, deploy.handle)


@pytest.mark.parametrize("on_change", ["continue", "hold", "fail"])
def test_a_run_that_nobody_has_begun_has_no_version_yet(database: Database, on_change: OnChange) -> None:
    deploy = Deploy(database, plain(acts(2)))
    deploy.enqueue()
    deploy.deploy(on_change)
    assert deploy.it.run().agent_version is None
    deploy.new.work()
    assert deploy.handle.result().text == "done"
    assert deploy.it.run().agent_version == deploy.new.agents["test"].version
    assert events(deploy.it, *CHANGES) == []


def test_a_producer_that_does_not_have_the_agent_leaves_the_version_to_the_first_step(database: Database) -> None:
    worker = Drain(database, *plain(acts(1))("new"))
    handle = Drain(database).client.enqueue("test", "go", allow_unknown=True)
    worker.engine.run_step(handle.id, 0)
    assert handle.run().agent_version == worker.agents["test"].version


def test_a_run_of_a_release_that_knew_no_versions_takes_the_first_it_meets(database: Database) -> None:
    deploy = reached(database, MOMENTS[0], "fail")
    with database.autocommit() as connection:
        connection.execute("update agentq.runs set agent_version = null")
    deploy.new.work()
    assert deploy.handle.result().text == "done"
    assert deploy.it.run().agent_version == versions(deploy)[1]


def test_the_version_costs_no_statement_and_no_round_trip(database: Database) -> None:
    found = []
    for on_change in ("continue", "hold"):
        drain = Drain(database, agent := plain(acts(1))("new", on_change)[0])  # type: ignore[arg-type]
        drain.enqueue(agent)
        with counted(database) as counts:
            drain.work()
        found.append(dict(counts))
    assert found[0] == found[1] == {"claims": 3, "reads": 1, "writes": 3, "commits": 3}


def test_a_change_that_does_not_count_is_none(database: Database) -> None:
    deploy = reached(
        database, MOMENTS[0], "fail", instructions="in old words", limits={"model_calls": 9}, model_timeout_secs=5
    )
    deploy.new.work()
    assert deploy.handle.result().text == "done"
    assert events(deploy.it, *CHANGES) == []


def test_a_version_of_ones_own_decides_what_is_a_change(database: Database) -> None:
    deploy = Deploy(database, plain(acts(1), version="7"))
    after_the_model(deploy)
    deploy.deploy("fail")
    deploy.new.work()
    assert deploy.handle.result().text == "done"


def test_a_death_before_the_commit_tells_of_the_change_once(database: Database) -> None:
    deploy = reached(database, MOMENTS[1], "continue")
    died: list[str] = []

    def probe(point: str, phase: str) -> None:
        if point in ("effect", "committed") and point not in died:
            died.append(point)
            raise Died

    dying = Drain(database, *deploy.make("new"), probe=probe)
    dying.wake_ups = deploy.new.wake_ups
    for _ in range(4):
        with suppress(Died):
            dying.work()
        dying.age(20)
        dying.sweep()
    assert deploy.handle.result().text == "done"
    assert died == ["effect", "committed"]
    assert [kind for kind, _ in events(deploy.it, *CHANGES)] == ["agent.changed"]


# ---------------------------------------------------------------------------------------------- hold


@moments
def test_a_held_run_is_left_alone_without_messages_until_a_worker_of_its_version_comes(
    database: Database, moment: Moment
) -> None:
    deploy = reached(database, moment, "hold")
    old, new = versions(deploy)
    deploy.new.work()
    run = deploy.it.run()
    assert (run.agent_version, run.outdated_by, run.status) == (old, new, "running")
    assert run.outdated_at is not None
    assert events(deploy.it, *CHANGES) == [("agent.held", {"from": old, "to": new})]
    deploy.new.sent.clear()
    deploy.time_passes(deploy.new)
    # A batch's calls are looked at once a minute, a step is not looked at at all.
    assert len(deploy.new.sent) <= (2 * 8 if moment.reach is in_a_batch else 0)
    assert ran == [("old", n) for n in moment.before]
    assert deploy.it.run().seq == run.seq
    assert deploy.it.run().outdated_at == run.outdated_at
    deploy.starts(deploy.old)
    deploy.old.work()
    deploy.time_passes(deploy.old)
    assert deploy.handle.result().text == "done"
    assert ran == [("old", n) for n in moment.before + moment.after]
    assert deploy.it.run().agent_version == old
    assert deploy.it.run().outdated_at is None
    assert_over(database, deploy.handle)


@moments
def test_a_held_run_that_is_adopted_goes_on_with_the_new_code(database: Database, moment: Moment) -> None:
    deploy = reached(database, moment, "hold")
    old, new = versions(deploy)
    deploy.new.work()
    deploy.it.adopt(by="eva")
    deploy.new.sweep()
    deploy.new.work()
    assert deploy.handle.result().text == "done"
    assert ran == [("old", n) for n in moment.before] + [("new", n) for n in moment.after]
    assert deploy.it.run().agent_version == new
    told = [("agent.adopted", {"from": old, "to": new, "by": "eva"})]
    assert [event for event in events(deploy.it, *CHANGES) if event[0] != "agent.held"] == told
    assert [event.number for event in deploy.it.events(follow=False)] == [
        *range(1, len([*deploy.it.events(follow=False)]) + 1)
    ]
    assert_over(database, deploy.handle)


@moments
def test_a_held_run_can_be_cancelled_at_once(database: Database, moment: Moment) -> None:
    deploy = reached(database, moment, "hold")
    deploy.new.work()
    deploy.handle.cancel()
    deploy.new.work()
    assert deploy.handle.status() == "cancelled"
    assert deploy.it.status() == "cancelled"
    assert deploy.it.run().outdated_at is None
    assert_over(database, deploy.it)


@moments
def test_a_held_run_is_found_and_told_and_is_not_taken_for_stuck(database: Database, moment: Moment) -> None:
    deploy = reached(database, moment, "hold")
    old, new = versions(deploy)
    deploy.new.work()
    for seconds in (0, 3600):
        deploy.new.age(seconds, past_a_crash=True)
        waits = deploy.it.why().waiting_for
        assert waits[0].kind == "version"
        for text in (f"version {old} of agent 'test'", f"changed, to version {new}"):
            assert text in waits[0].what
        assert f"agentq runs adopt {deploy.run_id}" in waits[0].moves
        with database.autocommit() as connection:
            assert stuck.stuck(connection) == []
            (found,) = outdated.outdated(connection)
        assert (found.agent, found.agent_version, found.outdated_by, found.runs) == ("test", old, new, 1)
        assert (found.oldest, found.has_worker) == (deploy.run_id, False)
    assert [run.id for run in deploy.new.client.runs(outdated=True)] == [deploy.run_id]


def test_what_comes_next_is_named(database: Database) -> None:
    for moment, name in ((MOMENTS[0], "act (call_0)"), (MOMENTS[1], "the recall or model call")):
        deploy = reached(database, moment, "hold")
        deploy.new.work()
        assert f"to go on with {name}: " in deploy.it.why().waiting_for[0].what
        deploy.it.cancel()
        with database.autocommit() as connection:
            connection.execute("delete from agentq.runs")
        ran.clear()


def test_while_old_workers_live_a_run_goes_on_with_them_soon(database: Database) -> None:
    deploy = reached(database, MOMENTS[0], "hold")
    says_alive(database, deploy.old)
    turns = 0
    while not deploy.handle.run().is_terminal:
        turns += 1
        # The new one is always the first.
        if deploy.new.wake_ups:
            waiting = list(deploy.new.wake_ups)
            deploy.new.work()
            assert "a running worker has its version" in deploy.it.why().waiting_for[0].moves
            deploy.new.age(1.1)
            deploy.old.sweep()
            assert deploy.old.wake_ups == waiting
            deploy.step()
    assert turns == 2
    assert ran == [("old", 0)]
    held = [kind for kind, _ in events(deploy.it, *CHANGES)]
    assert held == ["agent.held", "agent.held"]


def test_while_old_workers_live_calls_of_a_batch_go_on_with_them_soon(database: Database) -> None:
    deploy = reached(database, MOMENTS[3], "hold")
    says_alive(database, deploy.old)
    for _ in range(3):
        waiting = list(deploy.new.wake_ups)
        assert len(waiting) == 2
        deploy.new.work()
        deploy.new.age(1.1)
        deploy.old.sweep()
        assert sorted(map(str, deploy.old.wake_ups)) == sorted(map(str, waiting))
    deploy.old.work()
    assert ran == [("old", n) for n in range(3)]


@pytest.mark.parametrize("last", [acts(1)[0], Call("hand_over", {"n": 0}, id="call_0")], ids=["done", "handed over"])
def test_calls_of_a_batch_that_old_workers_have_come_to_are_not_held_any_more(database: Database, last: Call) -> None:
    waits = Call("hand_over", {"n": 9}, id="call_9")
    deploy = Deploy(database, plain([waits, last]))
    deploy.enqueue()
    while not isinstance(deploy.old.wake_ups[0], BatchMessage):
        deploy.step()
    deploy.step(2)
    deploy.deploy("hold")
    deploy.new.work()
    assert [run.id for run in deploy.new.client.runs(outdated=True)] == [deploy.run_id]
    deploy.time_passes(deploy.old)
    assert ran == [("old", 9), ("old", 0)]
    assert deploy.it.run().outdated_at is None
    assert {wait.kind for wait in deploy.it.why().waiting_for} == {"person"}
    with pytest.raises(RunNotHeldError):
        deploy.it.adopt()


def test_the_longer_nobody_takes_it_the_more_seldom_it_is_announced(database: Database) -> None:
    deploy = reached(database, MOMENTS[0], "hold")
    gaps: list[float] = []
    for _ in range(16):
        says_alive(database, deploy.old)
        deploy.new.work()
        run = deploy.it.run()
        assert run.due_at is not None
        with database.autocommit() as connection:
            gap = connection.execute("select extract(epoch from sweep_at - now()) from agentq.runs").scalar()
            connection.execute(
                "update agentq.runs set due_at = now(), sweep_at = now(), sweep_look_at = now(),"
                " outdated_at = outdated_at - make_interval(secs => %s)",
                (gap,),
            )
        gaps.append(float(gap))
        deploy.new.sweep()
    assert gaps[0] < 1.5
    assert all(later > earlier - 0.5 for earlier, later in pairwise(gaps))
    assert 55 < gaps[-1] <= 60
    # It is told of once.
    assert [kind for kind, _ in events(deploy.it, *CHANGES)] == ["agent.held"]


def test_when_the_last_old_worker_has_gone_it_is_announced_no_more(database: Database) -> None:
    deploy = reached(database, MOMENTS[0], "hold")
    says_alive(database, deploy.old)
    deploy.new.work()
    is_gone(database, deploy.old)
    deploy.time_passes(deploy.new)
    deploy.new.sent.clear()
    deploy.time_passes(deploy.new)
    assert deploy.new.sent == []
    assert "a worker with the old code takes it" in deploy.it.why().waiting_for[0].moves


def test_a_third_version_that_holds_too_says_that_it_is_the_one_now(database: Database) -> None:
    deploy = reached(database, MOMENTS[0], "hold")
    deploy.new.work()
    third = Drain(database, *deploy.make("new", "hold", instructions="in newest words"))
    assert wake_outdated(third.engine) == 0
    assert wake_outdated(third.engine, is_new=True) == 1
    third.sweep()
    third.work()
    assert deploy.it.run().outdated_by == third.agents["test"].version
    # The same again changes nothing, so that workers that restart do not wake what they would leave alone.
    assert wake_outdated(third.engine, is_new=True) == 0
    deploy.it.adopt()
    third.sweep()
    third.work()
    assert deploy.handle.result().text == "done"


@pytest.mark.parametrize("on_change", ["continue", "fail"])
def test_a_deploy_that_holds_no_more_takes_the_held_ones_up(database: Database, on_change: OnChange) -> None:
    deploy = reached(database, MOMENTS[0], "hold")
    deploy.new.work()
    third = Drain(database, *deploy.make("new", on_change))
    deploy.starts(third)
    third.work()
    assert deploy.handle.status() == ("completed" if on_change == "continue" else "failed")


def test_all_held_runs_of_an_agent_are_adopted_and_no_others(database: Database) -> None:
    deploy = Deploy(database, plain(acts(1)))
    handles = [deploy.enqueue() for _ in range(5)]
    deploy.step(5)
    deploy.deploy("hold")
    untouched = deploy.enqueue()
    other = Drain(database, Agent("other", model=Scripted(["x"])))
    other.enqueue(other.client.agents["other"])  # type: ignore[arg-type]
    deploy.new.work()
    assert untouched.result().text == "done"
    assert deploy.new.client.adopt("other") == 0
    assert deploy.new.client.adopt("test") == 5
    assert deploy.new.client.adopt("test") == 0
    deploy.new.sweep()
    deploy.new.work()
    assert [handle.result().text for handle in handles] == ["done"] * 5


def test_what_is_not_held_is_not_adopted(database: Database) -> None:
    deploy = reached(database, MOMENTS[0], "continue")
    with pytest.raises(RunNotHeldError, match="is running, and not held"):
        deploy.it.adopt()
    deploy.new.work()
    with pytest.raises(RunNotHeldError, match="is completed"):
        deploy.it.adopt()
    with pytest.raises(RunNotFoundError):
        deploy.new.client.handle("run_nope").adopt()


def test_a_run_that_is_adopted_while_a_worker_looks_at_it_is_not_held_again(database: Database) -> None:
    deploy = reached(database, MOMENTS[0], "hold")
    deploy.new.work()
    wake_outdated(deploy.old.engine)
    leave = outdated.leave

    def adopted_before(*args: Any, **options: Any) -> Any:
        deploy.it.adopt()
        return leave(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outdated, "leave", adopted_before)
        deploy.new.sweep()
        deploy.new.do(deploy.new.wake_ups.pop(0))
    assert deploy.it.run().outdated_at is None
    deploy.new.work()
    assert deploy.handle.result().text == "done"


@pytest.mark.parametrize("point", ["hold", "adopt"])
def test_a_death_in_the_middle_leaves_a_run_that_can_be_adopted(database: Database, point: str) -> None:
    """Each is one transaction: rolled back, the lease runs out, or the run is as it was."""
    deploy = reached(database, MOMENTS[0], "hold")
    statement = {"hold": "leave", "adopt": "adopt_run"}[point]
    real = getattr(outdated, statement)

    def dies(*args: Any, **options: Any) -> Any:
        real(*args, **options)
        raise Died

    if point == "adopt":
        deploy.new.work()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outdated, statement, dies)
        with suppress(Died):
            deploy.new.work() if point == "hold" else deploy.it.adopt()
    deploy.time_passes(deploy.new)
    assert deploy.it.run().outdated_at is not None
    # Who died with a claim of an unsafe tool may have begun it, for all that is known.
    deploy.it.adopt()
    deploy.new.sweep()
    deploy.new.work()
    assert deploy.handle.result().text == "done"
    assert codes(deploy.handle) == (["interrupted"] if point == "hold" else [None])


def test_a_held_run_ends_at_its_time_limit(database: Database) -> None:
    deploy = Deploy(database, plain(acts(1), limits={"run_secs": 30}))
    after_the_model(deploy)
    deploy.deploy("hold")
    deploy.new.work()
    with database.autocommit() as connection:
        connection.execute("update agentq.runs set deadline_at = now(), created_at = created_at - interval '40 s'")
    deploy.new.sweep()
    assert deploy.handle.run().error is not None
    assert deploy.handle.run().error.code == "limit_exceeded"
    assert deploy.handle.run().outdated_at is None
    assert_over(database, deploy.handle)


def test_a_cancel_that_was_asked_for_while_a_worker_had_it_is_heard(database: Database) -> None:
    deploy = reached(database, MOMENTS[0], "hold")
    leave = outdated.leave

    def cancelled_before(*args: Any, **options: Any) -> Any:
        deploy.it.cancel()
        return leave(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outdated, "leave", cancelled_before)
        deploy.new.work()
    assert deploy.handle.status() == "cancelled"
    assert_over(database, deploy.handle)


# ---------------------------------------------------------------------------------------------- fail


@moments
def test_a_run_ends_with_a_code_and_each_open_call_has_its_result(database: Database, moment: Moment) -> None:
    deploy = reached(database, moment, "fail")
    old, new = versions(deploy)
    deploy.new.work()
    run = deploy.it.run()
    assert run.error is not None
    assert (run.status, run.error.code) == ("failed", "agent_changed")
    assert run.error.details == {"from": old, "to": new}
    assert f"from version {old} to {new}" in run.error.message
    with pytest.raises(RunFailedError) as failed:
        deploy.it.result()
    assert failed.value.code == "agent_changed"
    assert ran == [("old", n) for n in moment.before]
    results = [message.result for message in deploy.it.messages() if isinstance(message, ToolMessage)]
    assert [result.code for result in results[len(moment.before) :]] == ["cancelled"] * len(moment.after)
    assert_over(database, deploy.it)
    if moment.reach is in_a_sub_agent:
        # The agent that asked hears of it, and goes on.
        assert deploy.handle.result().text == "done"
        assert codes(deploy.handle) == ["agent_changed"]


def test_a_call_that_is_running_with_the_old_code_is_told_as_interrupted(database: Database) -> None:
    deploy = Deploy(database, plain(acts(3)))
    deploy.enqueue()
    deploy.step(3)
    first = deploy.old.wake_ups.pop(0)
    deploy.deploy("fail")

    def ends_the_run(point: str, phase: str) -> None:
        if (point, phase) == ("effect", "call"):
            deploy.new.do(deploy.new.wake_ups.pop(0))

    slow = Drain(database, *deploy.make("old"), probe=ends_the_run)
    slow.do(first)
    deploy.new.work()
    assert deploy.handle.run().error is not None
    assert codes(deploy.handle) == ["interrupted", "cancelled", "cancelled"]
    assert_over(database, deploy.handle)


def test_who_retries_such_a_run_means_the_agent_as_it_is(database: Database) -> None:
    deploy = reached(database, MOMENTS[0], "fail")
    deploy.new.work()
    assert deploy.handle.status() == "failed"
    deploy.handle.retry()
    deploy.new.work()
    assert deploy.handle.result().text == "done"
    assert deploy.it.run().agent_version == versions(deploy)[1]


def test_a_run_that_failed_for_another_reason_is_retried_with_its_version(database: Database) -> None:
    deploy = Deploy(database, plain(fault="quota_exceeded"))
    deploy.enqueue()
    deploy.old.work()
    assert deploy.handle.status() == "failed"
    deploy.deploy("fail")
    deploy.handle.retry()
    deploy.new.work()
    with pytest.raises(RunFailedError, match="has changed since the run began"):
        deploy.handle.result()


def test_the_next_run_of_a_thread_has_the_version_of_its_time(database: Database) -> None:
    deploy = Deploy(database, plain("done"))
    first = deploy.enqueue(thread="t")
    deploy.old.work()
    deploy.deploy("fail")
    second = deploy.enqueue(thread="t")
    deploy.new.work()
    assert second.result().text == "done"
    assert (first.run().agent_version, second.run().agent_version) == versions(deploy)
