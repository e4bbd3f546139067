"""Concurrency keys: never more runs of one at work than it allows, never a free place and a line, whatever happens."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from typing import Any
from unittest.mock import patch

import psycopg
import pytest

from agentq import Agent, Handle, LimitExceededError, RunCancelledError, Settle, tool
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.recovery import let_in_all
from agentq.storage import line
from agentq.storage.database import Database
from agentq.wire import BatchMessage, CallMessage, StepMessage, WakeUp
from tests.engine.counting import counted
from tests.engine.drain import Died, Drain
from tests.waiting import eventually


@tool(idempotent=True)
def act(n: int) -> str:
    """Act."""
    return f"did {n}"


@tool(on_unknown="ask")
def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


TEST = Agent("test", model=Scripted(["done"]))
ONE: dict[str, Any] = {"concurrency_key": "tenant-7", "concurrency_limit": 1}
TWO: dict[str, Any] = {"concurrency_key": "tenant-7", "concurrency_limit": 2}


@pytest.fixture
def drain(database: Database) -> Drain:
    return Drain(database, TEST)


def acts(number: int, name: str = "act") -> list[Call]:
    return [Call(name, {"n": n}, id=f"call_{n}") for n in range(number)]


def at_work(database: Database) -> Counter[str]:
    with database.autocommit() as connection:
        rows = connection.execute("SELECT concurrency_key, count(*) AS n FROM agentq.runs WHERE has_place GROUP BY 1")
        return Counter({row.concurrency_key: row.n for row in rows})


def standing(database: Database) -> list[str]:
    with database.autocommit() as connection:
        return line.standing(connection)


def places(*handles: Handle) -> list[bool | None]:
    return [handle.run().has_place for handle in handles]


def woken(drain: Drain) -> list[str]:
    return [wake_up.run_id for wake_up in drain.sent if isinstance(wake_up, StepMessage | CallMessage)]


# ---------------------------------------------------------------------------------------------- in order


def test_so_many_runs_of_a_key_begin_and_each_end_lets_the_next_in_at_once(drain: Drain) -> None:
    handles = [drain.enqueue(TEST, **TWO) for _ in range(5)]
    assert places(*handles) == [True, True, False, False, False]
    assert woken(drain) == [handle.id for handle in handles[:2]]
    for n in range(5):
        drain.do(drain.wake_ups.pop(0))
        assert handles[n].status() == "completed"
        assert at_work(drain.database)["tenant-7"] == min(2, 4 - n)
    assert woken(drain) == [handle.id for handle in handles]


def test_those_in_line_are_rows_without_messages_that_no_sweep_looks_at(drain: Drain) -> None:
    for _ in range(50):
        drain.enqueue(TEST, **ONE)
    drain.wake_ups.clear()
    drain.age(3600)
    assert drain.sweep() == 1
    assert len(drain.sent) == 2


def test_a_stray_message_begins_nothing_that_has_no_place(drain: Drain) -> None:
    drain.enqueue(TEST, **ONE)
    waits = drain.enqueue(TEST, **ONE)
    drain.engine.run_step(waits.id, 0)
    assert (waits.status(), places(waits)) == ("queued", [False])


def test_the_line_goes_by_priority_then_by_age(drain: Drain) -> None:
    drain.enqueue(TEST, **ONE)
    order = ["normal", "low", "high", "normal", "high", "low"]
    handles = [drain.enqueue(TEST, **ONE, priority=priority) for priority in order]
    drain.work()
    expected = [handles[n].id for n in (2, 4, 0, 3, 1, 5)]
    assert woken(drain)[1:] == expected


def test_the_newest_open_run_says_how_many(drain: Drain) -> None:
    handles = [drain.enqueue(TEST, **ONE) for _ in range(4)]
    newest = drain.enqueue(TEST, **ONE | {"concurrency_limit": 3}, priority="low")
    assert places(*handles, newest) == [True, True, True, False, False]
    fewer = drain.enqueue(TEST, **ONE)
    drain.do(drain.wake_ups.pop(0))
    drain.do(drain.wake_ups.pop(0))
    assert places(handles[2], handles[3], newest, fewer) == [True, False, False, False]
    drain.work()
    assert {run.status for run in drain.client.runs()} == {"completed"}


def test_a_long_line_of_one_key_does_not_delay_another(drain: Drain) -> None:
    drain.client.enqueue_many("test", ["x"] * 1000, **ONE)
    other = drain.enqueue(TEST, concurrency_key="tenant-8", concurrency_limit=1)
    plain = drain.enqueue(TEST)
    drain.sweep()
    assert len(drain.wake_ups) == 3
    for _ in range(3):
        drain.do(drain.wake_ups.pop(0))
    assert (other.status(), plain.status()) == ("completed", "completed")


def test_many_at_once_stand_in_line_in_their_order(drain: Drain) -> None:
    handles = drain.client.enqueue_many("test", ["x"] * 6, **TWO)
    assert places(*handles) == [True, True, False, False, False, False]
    drain.work()
    assert woken(drain) == [handle.id for handle in handles]


def test_the_same_idempotency_key_takes_no_second_place(drain: Drain) -> None:
    first = drain.enqueue(TEST, **TWO, idempotency_key="k")
    again = drain.enqueue(TEST, **TWO, idempotency_key="k")
    assert (again.id, len(drain.sent), at_work(drain.database)["tenant-7"]) == (first.id, 1, 1)


def test_a_run_without_a_key_costs_no_statement_more(database: Database) -> None:
    with_key, without = [Drain(database, TEST) for _ in range(2)]
    counts = []
    for drain, options in ((without, {}), (with_key, ONE)):
        with counted(database) as found:
            drain.enqueue(TEST, **options)
            drain.work()
        counts.append(dict(found))
    assert counts[0] == {"claims": 1, "reads": 1, "writes": 2, "commits": 2}
    # To lock the key and to let in, and at the end to leave before that.
    assert counts[1] == {"claims": 1, "reads": 1, "writes": 2 + 2 + 3, "commits": 2}


# ---------------------------------------------------------------------------------------------- leaving and coming back


def ends(handle: Handle) -> None:
    handle.cancel()


def runs_out(handle: Handle) -> None:
    database = handle.client.database
    with database.autocommit() as connection:
        connection.execute(
            "UPDATE agentq.runs SET created_at = created_at - interval '2 min', "
            "deadline_at = deadline_at - interval '2 min' WHERE id = %s",
            (handle.id,),
        )


def test_a_cancelled_run_gives_its_place_to_the_next(drain: Drain) -> None:
    first, second, third = (drain.enqueue(TEST, **ONE) for _ in range(3))
    second.cancel()
    assert places(first, second, third) == [True, None, False]
    first.cancel()
    assert places(first, second, third) == [None, None, True]
    assert woken(drain) == [first.id, third.id]
    drain.work()
    assert third.status() == "completed"
    assert standing(drain.database) == []


def test_a_run_whose_time_is_over_in_the_line_or_at_work_leaves_it(drain: Drain) -> None:
    first, second, third = (drain.enqueue(TEST, **ONE, limits={"run_secs": 60}) for _ in range(3))
    runs_out(second)
    drain.sweep()
    runs_out(first)
    drain.sweep()
    for handle in (first, second):
        with pytest.raises(LimitExceededError):
            handle.result()
    assert places(third) == [True]
    drain.work()
    assert third.status() == "completed"


def test_a_failed_run_gives_its_place_to_the_next(database: Database) -> None:
    test = Agent("test", model=Scripted([]))
    drain = Drain(database, test)
    handles = [drain.enqueue(test, **ONE) for _ in range(3)]
    drain.work()
    assert [handle.status() for handle in handles] == ["failed"] * 3


GATED = Agent("gated", model=Scripted([acts(2), "done"]), tools=[act], approve=["act"])


def approve(handle: Handle) -> None:
    for approval in handle.client.approvals(run_id=handle.id):  # type: ignore[attr-defined]
        handle.approve(approval.call_id)


def test_a_run_that_waits_for_a_person_leaves_its_place_and_takes_its_turn_when_it_comes_back(
    database: Database,
) -> None:
    drain = Drain(database, TEST, GATED)
    gated, other, third = drain.enqueue(GATED, **ONE), drain.enqueue(TEST, **ONE), drain.enqueue(TEST, **ONE)
    drain.do(drain.wake_ups.pop(0))
    while gated.status() != "waiting":
        drain.do(drain.wake_ups.pop(0))
    assert places(gated, other, third) == [None, True, False]
    # The place is another's now; of those in line it is the oldest.
    approve(gated)
    assert places(gated, other, third) == [False, True, False]
    assert gated.status() == "running"
    (wait,) = gated.why().waiting_for
    assert (wait.kind, wait.what) == ("line", "its turn of key 'tenant-7' (1 at work)")
    drain.do(drain.wake_ups.pop(0))
    assert places(gated, other, third) == [True, None, False]
    drain.work()
    assert [handle.status() for handle in (gated, other, third)] == ["completed"] * 3


def test_a_run_that_comes_back_to_a_free_place_goes_on_at_once(database: Database) -> None:
    drain = Drain(database, GATED)
    gated = drain.enqueue(GATED, **ONE)
    drain.work()
    assert places(gated) == [None]
    approve(gated)
    assert places(gated) == [True]
    drain.work()
    assert gated.status() == "completed"


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("happened", [True, False])
def test_a_run_that_waits_for_word_of_a_lost_call_leaves_its_place_too(
    database: Database, calls: int, happened: bool
) -> None:
    died: list[int] = []

    def probe(point: str, phase: str) -> None:
        # In each tool.
        if (point, phase) == ("effect", "tools" if calls == 1 else "call") and len(died) < calls:
            died.append(1)
            raise Died

    test = Agent("pays", model=Scripted([acts(calls, "pay"), "done"]), tools=[pay])
    drain = Drain(database, test, TEST, probe=probe)
    pays, other = drain.enqueue(test, **ONE), drain.enqueue(TEST, **ONE)
    while pays.status() != "waiting":
        while drain.wake_ups and pays.status() != "waiting":
            with suppress(Died):
                drain.do(drain.wake_ups.pop(0))
        if pays.status() != "waiting":
            assert places(other) == [False]
            drain.age(20)
            drain.sweep()
    assert places(pays, other) == [None, True]
    for approval in drain.client.approvals(run_id=pays.id):
        pays.settle(approval.call_id, happened=happened)
    assert places(pays, other) == [False, True]
    before = len(drain.sent)
    assert {run.id for run in drain.client.runs() if run.lease_until} == set()
    # Nothing of it is sent before the place is free.
    drain.age(3600)
    drain.sweep()
    assert {one.run_id for one in drain.sent[before:] if not isinstance(one, BatchMessage)} <= {other.id}
    drain.work()
    assert [handle.status() for handle in (pays, other)] == ["completed"] * 2


def test_a_run_that_waits_for_its_sub_agent_or_a_retry_holds_its_place(database: Database) -> None:
    helper = Agent("helper", model=Scripted(["helped"]))
    boss = Agent("boss", model=Scripted([Call("helper", {"input": "x"}), "done"]), tools=[helper.as_tool()])
    drain = Drain(database, boss, TEST)
    first, second = drain.enqueue(boss, **ONE, priority="high"), drain.enqueue(TEST, **ONE)
    drain.do(drain.wake_ups.pop(0))
    drain.do(drain.wake_ups.pop(0))
    (child,) = [run for run in drain.client.runs() if run.agent == "helper"]
    assert (child.concurrency_key, child.priority) == (None, "high")
    assert places(first, second) == [True, False]
    drain.work()
    assert [handle.status() for handle in (first, second)] == ["completed"] * 2


def test_a_run_that_is_retried_takes_its_turn(database: Database) -> None:
    drain = Drain(database, TEST)
    first, second = drain.enqueue(TEST, **ONE), drain.enqueue(TEST, **ONE)
    first.cancel()
    assert places(first, second) == [None, True]
    first.retry()
    assert places(first, second) == [False, True]
    drain.work()
    assert [handle.status() for handle in (first, second)] == ["completed"] * 2
    assert woken(drain)[-1] == first.id


def test_a_run_that_a_rewind_ends_gives_its_place_to_the_next(drain: Drain) -> None:
    first, second = drain.enqueue(TEST, **ONE, thread="t"), drain.enqueue(TEST, **ONE)
    drain.client.thread("t").rewind(0)
    assert (first.status(), places(second)) == ("cancelled", [True])
    assert woken(drain) == [first.id, second.id]


def test_calls_that_go_on_together_are_all_out_at_once(database: Database) -> None:
    """Where one decision for all of them lets the run in again."""
    died: list[int] = []

    def probe(point: str, phase: str) -> None:
        if (point, phase) == ("effect", "call") and len(died) < 3:
            died.append(1)
            raise Died

    test = Agent("pays", model=Scripted([acts(3, "pay"), "done"]), tools=[pay])
    drain = Drain(database, test, probe=probe)
    pays = drain.enqueue(test, **ONE)
    while pays.status() != "waiting":
        with suppress(Died):
            drain.work()
        drain.age(20)
        drain.sweep()
    assert places(pays) == [None]
    before = len(drain.sent)
    pays.decide({f"call_{n}": Settle(False) for n in range(3)})
    assert sorted(one.index for one in drain.sent[before:] if isinstance(one, CallMessage)) == [0, 1, 2]
    drain.work()
    assert pays.status() == "completed"


def test_a_run_for_later_takes_a_place_when_it_is_due(drain: Drain) -> None:
    later = drain.enqueue(TEST, **ONE, delay_secs=600)
    first, second = drain.enqueue(TEST, **ONE), drain.enqueue(TEST, **ONE)
    assert places(later, first, second) == [None, True, False]
    drain.age(700)
    drain.sweep()
    # In the order of the enqueue.
    assert places(later, first, second) == [False, True, False]
    drain.work()
    assert woken(drain)[-2:] == [later.id, second.id]


# ---------------------------------------------------------------------------------------------- others' transactions


def test_a_transaction_that_stays_open_holds_up_no_other_run_of_the_key(drain: Drain, database: Database) -> None:
    with psycopg.connect(database.url) as connection:
        theirs = drain.enqueue(TEST, **ONE, connection=connection)
        many = drain.client.enqueue_many("test", ["x", "y"], **ONE, connection=connection)
        ours = [drain.enqueue(TEST, **ONE) for _ in range(3)]
        drain.work()
        assert [handle.status() for handle in ours] == ["completed"] * 3
    drain.sweep()
    assert at_work(database)["tenant-7"] == 1
    drain.work()
    assert [handle.status() for handle in (theirs, *many)] == ["completed"] * 3


def test_a_sweep_does_not_wait_for_a_key_that_somebody_has(drain: Drain, database: Database) -> None:
    with psycopg.connect(database.url) as connection:
        theirs = drain.enqueue(TEST, **ONE, connection=connection)
    with database.transaction() as connection:
        line.let_in(connection, "tenant-7", patience_secs=5)
        drain.sweep()
        assert places(theirs) == [None]
    drain.sweep()
    drain.work()
    assert theirs.status() == "completed"


# ---------------------------------------------------------------------------------------------- deaths


HELPER = Agent("helper", model=Scripted(["helped"]))
LOOP = Agent(
    "loop",
    model=Scripted([acts(1), acts(3), Call("helper", {"input": "x"}), "done"]),
    tools=[act, HELPER.as_tool()],
)
PHASES = ("recall", "model", "tools", "call", "answer")
POINTS = ("claimed", "effect", "committed", "announced")


@pytest.mark.parametrize("local_steps", [0, 64])
@pytest.mark.parametrize(("point", "phase"), list(product(POINTS, PHASES)))
def test_a_death_at_any_moment_leaves_the_key_neither_crowded_nor_standing(
    database: Database, point: str, phase: str, local_steps: int
) -> None:
    seen: Counter[tuple[str, str]] = Counter()

    def probe(*where: str) -> None:
        assert at_work(database)["tenant-7"] <= 2
        seen[where] += 1  # type: ignore[index]
        # Each third time, so that there is an end, too.
        if where == (point, phase) and seen[where] % 3 == 1:
            raise Died

    drain = Drain(database, LOOP, probe=probe, local_steps=local_steps)
    handles = [drain.enqueue(LOOP, **TWO) for _ in range(4)]
    for _ in range(60):
        while drain.wake_ups:
            with suppress(Died):
                drain.work()
            assert standing(database) == []
        if all(handle.run().is_terminal for handle in handles):
            break
        drain.age(20)
        with suppress(Died):
            drain.sweep()
        assert standing(database) == []
    assert [handle.status() for handle in handles] == ["completed"] * 4
    assert at_work(database) == {}


def test_a_producer_that_dies_before_it_sends_leaves_the_first_to_the_sweep(drain: Drain) -> None:
    def dies(wake_up: WakeUp) -> None:
        raise Died

    with patch.object(drain, "send", dies), pytest.raises(Died):
        drain.enqueue(TEST, **ONE)
    second = drain.enqueue(TEST, **ONE)
    drain.age(10)
    drain.sweep()
    drain.work()
    assert second.status() == "completed"


def test_a_key_whose_run_was_deleted_by_hand_is_told_and_goes_on(drain: Drain, database: Database) -> None:
    first, second = drain.enqueue(TEST, **ONE), drain.enqueue(TEST, **ONE)
    with database.autocommit() as connection:
        connection.execute("DELETE FROM agentq.runs WHERE id = %s", (first.id,))
    assert standing(database) == ["tenant-7"]
    assert second.why().is_stuck
    let_in_all(drain.engine)
    assert standing(database) == []
    drain.work()
    assert second.status() == "completed"


# ---------------------------------------------------------------------------------------------- races

THREADS, KEYS, EACH = 20, 3, 12


@contextmanager
def watching(database: Database) -> Iterator[Counter[str]]:
    """The most runs of each key that were ever at work at once."""
    most: Counter[str] = Counter()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            for key, number in at_work(database).items():
                most[key] = max(most[key], number)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


def test_twenty_threads_enqueue_cancel_and_finish_at_once(database: Database) -> None:
    """Without a sweep: no end may forget the next, and no two may let in too many."""
    lock, busy, most = threading.Lock(), Counter[str](), Counter[str]()

    def reply(request: ModelRequest) -> str:
        key = request.messages[0].text  # type: ignore[union-attr]
        with lock:
            busy[key] += 1
            most[key] = max(most[key], busy[key])
        with database.autocommit() as connection:
            connection.execute("SELECT pg_sleep(0.002)")
        with lock:
            busy[key] -= 1
        return "done"

    test = Agent("test", model=Scripted([reply]))
    shared = Database(database.url, pool_size=THREADS + 4)
    drains = [Drain(shared, test) for _ in range(THREADS)]
    handles: dict[int, list[Handle]] = defaultdict(list)

    def work(number: int) -> None:
        drain = drains[number]
        for turn in range(EACH):
            key = f"key {(number + turn) % KEYS}"
            handle = drain.enqueue(test, key, concurrency_key=key, concurrency_limit=2)
            handles[number].append(handle)
            if turn % 5 == 4:
                handle.cancel()
            while drain.wake_ups:
                drain.do(drain.wake_ups.pop(0))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    with watching(database) as seen:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    shared.dispose()
    for number in handles:
        for handle in handles[number]:
            with suppress(RunCancelledError):
                assert handle.result().text == "done"
    assert sum(map(len, handles.values())) == THREADS * EACH
    assert len(most) == KEYS
    assert max(most.values()) <= 2
    assert max(seen.values()) <= 2
    assert at_work(database) == {}


def test_two_ends_and_an_enqueue_between_their_statements_give_each_place_once(
    drain: Drain, database: Database
) -> None:
    """The moment between giving a place back and looking at the line, held open."""
    first, second, third = (drain.enqueue(TEST, **TWO) for _ in range(3))
    with database.transaction() as connection:
        # As an end of a run does it; it stands here, and has the key.
        connection.execute("UPDATE agentq.runs SET has_place = NULL, sweep_at = NULL, status = 'completed', "
                           "finished_at = now(), due_at = NULL WHERE id = %s", (first.id,))  # fmt: skip
        line.let_in(connection, "tenant-7", patience_secs=5)
        meanwhile: list[Handle] = []
        thread = threading.Thread(target=lambda: meanwhile.append(drain.enqueue(TEST, **TWO)))
        thread.start()
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (" \
                "SELECT oid FROM pg_database WHERE datname = current_database())"  # fmt: skip
        eventually(lambda: connection.execute(waits).scalar() == 1, what="the enqueue waits for the key")
    thread.join()
    assert places(second, third, *meanwhile) == [True, True, False]
