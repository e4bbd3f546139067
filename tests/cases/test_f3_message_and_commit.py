"""F3: a message that is early, an orphan, late or never sent changes nothing; the step it is for is done once."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentq import Agent, Handle, RunContext, tool
from agentq.engine import Engine
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.storage import enqueue
from agentq.storage.database import Database
from agentq.wire import BatchMessage, CallMessage, StepMessage, WakeUp
from tests.cases.stored import assert_over, rows
from tests.engine.drain import Died, Drain

STEPS = [(phase, calls) for phase in ("recall", "model", "tools") for calls in (1, 3)]
PLACES = [*STEPS, ("review", 1), ("call", 3)]
# What the sweep waits for a message to be picked up before it sends it again.
FOUND_SECS = 5


class Facts:
    def recall(self, ctx: RunContext, text: str) -> list[str]:
        return ["a fact"]


class World:
    """An agent, what it did, and what has been announced to whom."""

    def __init__(self, database: Database, calls: int, probe: Callable[[str, str], None], *, gated: bool) -> None:
        self.effects: list[str] = []
        self.replies: list[int] = []
        effects, replies = self.effects, self.replies

        @tool
        def act(n: int, ctx: RunContext) -> str:
            """Act, which must not happen twice."""
            effects.append(ctx.idempotency_key)
            return f"did {n}"

        def first(request: ModelRequest) -> list[Call]:
            replies.append(1)
            return [Call("act", {"n": n}) for n in range(calls)]

        def last(request: ModelRequest) -> str:
            replies.append(2)
            return "done"

        self.calls = calls
        self.agent = Agent(
            "test",
            model=Scripted([first, last]),
            tools=[act],
            memory=Facts(),
            approve=["act"] if gated else [],
        )
        self.database = database
        self.drain = Drain(database, self.agent, probe=probe)
        # Another worker, whose probe does nothing.
        self.other = Drain(database, self.agent)

    def work(self, handle: Handle) -> None:
        self.drain.work()
        for approval in self.drain.client.approvals():
            handle.approve(approval.call_id)
            self.drain.work()

    def assert_done_once(self, handle: Handle) -> None:
        assert handle.result().text == "done"
        assert sorted(self.effects) == [f"{handle.id}:1:{n}" for n in range(self.calls)]
        assert self.replies == [1, 2]
        assert_over(self.database, handle)


def early(world: World) -> Iterator[WakeUp]:
    """Every message that the commit which is about to come, or the next ones, could send."""
    for run_id, seq in rows(world.database, "select id, seq from agentq.runs"):
        for ahead in (1, 2):
            yield StepMessage(run_id, seq + ahead)
            for index in range(4):
                yield CallMessage(run_id, seq + ahead, index, "agentq.tools", 60)
        yield CallMessage(run_id, seq, 3, "agentq.tools", 60)


@pytest.mark.parametrize(("phase", "calls"), PLACES)
def test_a_message_that_comes_before_the_commit_it_is_for_does_nothing(
    database: Database, phase: str, calls: int
) -> None:
    came: list[WakeUp] = []

    def probe(point: str, what: str) -> None:
        if (point, what) == ("effect", phase):
            for wake_up in early(world):
                came.append(wake_up)
                world.other.do(wake_up)
            assert world.other.wake_ups == []

    world = World(database, calls, probe, gated=phase == "review")
    handle = world.drain.enqueue(world.agent)
    world.work(handle)
    assert came
    world.assert_done_once(handle)


@contextmanager
def held(engine: Engine, what: str) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Hold the commits of an engine open, right before their end, until told to go on."""
    reached, go_on = threading.Event(), threading.Event()
    database, saver = engine.services.database, engine.saver
    real, enough = database.transaction, saver._enough_for

    @contextmanager
    def transaction() -> Iterator[Any]:
        with real() as connection:
            yield connection
            reached.set()
            assert go_on.wait(30), what

    database.transaction = transaction  # type: ignore[method-assign]
    saver._enough_for = lambda transition: transaction()  # type: ignore[method-assign]
    try:
        yield reached, go_on
    finally:
        database.transaction = real  # type: ignore[method-assign]
        saver._enough_for = enough  # type: ignore[method-assign]


@pytest.mark.parametrize(("phase", "calls"), PLACES)
def test_a_message_that_comes_while_its_commit_is_held_does_nothing(database: Database, phase: str, calls: int) -> None:
    """As if it had been published from inside of the transaction."""
    own = Database(database.url)
    world = World(database, calls, lambda *_: None, gated=phase == "review")
    slow = Drain(own, world.agent)
    handle = world.drain.enqueue(world.agent)
    held_once = False
    try:
        while not handle.run().is_terminal:
            wake_up = world.drain.wake_ups.pop(0) if world.drain.wake_ups else None
            if wake_up is None:
                world.work(handle)
                continue
            kind = "call" if isinstance(wake_up, CallMessage) else handle.run().phase
            if kind == phase and not held_once and not isinstance(wake_up, BatchMessage):
                held_once = True
                with held(slow.engine, kind) as (reached, go_on):
                    saving = threading.Thread(target=slow.do, args=(wake_up,))
                    saving.start()
                    assert reached.wait(30)
                    for message in early(world):
                        if not (isinstance(message, CallMessage) and kind == "call" and message.index != 3):
                            world.other.do(message)
                    assert world.other.wake_ups == []
                    go_on.set()
                    saving.join(30)
                world.drain.wake_ups.extend(slow.wake_ups)
                slow.wake_ups.clear()
            else:
                world.drain.do(wake_up)
        assert held_once
        world.assert_done_once(handle)
    finally:
        own.dispose()


