"""Whatever happens to runs, in whatever order and at whatever moment: what must hold, holds, and every run ends."""

import logging
import os
from collections.abc import Iterator
from urllib.parse import quote

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentq.storage.database import Database
from tests.engine import clock
from tests.engine import world as w
from tests.engine.mishaps import Mishap, Moment, ObservedDatabase
from tests.engine.scripts import BUG, CALLS, EMPTY, OVERLOADED, REFUSED, Definition
from tests.engine.world import STRANGER, WORKERS, World
from tests.services import Services

# A longer search than in the suite: make test-machine.
EXAMPLES = int(os.environ.get("AGENTQ_TEST_MACHINE_EXAMPLES", "0"))
SEARCH = settings(
    max_examples=EXAMPLES or 12,
    stateful_step_count=80 if EXAMPLES else 40,
    # The suite looks at the same examples every time.
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)

WHICH = st.integers(0, 30)
# Mostly one that can do the work.
WORKER = st.sampled_from([0, 0, 1, 1, STRANGER])
ANY_WORKER = st.integers(0, WORKERS - 1)
# A lease is 15 s; a wake-up is sent again after 5 s, or up to 60 s.
SECS = st.sampled_from([1, 6, 14, 20, 70])

CALLED = st.one_of(
    st.lists(st.sampled_from(CALLS), min_size=1, max_size=1),
    st.lists(st.sampled_from(CALLS), min_size=1, max_size=10),
    st.lists(st.sampled_from(("safe", "unsafe")), min_size=1, max_size=12),
    st.lists(st.sampled_from(("unsafe", "gated", "timed", "asking")), min_size=1, max_size=4),
    st.lists(st.sampled_from(("timed", "asking")), min_size=1, max_size=1),
    st.sampled_from((["quick"], ["quick_safe"], ["quick", "unsafe"])),
    st.lists(st.sampled_from(("safe", "unsafe", "child")), min_size=1, max_size=5),
    st.lists(st.sampled_from(("safe", "unsafe")), min_size=9, max_size=12).map(lambda calls: ["child", *calls]),
).map(tuple)
TURN = st.one_of(CALLED, CALLED, CALLED, CALLED, st.sampled_from([EMPTY, OVERLOADED, BUG, REFUSED]))
SCRIPT = st.lists(TURN, min_size=1, max_size=3).map(tuple)
LIMITS = st.one_of(
    st.just(()),
    st.just(()),
    st.tuples(st.tuples(st.sampled_from(["model_calls", "tool_calls", "tokens"]), st.integers(1, 8))),
)
DEFINITION = st.builds(
    Definition,
    turns=SCRIPT,
    child=st.one_of(st.none(), st.just(()), SCRIPT, SCRIPT),
    limits=LIMITS,
    recalls=st.booleans(),
    fails=st.booleans(),
    on_thread=st.booleans(),
    places=st.sampled_from([0, 1, 1, 2]),
    delay_secs=st.sampled_from([0, 0, 0, 30]),
)

ASK = st.builds(w.Ask, DEFINITION)
DELIVER = st.builds(w.Deliver, WORKER, WHICH, st.integers(1, 8))
DELIVER_OLD = st.builds(w.DeliverOld, WORKER, st.integers(0, 4) | WHICH)
DROP = st.builds(w.Drop, WHICH)
AGE = st.builds(w.Age, SECS)
BEAT = st.builds(w.Beat)
SWEEP = st.builds(w.Sweep, ANY_WORKER)
CANCEL = st.builds(w.Cancel, st.integers(0, 20))
DECIDE = st.builds(w.Decide, WHICH, st.sampled_from([*w.ANSWERS]), st.booleans())
ASK_AGAIN = st.builds(w.AskAgain, WHICH)
FOLLOW = st.builds(w.Follow, WHICH, st.sampled_from([*w.ON_WAITING]))
LOST = st.just([w.Age(20), w.Sweep(1)])
MEANWHILE = st.one_of(
    # What takes the work from one that stands still, and then whatever else.
    st.tuples(LOST, st.lists(st.one_of(DELIVER, DELIVER_OLD, CANCEL, DECIDE, AGE, SWEEP), max_size=4)).map(
        lambda parts: tuple(parts[0] + parts[1])
    ),
    # The broker takes it for lost, and it is not.
    st.tuples(st.builds(w.Age, st.sampled_from([1, 20])), st.builds(w.Redeliver, st.just(1))),
    st.lists(st.one_of(DELIVER, DELIVER_OLD, AGE, BEAT, SWEEP, CANCEL, DECIDE, FOLLOW), min_size=1, max_size=5).map(
        tuple
    ),
)
AFTER = st.integers(0, 20)
SOON = st.integers(0, 2)
WHERE = st.sampled_from(["tool", "tool", "model", "probe", "send", "committed", "statement", "locked"])
STRIKES = st.one_of(
    st.builds(Mishap, st.just("dies"), AFTER),
    st.builds(Mishap, st.just("dies"), SOON, at=WHERE),
    st.builds(Mishap, st.just("freezes"), AFTER, MEANWHILE),
    st.builds(Mishap, st.just("freezes"), SOON, MEANWHILE, WHERE),
    st.builds(Mishap, st.just("outage"), AFTER),
)
MISHAP = st.none() | STRIKES

