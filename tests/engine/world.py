"""Everything that may happen to runs, one value a happening, done by three processes on one database and one queue."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import psycopg

from agentq import Approve, AssistantMessage, Reject, Respond, RunContext, ThreadBusyError, ToolMessage
from agentq.approvals import Decision
from agentq.busy import OnBusy, OnWaiting
from agentq.errors import ApprovalNotPendingError
from agentq.providers.base import ModelRequest
from agentq.registry import by_name
from agentq.wire import BatchMessage, CallMessage, StepMessage, WakeUp
from tests.engine import clock
from tests.engine.invariants import Watch
from tests.engine.mishaps import Fate, Mishap, ObservedDatabase, Worker
from tests.engine.scripts import ANSWER, GATED, Definition, Reality


@dataclass(frozen=True)
class Ask:
    """A producer enqueues a run of a new agent."""

    definition: Definition


@dataclass(frozen=True)
class AskAgain:
    """A producer that does not know whether it was heard sends the same request."""

    which: int


# A message does something else than to be rejected also where a person is asked.
ON_WAITING: dict[OnBusy, OnWaiting] = {
    "reject": "reject",
    "enqueue": "hold",
    "interrupt": "hold",
    "steer": "deny_and_continue",
}


@dataclass(frozen=True)
class Follow:
    """The next message on a thread, and what it does where that is busy."""

    which: int
    on_busy: OnBusy = "reject"


@dataclass(frozen=True)
class Deliver:
    """A worker gets waiting wake-ups, ``count`` from place ``which`` on."""

    worker: int
    which: int
    count: int = 1


@dataclass(frozen=True)
class DeliverOld:
    """A worker gets one that was sent some time ago, delivered or not; or a chord's body ahead of time."""

    worker: int
    which: int


@dataclass(frozen=True)
class Redeliver:
    """The broker gives the last wake-up to another worker, as it does when a worker is lost."""

    worker: int


@dataclass(frozen=True)
class Drop:
    which: int


@dataclass(frozen=True)
class Age:
    secs: int


@dataclass(frozen=True)
class Beat:
    """Every process renews the leases that it holds."""


@dataclass(frozen=True)
class Sweep:
    worker: int


@dataclass(frozen=True)
class Cancel:
    """Somebody cancels run number ``which``, if there are so many."""

    which: int


Answer = Literal["approve", "reject", "respond", "always", "never"]
ANSWERS: dict[Answer, Decision] = {
    "approve": Approve(),
    "reject": Reject("no"),
    "respond": Respond(ANSWER),
    "always": Approve(sticky=True),
    "never": Reject(sticky=True),
}


@dataclass(frozen=True)
class Decide:
    which: int
    answer: Answer
    late: bool = False


Happening = Ask | AskAgain | Follow | Deliver | DeliverOld | Redeliver | Drop | Age | Beat | Sweep | Cancel | Decide

# Two that know the agents, and one that an operator has started with the wrong AGENTQ_AGENTS.
WORKERS, STRANGER = 3, 2
# How far a run may go on in each of them without a message.
LOCAL_STEPS = (0, 3, 3)


@dataclass
class _Delivery:
    run_id: str
    seq: int
    stalled: bool = False


def _options(definition: Definition) -> dict[str, Any]:
    places = definition.places
    key = {"concurrency_key": f"{places} at once", "concurrency_limit": places} if places else {}
    return {"delay_secs": definition.delay_secs, "priority": "high" if places > 1 else "normal", **key}


