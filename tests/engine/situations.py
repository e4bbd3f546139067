"""Every way in which a run can stand, made with the real loop: for what tells people about it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentq import Agent, Handle, tool
from agentq.providers.scripted import Call, Fault, Scripted
from agentq.storage import leases
from agentq.storage.database import Database
from agentq.wire import BatchMessage, CallMessage
from tests.engine.drain import Died, Drain


@tool
def act(n: int) -> str:
    """Do something outside."""
    return f"did {n}"


@tool(queue="gpu", timeout=7)
def render(n: int) -> str:
    """Render."""
    return f"rendered {n}"


def broken_model(_: Any) -> Any:
    raise ZeroDivisionError


def agent(*steps: Any, name: str = "test", tools: Any = (act, render), **more: Any) -> Agent:
    return Agent(name, model=Scripted([*steps]), tools=[*tools], **more)


def acts(number: int, name: str = "act") -> list[Call]:
    return [Call(name, {"n": n}, id=f"call_{n}") for n in range(number)]


HELPER = agent(acts(1), "helped", name="helper", approve=["act"])


@dataclass
class Stage:
    """A database, the loop on it, and a run at which ``die_at`` kills the process each time it comes there."""

    database: Database
    die_at: list[tuple[str, str]] = field(default_factory=list)

    def start(self, test: Agent, *more: Agent) -> Handle:
        self.drain = Drain(self.database, test, *more, probe=self._probe)
        return self.drain.enqueue(test)

    def _probe(self, point: str, phase: str) -> None:
        if (point, phase) in self.die_at:
            raise Died

    def work(self, test: Agent, *more: Agent) -> Handle:
        """Work it off, until there is nothing to do or the process dies."""
        handle = self.start(test, *more)
        self.go_on()
        return handle

    def go_on(self) -> None:
        try:
            self.drain.work()
        except Died:
            return

    def opened(self, test: Agent) -> Handle:
        """Up to the batch, which is fanned out, with none of its calls taken."""
        handle = self.start(test)
        while not isinstance(self.drain.wake_ups[0], BatchMessage):
            self.drain.do(self.drain.wake_ups.pop(0))
        (batch,) = self.drain.wake_ups
        assert isinstance(batch, BatchMessage)
        self.drain.wake_ups[:] = batch.lanes
        return handle

    def begin_call(self) -> CallMessage:
        """One lane takes its call, and its process is gone in it."""
        self.die_at.append(("claimed", "call"))
        wake_up = self.drain.wake_ups.pop(0)
        assert isinstance(wake_up, CallMessage)
        try:
            self.drain.do(wake_up)
        except Died:
            return wake_up
        raise AssertionError("the call went through")

    def worker(self, *queues: str, agents: tuple[str, ...] = ("test", "boss", "helper")) -> None:
        with self.database.autocommit() as connection:
            leases.seen(
                connection, "w@host:1", pool="thread", queues=queues or ("agentq", "agentq.tools"), agents=agents
            )

    def sql(self, statement: str) -> None:
        with self.database.transaction() as connection:
            connection.execute(statement)


def boss(*more: Call, helper: Agent = HELPER) -> Agent:
    calls = [Call(helper.name, {"input": "x"}, id="call_h"), *more]
    return agent(calls, "done", name="boss", tools=[helper.as_tool(), act])


# ---------------------------------------------------------------------------------------------- ended


def completed(stage: Stage) -> Handle:
    return stage.work(agent("hello"))


def failed(stage: Stage) -> Handle:
    return stage.work(agent(Fault("quota_exceeded", times=None), "never"))


def cancelled(stage: Stage) -> Handle:
    handle = stage.start(agent("never"))
    handle.cancel()
    return handle


def child_not_told_of(stage: Stage) -> Handle:
    """The sub-agent's run has ended, and its process died before the parent's call was answered."""
    stage.worker()
    handle = stage.work(boss(), HELPER)
    child = next(run for run in stage.drain.client.runs() if run.agent == "helper")
    stage.drain.client.handle(child.id).approve("call_0")
    stage.die_at.append(("committed", "model"))
    stage.go_on()
    assert stage.drain.client.handle(child.id).status() == "completed"
    return handle


# ---------------------------------------------------------------------------------------------- a step


def queued(stage: Stage) -> Handle:
    stage.worker()
    return stage.start(agent("hello"))


def queued_without_workers(stage: Stage) -> Handle:
    return stage.start(agent("hello"))


def queued_where_nobody_consumes(stage: Stage) -> Handle:
    stage.worker("agentq.tools")
    return stage.start(agent("hello"))


def for_later(stage: Stage) -> Handle:
    stage.worker()
    stage.drain = Drain(stage.database, test := agent("hello"))
    return stage.drain.enqueue(test, delay_secs=7200)


def in_line(stage: Stage) -> Handle:
    stage.worker()
    stage.drain = Drain(stage.database, test := agent("hello"))
    first, second = (stage.drain.enqueue(test, concurrency_key="k", concurrency_limit=1) for _ in range(2))
    assert first.run().has_place
    return second


def held(stage: Stage) -> Handle:
    stage.worker()
    stage.drain = Drain(stage.database, test := agent("hello"))
    _, second = (stage.drain.enqueue(test, thread="t", on_busy="enqueue") for _ in range(2))
    return second


def agent_nobody_has(stage: Stage) -> Handle:
    stage.worker(agents=("other",))
    handle = stage.start(agent("hello"))
    Drain(stage.database, agent("other", name="other")).do(stage.drain.wake_ups.pop())
    return handle


def model_call(stage: Stage) -> Handle:
    stage.die_at.append(("claimed", "model"))
    return stage.work(agent("hello"))


def model_call_to_be_cancelled(stage: Stage) -> Handle:
    handle = model_call(stage)
    handle.cancel()
    return handle


def lost_step(stage: Stage) -> Handle:
    handle = model_call(stage)
    stage.drain.age(20)
    return handle


def lost_step_with_a_worker(stage: Stage) -> Handle:
    stage.worker()
    return lost_step(stage)


def single_call(stage: Stage) -> Handle:
    stage.die_at.append(("claimed", "tools"))
    return stage.work(agent(acts(1), "done"))


def single_call_announced(stage: Stage) -> Handle:
    stage.worker()
    handle = stage.start(agent(acts(1, "render"), "done"))
    stage.drain.do(stage.drain.wake_ups.pop())
    return handle


def backoff(stage: Stage) -> Handle:
    stage.worker()
    return stage.work(agent(Fault("overloaded", retry_after=60), "hello"))


def backoff_without_workers(stage: Stage) -> Handle:
    return stage.work(agent(Fault("overloaded", retry_after=60), "hello"))


def failed_step(stage: Stage) -> Handle:
    stage.worker()
    return stage.work(agent(broken_model))


# ---------------------------------------------------------------------------------------------- calls


def person(stage: Stage) -> Handle:
    return stage.work(agent(acts(2), "done", approve=["act"]))


def batch(stage: Stage) -> Handle:
    stage.worker()
    return stage.opened(agent(acts(10), "done"))


def batch_on_a_queue_nobody_consumes(stage: Stage) -> Handle:
    stage.worker()
    return stage.opened(agent(acts(2, "render"), "done"))


def call(stage: Stage) -> Handle:
    handle = batch(stage)
    stage.begin_call()
    return handle


def call_of_a_run_to_be_cancelled(stage: Stage) -> Handle:
    handle = call(stage)
    handle.cancel()
    return handle


def lost_call(stage: Stage) -> Handle:
    handle = call(stage)
    stage.drain.age(20)
    return handle


@tool(on_unknown="ask")
def pay(n: int) -> str:
    """Pay; nobody knows what became of it when the worker is lost."""
    return f"paid {n}"


def asked_alone(stage: Stage) -> Handle:
    stage.die_at.append(("claimed", "tools"))
    handle = stage.work(agent(acts(1, "pay"), "done", tools=[pay]))
    stage.drain.age(20)
    stage.drain.sweep()
    return handle


def asked_in_a_batch(stage: Stage) -> Handle:
    stage.worker()
    handle = stage.opened(agent(acts(2, "pay"), "done", tools=[pay]))
    stage.begin_call()
    stage.drain.age(20)
    stage.drain.sweep()
    return handle


def asked_with_all_else_done(stage: Stage) -> Handle:
    handle = asked_in_a_batch(stage)
    stage.die_at.clear()
    stage.go_on()
    return handle


def sub_agent(stage: Stage) -> Handle:
    return stage.work(boss(), HELPER)


def sub_agents_below_sub_agents(stage: Stage) -> Handle:
    levels = [HELPER]
    for number in range(5):
        below = levels[-1]
        asked = Call(below.name, {"input": "x"}, id=f"call_{number}")
        levels.append(agent(asked, "done", name=f"level{number}", tools=[below.as_tool()]))
    return stage.work(levels[-1], *levels[:-1])


@dataclass(frozen=True)
class Situation:
    """How it comes about, and what is told of it: kind and words of each wait, or words of the ending."""

    make: Callable[[Stage], Handle]
    waits: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ended: str | None = None


_FREE = ("pickup", ("a worker to take act (call_0)", "first free one of 1"))
_ASKED = (
    "person",
    ("pay (call_0, key run_", ":1:0), whose worker was lost or stopped: did it happen?", "approvals settle run_"),
)
_LANE = ("lane", ("a free lane for act (call_8): 8 calls run at a time",))
_NO_WORKER = ("worker", ("no worker is running", "start one: agentq worker"))

SITUATIONS = (
    Situation(completed, ended="final_answer"),
    Situation(failed, ended="provider_quota_exceeded: "),
    Situation(cancelled, ended="cancelled"),
    Situation(child_not_told_of, (("family", ("the answer of run run_", "sweep of any running worker passes it on")),)),
    Situation(queued, (("pickup", ("a worker to take the recall or model call", "first free one of 1")),)),
    Situation(queued_without_workers, (_NO_WORKER,)),
    Situation(
        queued_where_nobody_consumes, (("worker", ("queue agentq: no running worker consumes it", "agentq worker")),)
    ),
    Situation(for_later, (("time", ("the time it was enqueued for", "begins it then")),)),
    Situation(in_line, (("line", ("its turn of key 'k' (1 at work)", "the end of one of these")),)),
    Situation(held, (("thread", ("its turn on thread 't', behind run run_", "the end of that run")),)),
    Situation(agent_nobody_has, (("worker", ("has agent 'test'", "agentq worker --agents")),)),
    Situation(model_call, (("step", ("the recall or model call, which worker drain is at", "see to it")),)),
    Situation(model_call_to_be_cancelled, (("step", ("ends the run as cancelled",)),)),
    Situation(lost_step, (("lost", ("worker drain was lost", "start one: agentq worker")),)),
    Situation(lost_step_with_a_worker, (("lost", ("recall or model call", "within seconds")),)),
    Situation(single_call, (("step", ("act (call_0), which worker drain is at",)),)),
    Situation(single_call_announced, (("worker", ("queue gpu", "agentq worker --only tools --queues gpu")),)),
    Situation(backoff, (("time", ("next try of the model call: provider_overloaded at try 1",)),)),
    Situation(backoff_without_workers, (("time", ("provider_overloaded",)), _NO_WORKER)),
    Situation(failed_step, (("time", ("ZeroDivisionError at attempt 1",)),)),
    Situation(
        person,
        (
            ("person", ("decision on act (call_0)", "agentq approvals approve run_")),
            ("person", ("decision on act (call_1)", "call_1 --reason '…'")),
        ),
    ),
    Situation(batch, (_FREE, *[("pickup", ())] * 7, _LANE, ("lane", ("any call before it",)))),
    Situation(
        batch_on_a_queue_nobody_consumes,
        (("worker", ("queue gpu", "for render (call_0)", "--queues gpu")), ("worker", ("for render (call_1)",))),
    ),
    Situation(
        call,
        (("call", ("act (call_0), which worker drain is at", "time limit of 60 s")), *[("pickup", ())] * 7, _LANE,
         ("lane", ())),
    ),
    Situation(
        call_of_a_run_to_be_cancelled,
        (("call", ("ends the run as cancelled",)), *[("pickup", ())] * 7, _LANE, ("lane", ())),
    ),
    Situation(
        lost_call,
        (("lost", ("act (call_0): worker drain was lost", "within seconds")), *[("pickup", ())] * 7, _LANE,
         ("lane", ())),
    ),
    Situation(asked_alone, (_ASKED,)),
    Situation(asked_in_a_batch, (_ASKED, ("pickup", ("pay (call_1)",)))),
    Situation(asked_with_all_else_done, (_ASKED,)),
    Situation(sub_agent, (("run", ("agent helper in run run_", "for call_h")),)),
    Situation(sub_agents_below_sub_agents, (("run", ("agent level3",)),)),
)  # fmt: skip