@pytest.mark.parametrize(("phase", "calls"), PLACES)
def test_a_message_whose_commit_never_came_does_nothing_and_the_step_is_repeated(
    database: Database, phase: str, calls: int
) -> None:
    """Published, then rolled back; for a tool that may not be repeated the model is told."""
    orphans: list[WakeUp] = []

    def probe(point: str, what: str) -> None:
        if (point, what) == ("effect", phase) and not orphans:
            orphans.extend(early(world))
            raise Died

    world = World(database, calls, probe, gated=phase == "review")
    handle = world.drain.enqueue(world.agent)
    with pytest.raises(Died):
        world.drain.work()
    for orphan in orphans:
        world.other.do(orphan)
    assert world.other.wake_ups == []
    world.drain.age(16)
    world.drain.sweep()
    for _ in range(3):
        world.work(handle)
        for orphan in orphans:
            if not isinstance(orphan, CallMessage):
                world.other.do(orphan)
        world.drain.wake_ups.extend(world.other.wake_ups)
        world.other.wake_ups.clear()
    assert handle.result().text == "done"
    assert len(world.effects) == len(set(world.effects)) == calls
    assert world.replies == [1, *([1] if phase == "model" else []), 2]
    assert_over(database, handle)


# Of a batch: the message of the step after it, and that of the ninth call, which goes to the lane that comes free.
@pytest.mark.parametrize(
    ("phase", "calls", "commit"), [*((*place, 1) for place in [*STEPS, ("review", 1)]), ("call", 3, 3), ("call", 9, 1)]
)
def test_a_message_lost_between_commit_and_publish_is_sent_by_the_sweep_within_its_bound(
    database: Database, phase: str, calls: int, commit: int
) -> None:
    commits: list[str] = []

    def probe(point: str, what: str) -> None:
        if (point, what) == ("committed", phase):
            commits.append(what)
            if len(commits) == commit:
                raise Died

    world = World(database, calls, probe, gated=phase == "review")
    handle = world.drain.enqueue(world.agent)
    with pytest.raises(Died):
        world.drain.work()
    # What others have sent is in the broker still.
    world.drain.work()
    assert world.drain.wake_ups == []
    world.drain.age(FOUND_SECS - 1)
    assert world.drain.sweep() == 0
    assert not handle.run().is_terminal
    world.drain.age(1.5)
    # A waiting run waits for nobody's message; a batch has one for each of its calls.
    assert world.drain.sweep() == (0 if phase == "review" else calls if phase == "tools" else 1)
    world.work(handle)
    world.assert_done_once(handle)


def test_a_run_whose_first_message_was_lost_with_its_producer_is_found(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(database, 1, lambda *_: None, gated=False)

    def send(wake_up: WakeUp) -> None:
        raise Died

    monkeypatch.setattr(world.drain, "send", send)
    with pytest.raises(Died):
        world.drain.enqueue(world.agent)
    monkeypatch.undo()
    ((run_id,),) = rows(database, "select id from agentq.runs")
    assert world.drain.sweep() == 0
    world.drain.age(FOUND_SECS + 0.5)
    assert world.drain.sweep() == 1
    handle = world.drain.client.handle(run_id)
    world.work(handle)
    world.assert_done_once(handle)


@pytest.fixture
def held_open(database: Database) -> Iterator[Database]:
    """A database of which every use is a transaction."""
    own = Database(database.url)
    own.autocommit = own.transaction  # type: ignore[method-assign]
    yield own
    own.dispose()


@pytest.mark.parametrize("comes", [True, False], ids=["held", "rolled back"])
def test_a_first_message_that_is_earlier_than_its_run_does_nothing(
    database: Database, held_open: Database, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    world = World(database, 1, lambda *_: None, gated=False)
    real = enqueue.insert
    made: list[str] = []

    def insert(*args: Any, **options: Any) -> str:
        made.append(real(*args, **options))
        world.other.do(StepMessage(made[0], 0))
        if not comes:
            raise Died
        return made[0]

    monkeypatch.setattr(enqueue, "insert", insert)
    # One statement is committed with its end; here it is to be held.
    monkeypatch.setattr(world.drain.client, "database", held_open)
    if comes:
        handle = world.drain.enqueue(world.agent)
        world.work(handle)
        world.assert_done_once(handle)
    else:
        with pytest.raises(Died):
            world.drain.enqueue(world.agent)
        world.other.do(StepMessage(made[0], 0))
        assert rows(database, "select id from agentq.runs") == []
    assert world.other.wake_ups == []