class World:
    """``perform`` lets something happen, ``check`` says what of it must not be."""

    def __init__(self, database: ObservedDatabase, eye: psycopg.Connection[Any]) -> None:
        self._fate = Fate(self._struck, self._others_do)
        database.moment = self._fate.moment
        self._eye = eye
        now = lambda: clock.seconds(eye)  # noqa: E731
        self._workers = [Worker(database, self._fate, self._post, now, steps) for steps in LOCAL_STEPS]
        self._asked: list[tuple[Ask, str]] = []
        self._followed = 0
        self._deliveries: list[_Delivery] = []
        # What was written of runs whose worker stood still until its lease was lost: it may add nothing to that.
        self._lost: dict[str, list[tuple[Any, ...]]] = {}
        self.waiting: list[WakeUp] = []
        self._sent: list[WakeUp] = []
        self._delivered: list[WakeUp] = []
        self.reality = Reality(self._at_model, self._at_tool, lambda: self._fate.moment("tool"))
        # How often something befell a process while it was at a run: no more often is anything repeated.
        self.mishaps: Counter[str] = Counter()
        self.watch = Watch(eye, self.reality, self.mishaps)

    # ------------------------------------------------------------------------------------------------ happenings

    @property
    def asked(self) -> int:
        return len(self._asked)

    def perform(self, happening: Happening, mishap: Mishap | None = None) -> None:
        with self._fate.of(mishap):
            self._perform(happening, calm=mishap is None)

    def _perform(self, happening: Happening, *, calm: bool) -> None:  # noqa: C901, PLR0912 - one case a happening
        match happening:
            case Ask(definition):
                self._ask(happening, definition, calm=calm)
            case AskAgain(which) if self._asked:
                self._enqueue(*self._asked[which % len(self._asked)], calm=calm)
            case Follow(which, on_busy):
                self._follow(which, on_busy, calm=calm)
            case Deliver(worker, which, count):
                for _ in range(min(count, len(self.waiting))):
                    if self.waiting:
                        self._deliver(self._workers[worker], self.waiting.pop(which % len(self.waiting)))
            case DeliverOld(worker, which) if self._sent:
                self._deliver(self._workers[worker], self._sent[-1 - which % len(self._sent)])
            case Redeliver(worker) if self._delivered:
                self._deliver(self._workers[worker], self._delivered[-1])
            case Drop(which) if self.waiting:
                self.waiting.pop(which % len(self.waiting))
            case Age(secs):
                clock.go_on(self._eye, secs)
            case Beat():
                for worker in self._workers:
                    worker.heartbeat.renew()
            case Sweep(worker):
                self._workers[worker].sweep()
            case Cancel(which):
                runs = self._ids("select id from agentq.runs order by created_at, parent_run_id, parent_index")
                for (run_id,) in runs[which : which + 1]:
                    self._workers[0].client.handle(run_id).cancel()
            case Decide():
                self._decide(happening, calm=calm)

    def _ask(self, ask: Ask, definition: Definition, *, calm: bool) -> None:
        number = len(self._asked)
        agent = self.reality.agent(f"agent{number}", definition)
        for worker in self._workers:
            worker.client.agents.update(by_name([agent]))
        for worker in self._workers[:STRANGER]:
            worker.agents.update(by_name([agent]))
        self._asked.append((ask, f"agent{number}"))
        self._enqueue(*self._asked[-1], calm=calm)

    def _enqueue(
        self, ask: Ask, name: str, *, calm: bool, key: str = "first", said: str = "go", on_busy: OnBusy = "reject"
    ) -> None:
        thread = f"of {name}" if ask.definition.on_thread else None
        same = self._ids("select id from agentq.runs where agent = %s and idempotency_key = %s", name, key)
        open_run = "select 1 from agentq.runs where thread_id = %s and status in ('queued', 'running', 'waiting')"
        is_busy = bool(self._ids(open_run, thread)) and not same and on_busy == "reject"
        busy: dict[str, Any] = {"on_busy": on_busy, "on_waiting": ON_WAITING[on_busy]} if on_busy != "reject" else {}
        try:
            handle = self._workers[0].client.enqueue(
                name, said, thread=thread, idempotency_key=key, **busy, **_options(ask.definition)
            )
        except ThreadBusyError:
            # In the middle of it, somebody else may have been faster.
            assert is_busy or not calm, "a thread was refused that is free"
        else:
            assert not is_busy or not calm, "a thread was given that is busy"
            assert same in ([], [(handle.id,)]), "one key has two runs"
            if said != "go":
                self.watch.taken.add(said)

    def _follow(self, which: int, on_busy: OnBusy, *, calm: bool) -> None:
        threads = [(ask, name) for ask, name in self._asked if ask.definition.on_thread]
        if not threads:
            return
        ask, name = threads[which % len(threads)]
        self._followed += 1
        said = f"message {self._followed}"
        self._enqueue(ask, name, calm=calm, key=said, said=said, on_busy=on_busy)

    def _decide(self, decision: Decide, *, calm: bool) -> None:
        approvals = self._ids(
            "select a.run_id, a.call_id, a.status, a.kind, a.turn, a.index, coalesce(a.expires_at <= now(), false) "
            "from agentq.approvals a join agentq.runs r on r.id = a.run_id where a.status = 'pending' or %s "
            "order by r.created_at, r.parent_run_id, r.parent_index, a.turn, a.index",
            decision.late,
        )
        if not approvals:
            return
        run_id, call_id, status, kind, turn, index, is_over = approvals[decision.which % len(approvals)]
        handle = self._workers[0].client.handle(run_id)
        try:
            if kind == "outcome":
                key = f"{run_id}:{turn}:{index}"
                happened = self.reality.effects[key] > 0
                handle.settle(call_id, happened=happened, result=f"did {key}" if happened else None)
            else:
                handle.decide({call_id: ANSWERS[decision.answer]})
        except ApprovalNotPendingError:
            assert status != "pending" or is_over or not calm, "a decision was refused that was asked for"
        else:
            assert status == "pending", "a second decision was taken"
            assert not is_over, "a decision was taken too late"

    # ------------------------------------------------------------------------------------------------ the queue

    def _post(self, wake_up: WakeUp) -> None:
        self.waiting.append(wake_up)
        self._sent += [*wake_up.lanes, wake_up.body] if isinstance(wake_up, BatchMessage) else [wake_up]

    def _deliver(self, worker: Worker, wake_up: WakeUp) -> None:
        if isinstance(wake_up, BatchMessage):
            self.waiting += wake_up.lanes
            return
        self._delivered.append(wake_up)
        with self._at(wake_up):
            worker.do(wake_up)

    @contextmanager
    def _at(self, wake_up: StepMessage | CallMessage) -> Iterator[None]:
        self._deliveries.append(_Delivery(wake_up.run_id, wake_up.seq))
        try:
            yield
        finally:
            self._deliveries.pop()
            for run_id, written in self._lost.items():
                self.watch.forbid(self._written(run_id) != written, "a worker wrote that had lost its lease")
            self._lost = {}

    # ------------------------------------------------------------------------------------------------ mishaps

    def _struck(self) -> None:
        self.mishaps.update({delivery.run_id for delivery in self._deliveries})

    def _others_do(self, meanwhile: tuple[Any, ...]) -> None:
        for delivery in self._deliveries:
            delivery.stalled = True
        held = self._leases()
        for happening in meanwhile:
            self.perform(happening)
            self.check()
        lost = {run_id for token, run_id in held.items() if token not in self._leases()}
        swept = any(isinstance(happening, Sweep) for happening in meanwhile)
        self.watch.forbid(lost and not swept, "a lease was taken away, and not by the sweep")
        self._lost = {run_id: self._written(run_id) for run_id in lost}

    def _leases(self) -> dict[UUID, str]:
        """Those that a process believes to hold, and does."""
        tokens = [token for worker in self._workers for token in worker.heartbeat.tokens]
        held = """
            select lease_token, id from agentq.runs where lease_token = any(%(tokens)s) union all
            select lease_token, run_id from agentq.tool_calls where lease_token = any(%(tokens)s)
        """
        return dict(self._eye.execute(held, {"tokens": tokens}).fetchall())

    def _written(self, run_id: str) -> list[tuple[Any, ...]]:
        return self._ids("select seq, status, open_calls, event_count from agentq.runs where id = %s", run_id)

    # ------------------------------------------------------------------------------------------------ what bodies see

    def _at_model(self, request: ModelRequest) -> str:
        delivery = self._deliveries[-1]
        if not delivery.stalled:
            self.watch.forbid(_gaps(request), "a model saw a transcript with gaps")
            held = "select 1 from agentq.runs where id = %s and seq >= %s and lease_token = any(%s)"
            known = self._ids(held, delivery.run_id, delivery.seq, list(self._leases()))
            self.watch.forbid(not known, "a model was asked for a step that is history")
        self._fate.moment("model")
        return delivery.run_id

    def _at_tool(self, name: str, ctx: RunContext) -> None:
        run_id, turn, index = str(ctx.idempotency_key).split(":")
        place = (run_id, int(turn), int(index))
        if not self._deliveries[-1].stalled:
            # With a row of its own, or in that of its run.
            open_call = """
                select 1 from agentq.tool_calls where (run_id, turn, index) = (%s, %s, %s) and status <> 'done'
                union all select 1 from agentq.runs where (id, turn, 0) = (%s, %s, %s) and on_unknown is not null
            """
            self.watch.forbid(not self._ids(open_call, *place, *place), f"{name} ran after its result was saved")
        if name in GATED or ctx.approved:
            approved = """
                select 1 from agentq.approvals where (run_id, turn, index) = (%s, %s, %s)
                    and (status = 'approved' or status = 'expired' and on_expiry = 'approve')
            """
            self.watch.forbid(not self._ids(approved, *place), "a gated call ran that nobody approved")
        self._fate.moment("tool")

    # ------------------------------------------------------------------------------------------------ the end

    def check(self) -> None:
        self.watch.check()

    def finish(self, *, rounds: int = 60) -> None:
        """Let everything come to its end: time passes, people decide, one worker lives."""
        for _ in range(rounds):
            while self.waiting:
                self.perform(Deliver(0, 0))
            # Nobody can decide on what is over.
            self.perform(Sweep(1))
            while self.watch.waits_for_a_person():
                self.perform(Decide(0, "approve"))
            self.check()
            if self.watch.is_quiet():
                return
            self.perform(Age(130))
            self.perform(Sweep(1))
        raise AssertionError(f"something stands still after {rounds} rounds: {self.watch.open_runs()}")

    def _ids(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._eye.execute(query, values)]


def _gaps(request: ModelRequest) -> bool:
    """Whether any call of the transcript has no result of its own right behind the reply, in the order asked."""
    asked: list[str] = []
    for message in request.messages:
        if isinstance(message, ToolMessage):
            if not asked or asked.pop(0) != message.result.call_id:
                return True
        elif asked:
            return True
        elif isinstance(message, AssistantMessage):
            asked = [call.id for call in message.calls]
    return bool(asked)