# More would only make the end of each example longer.
MOST_ASKED = 5


class Machine(RuleBasedStateMachine):
    """Each rule lets one thing happen, and may let a mishap befall who does it."""

    def __init__(self, database: ObservedDatabase, eye: psycopg.Connection) -> None:
        super().__init__()
        eye.execute("delete from agentq.runs")
        eye.execute("delete from agentq.threads")
        self.world = World(database, eye)

    @initialize(asks=st.lists(ASK, min_size=1, max_size=3))
    def begin(self, asks: list[w.Ask]) -> None:
        for ask in asks:
            self.world.perform(ask)

    @precondition(lambda self: self.world.asked < MOST_ASKED)
    @rule(ask=ASK, mishap=MISHAP)
    def ask(self, ask: w.Ask, mishap: Mishap | None) -> None:
        self.world.perform(ask, mishap)

    @rule(other=st.one_of(ASK_AGAIN, FOLLOW, DROP, AGE), mishap=MISHAP)
    def something_else(self, other: w.Happening, mishap: Mishap | None) -> None:
        self.world.perform(other, mishap)

    @precondition(lambda self: self.world.waiting)
    @rule(delivery=DELIVER, mishap=STRIKES)
    def deliver(self, delivery: w.Deliver, mishap: Mishap) -> None:
        self.world.perform(delivery, mishap)

    @precondition(lambda self: self.world.waiting)
    @rule(which=WHICH, after=SOON, meanwhile=MEANWHILE)
    def freeze_in_a_tool(self, which: int, after: int, meanwhile: tuple[w.Happening, ...]) -> None:
        self.world.perform(w.Deliver(0, which, 20), Mishap("freezes", after, meanwhile, "tool"))

    @precondition(lambda self: self.world.waiting)
    @rule(
        which=WHICH,
        after=SOON,
        at=st.sampled_from(["tool", "probe"]),
        times=st.sampled_from([1, 2, 4]),
        swept=st.booleans(),
    )
    def lose_workers(self, which: int, after: int, at: Moment, times: int, swept: bool) -> None:
        self.world.perform(w.Deliver(0, which, 20), Mishap("dies", after, at=at))
        for _ in range(1, times):
            self.world.perform(w.Age(20))
            if swept:
                self.world.perform(w.Sweep(1))
            self.world.perform(w.Redeliver(0), Mishap("dies", 0, at=at))
        self.world.perform(w.Age(20))
        self.world.perform(w.Redeliver(1))

    @precondition(lambda self: self.world.waiting)
    @rule(delivery=DELIVER)
    def deliver_in_peace(self, delivery: w.Deliver) -> None:
        self.world.perform(delivery)

    @rule(secs=st.just(0) | SECS, delivery=DELIVER_OLD, mishap=MISHAP)
    def deliver_again(self, secs: int, delivery: w.DeliverOld, mishap: Mishap | None) -> None:
        self.world.perform(w.Age(secs))
        self.world.perform(delivery, mishap)

    @rule(secs=st.just(0) | SECS, sweep=SWEEP, mishap=MISHAP)
    def sweep(self, secs: int, sweep: w.Sweep, mishap: Mishap | None) -> None:
        self.world.perform(w.Age(secs))
        self.world.perform(sweep, mishap)

    @rule(word=st.one_of(DECIDE, DECIDE, DECIDE, CANCEL), mishap=MISHAP)
    def somebody_says(self, word: w.Decide | w.Cancel, mishap: Mishap | None) -> None:
        self.world.perform(word, mishap)

    @precondition(lambda self: self.world.watch.waits_for_a_person())
    @rule(decision=DECIDE, mishap=MISHAP)
    def decide(self, decision: w.Decide, mishap: Mishap | None) -> None:
        self.world.perform(decision, mishap)

    @invariant()
    def what_must_hold_holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.finish()


@pytest.fixture
def eye(database: Database, service_urls: Services) -> Iterator[psycopg.Connection]:
    """A connection of the test's own, which also holds the clock."""
    if service_urls.pooled:
        pytest.skip("the clock is a setting of the session, which a pooler in transaction mode has none of")
    url = database.url
    with psycopg.connect(url, autocommit=True, options=clock.OPTIONS) as connection, clock.standing_still(connection):
        yield connection


@pytest.fixture
def observed(database: Database, eye: psycopg.Connection) -> Iterator[ObservedDatabase]:
    url = f"{database.url}{'&' if '?' in database.url else '?'}options={quote(clock.OPTIONS)}"
    observed = ObservedDatabase(url)
    yield observed
    observed.dispose()


# Making a failing example small takes minutes.
@pytest.mark.timeout(0 if EXAMPLES else 900)
def test_whatever_happens_nothing_is_lost_and_nothing_is_done_twice(
    observed: ObservedDatabase, eye: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    # Thousands of lines on workers that were lost would hide the one example that matters.
    caplog.set_level(logging.CRITICAL, logger="agentq")
    run_state_machine_as_test(lambda: Machine(observed, eye), settings=SEARCH)
