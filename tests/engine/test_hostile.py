"""Bad luck on bad luck: a second thing goes wrong while the first is being repaired, and the promises still hold."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import psycopg
import pytest

from agentq import Agent, Handle, Happened, NotHappened, tool
from agentq.errors import UnavailableError
from agentq.providers.scripted import Call, Scripted
from agentq.recovery import sweep, take_back
from agentq.storage import commits, control
from agentq.storage.database import Database
from tests.engine.drain import Died, Drain
from tests.engine.test_crashes import results
from tests.waiting import eventually

# A single call is run by the tools step itself, several in lanes.
ALONE, BATCH = 1, 2


def dying(on_unknown: Any, calls: int, *, timeout: float = 60, **more: Any) -> tuple[Agent, list[int]]:
    """An agent whose first call's process dies in the tool, once; and the calls its tool has begun."""
    began: list[int] = []

    @tool(on_unknown=on_unknown, timeout=timeout)
    def charge(n: int) -> str:
        """Charge."""
        began.append(n)
        if n == 0 and began.count(0) == 1:
            raise Died
        return f"charged {n}"

    asked = [Call("charge", {"n": n}) for n in range(calls)]
    return Agent("test", model=Scripted([asked, "done"]), tools=[charge], **more), began


def work(drain: Drain) -> None:
    """Do what waits; a process that dies is followed by another."""
    while drain.wake_ups:
        with suppress(Died):
            drain.work()


def sql(drain: Drain, statement: str) -> list[tuple[Any, ...]]:
    with drain.database.autocommit() as connection:
        result = connection.execute(statement)
        return [tuple(row) for row in result] if result.description else []


def forget_claim(drain: Drain, calls: int) -> None:
    """What a crash of Postgres does to the first call's claim, which waited for no fsync (see test_server_crash)."""
    past = "pg_stat_get_bgwriter_stat_reset_time() - interval '1 s'"
    unclaimed = "lease_token = null, lease_until = null, worker = null, attempt = 0, sweep_at = now()"
    if calls == ALONE:
        sql(drain, f"update agentq.runs set {unclaimed}, sweep_look_at = now(), due_at = {past}")
    else:
        announced = f"status = 'announced', announced_at = {past}"
        sql(drain, f"update agentq.tool_calls set {unclaimed}, {announced} where index = 0")


# ---------------------------------------------------------------------------------------------- a person is asked


def test_a_run_cancelled_while_a_call_is_put_before_a_person_ends(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    test, _ = dying("ask", BATCH)
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    work(drain)
    ask = drain.engine.saver.ask

    def cancelled_before(*arguments: Any) -> Any:
        handle.cancel()
        return ask(*arguments)

    monkeypatch.setattr(drain.engine.saver, "ask", cancelled_before)
    drain.age(20)
    drain.sweep()
    work(drain)
    assert handle.status() == "cancelled"


def test_a_call_is_put_before_a_person_once_though_its_sweeper_stood_still_and_another_came(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    test, _ = dying("ask", BATCH)
    drain = Drain(database, test, lease_secs=1.0)
    handle = drain.enqueue(test)
    work(drain)
    drain.age(20)
    stands, goes_on = threading.Event(), threading.Event()
    ask = commits.ask

    def standing_still(*arguments: Any) -> None:
        if threading.current_thread() is one:
            stands.set()
            goes_on.wait(6)
        ask(*arguments)

    monkeypatch.setattr(commits, "ask", standing_still)
    one, two = (threading.Thread(target=drain.sweep) for _ in range(2))
    one.start()
    try:
        assert stands.wait(5)
        lease_is_over = "select 1 from agentq.tool_calls where index = 0 and lease_until < now()"
        eventually(lambda: sql(drain, lease_is_over))
        two.start()
        waits = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        eventually(lambda: not two.is_alive() or sql(drain, waits), within=5)
    finally:
        goes_on.set()
        one.join()
    two.join()
    work(drain)
    assert handle.status() == "waiting"
    assert sql(drain, "select open_calls, asked_calls from agentq.runs") == [(1, 1)]
    assert len(drain.client.approvals()) == 1


# ---------------------------------------------------------------------------------------------- connections, locks


@pytest.mark.parametrize("on_unknown", ["retry", "report"])
def test_a_call_whose_connection_was_cut_before_its_tool_began_is_not_kept_for_its_time_limit(
    database: Database, on_unknown: Literal["retry", "report"]
) -> None:
    began: list[int] = []

    @tool(on_unknown=on_unknown, timeout=3600)
    def long(n: int) -> str:
        """Take up to an hour."""
        began.append(n)
        return f"did {n}"

    test = Agent("test", model=Scripted([[Call("long", {"n": n}) for n in range(2)], "done"]), tools=[long])
    drain = Drain(database, test, probe=once(("claimed", "call"), lambda: cut_connections(database)), lease_secs=2.0)
    handle = drain.enqueue(test)

    def ended() -> bool:
        # Its process lives, so the worker's own sweep would keep the lease.
        sweep(drain.engine, mine=["drain"])
        while drain.wake_ups:
            with suppress(UnavailableError):
                drain.work()
        return handle.run().is_terminal

    eventually(ended, within=8)
    assert [(result.code, result.text) for result in results(handle)] == [(None, "did 0"), (None, "did 1")]
    assert sorted(began) == [0, 1]


@pytest.mark.parametrize("on_unknown", ["retry", "report"])
@pytest.mark.parametrize("calls", [ALONE, BATCH])
@pytest.mark.parametrize("point", ["claimed", "effect"])
def test_a_call_that_ended_with_a_fault_of_ours_is_not_kept_for_its_time_limit(
    database: Database, on_unknown: Literal["retry", "report"], calls: int, point: str
) -> None:
    @tool(on_unknown=on_unknown, timeout=3600)
    def long(n: int) -> str:
        """Take up to an hour."""
        return f"did {n}"

    def fault() -> None:
        raise RuntimeError("a fault of ours")

    test = Agent("test", model=Scripted([[Call("long", {"n": n}) for n in range(calls)], "done"]), tools=[long])
    where = (point, "tools" if calls == ALONE else "call")
    drain = Drain(database, test, probe=once(where, fault))
    handle = drain.enqueue(test)
    for _ in range(10):
        with suppress(RuntimeError):
            drain.work()
        # Its process lives, so the worker's own sweep would keep the lease.
        sweep(drain.engine, mine=["drain"])
    assert handle.status() == "completed"
    first, *others = [result.code for result in results(handle)]
    assert first == (None if on_unknown == "retry" else "interrupted")
    assert set(others) <= {None}


def once(where: tuple[str, str], act: Callable[[], None]) -> Callable[[str, str], None]:
    """A probe that acts the first time it comes there."""
    acted: list[bool] = []

    def probe(point: str, what: str) -> None:
        if (point, what) == where and not acted:
            acted.append(True)
            act()

    return probe


def cut_connections(database: Database) -> None:
    url = database.url
    # Our own is ended too, as the last: behind a pooler it is the very one that others have used.
    is_own = "pid = pg_backend_pid()"
    end = f"select pg_terminate_backend(pid, case when {is_own} then 0 else 5000 end)"
    with psycopg.connect(url, autocommit=True) as connection, pytest.raises(psycopg.errors.AdminShutdown):
        connection.execute(f"{end} from pg_stat_activity where datname = current_database() order by {is_own}")


def test_a_run_whose_row_is_locked_costs_the_others_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same bound on waiting for a lock, but a shorter one.
    shorter = control._LOCK.replace(b"'lock_timeout', '8000'", b"'lock_timeout', '500'")
    assert shorter != control._LOCK
    monkeypatch.setattr(control, "_LOCK", shorter)
    test, _ = dying("retry", ALONE, limits={"run_secs": 60})
    drain = Drain(database, test)
    locked, late = drain.enqueue(test), drain.enqueue(test)
    drain.wake_ups.clear()
    for handle, since in ((locked, 2), (late, 1)):
        over = f"deadline_at = now() - interval '{since} s', sweep_at = now() + interval '1 hour'"
        sql(drain, f"update agentq.runs set {over} where id = '{handle.id}'")
    lost = drain.enqueue(test)
    work(drain)
    sql(drain, f"update agentq.runs set lease_until = now(), lease_look_at = now() where id = '{lost.id}'")
    with database.transaction() as holder:
        holder.execute(f"select 1 from agentq.runs where id = '{locked.id}' for update")
        # An error would tell the worker that Postgres was away: it would leave everybody's leases alone for a while.
        drain.sweep()
        work(drain)
        assert [handle.status() for handle in (locked, late, lost)] == ["queued", "failed", "completed"]
    drain.sweep()
    assert locked.status() == "failed"


# ---------------------------------------------------------------------------------------------- what may have run


@pytest.mark.parametrize("calls", [ALONE, BATCH])
@pytest.mark.parametrize("end", ["cancel", "run_secs"])
def test_a_call_that_may_have_run_is_not_said_to_have_not_run(database: Database, calls: int, end: str) -> None:
    test, began = dying("retry", calls, limits={"run_secs": 600})
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    with pytest.raises(Died):
        drain.work()
    assert 0 in began
    drain.age(20)
    # It is to be done again, but before that the run ends.
    drain.sweep()
    if end == "cancel":
        handle.cancel()
    else:
        sql(drain, "update agentq.runs set created_at = created_at - interval '700 s', deadline_at = now()")
    work(drain)
    drain.sweep()
    assert handle.run().is_terminal
    assert results(handle)[0].code == "interrupted"
    assert "Not run" not in results(handle)[0].text


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_call_whose_claim_postgres_forgot_is_not_said_to_have_not_run_when_the_time_is_over(
    database: Database, calls: int
) -> None:
    test, began = dying("report", calls, limits={"run_secs": 600})
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    with pytest.raises(Died):
        drain.work()
    assert 0 in began
    forget_claim(drain, calls)
    # Late, but found by its next step, and not by the sweep.
    late = "created_at = created_at - interval '700 s', deadline_at = now() + interval '100 s'"
    sql(drain, f"update agentq.runs set {late}")
    drain.wake_ups.clear()
    drain.sweep()
    work(drain)
    # The other call's wake-up is lost, and sent again.
    drain.age(20)
    drain.sweep()
    work(drain)
    assert handle.status() == "failed"
    assert results(handle)[0].code == "interrupted"
    assert "Not run" not in results(handle)[0].text


@pytest.mark.parametrize("calls", [ALONE, BATCH])
@pytest.mark.parametrize("on_unknown", ["report", "ask", "probe"])
def test_a_claim_that_postgres_forgot_stays_unknown_when_a_worker_without_the_agent_hands_the_work_back(
    database: Database, calls: int, on_unknown: Any
) -> None:
    def found(n: int) -> Happened | NotHappened:
        return Happened("found") if n in began else NotHappened()

    test, began = dying(found if on_unknown == "probe" else on_unknown, calls)
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    work(drain)
    forget_claim(drain, calls)
    known = dict(drain.agents)
    drain.agents.clear()
    drain.sweep()
    assert drain.wake_ups
    drain.work()
    drain.agents.update(known)
    drain.age(60)
    drain.sweep()
    work(drain)
    assert began.count(0) == 1
    if on_unknown == "ask":
        assert handle.status() == "waiting"
    else:
        assert handle.result().text == "done"
        first = results(handle)[0]
        assert (first.code, first.text) == (None, "found") if on_unknown == "probe" else first.code == "interrupted"


# ---------------------------------------------------------------------------------------------- whose fault it was


def test_a_worker_that_was_told_to_go_is_no_crash_of_its_step_whatever_came_before(database: Database) -> None:
    deaths: list[bool] = []

    def probe(point: str, what: str) -> None:
        if (point, what) == ("claimed", "model") and len(deaths) < 3:
            deaths.append(True)
            raise Died

    test = Agent("test", model=Scripted(["done"]))
    drain = Drain(database, test, probe=probe)
    handle = drain.enqueue(test)
    for _ in range(2):
        with pytest.raises(Died):
            drain.work()
        drain.age(20)
        drain.sweep()
    with pytest.raises(Died):
        drain.work()
    take_back(drain.engine, "drain", forgive=True)
    work(drain)
    assert handle.status() == "completed"


@pytest.mark.parametrize(("on_unknown", "calls"), [("retry", ALONE), ("retry", BATCH), ("ask", BATCH)])
def test_a_sweeper_that_dies_makes_no_timeout_of_a_crash(
    database: Database, on_unknown: Literal["retry", "ask"], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> Any:
        raise Died

    test, began = dying(on_unknown, calls, timeout=1)
    drain = Drain(database, test, lease_secs=15.0)
    handle = drain.enqueue(test)
    work(drain)
    drain.age(16)
    with monkeypatch.context() as patched:
        patched.setattr("agentq.recovery._verdict", die)
        with pytest.raises(Died):
            drain.sweep()
    drain.age(16)
    drain.sweep()
    work(drain)
    if on_unknown == "ask":
        assert handle.status() == "waiting"
    else:
        assert handle.result().text == "done"
        assert began.count(0) == 2
    assert {result.code for result in results(handle)} == {None}


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_process_that_died_at_once_and_is_buried_late_is_no_timeout(database: Database, calls: int) -> None:
    limit, lease = 5.0, 15.0
    test, began = dying("retry", calls, timeout=limit)
    drain = Drain(database, test, lease_secs=lease)
    handle = drain.enqueue(test)
    work(drain)
    # Postgres was away for longer than the tool could have taken, its last lease included.
    drain.age(2 * (limit + lease))
    assert seconds_since_claim(drain, handle, calls) > limit + lease
    take_back(drain.engine, "drain")
    work(drain)
    assert handle.result().text == "done"
    assert began.count(0) == 2
    assert {result.code for result in results(handle)} == {None}


def seconds_since_claim(drain: Drain, handle: Handle, calls: int) -> float:
    passed = "select extract(epoch from now() - claimed_at)::float from"
    step = f"agentq.runs where id = '{handle.id}'"
    call = f"agentq.tool_calls where run_id = '{handle.id}' and index = 0"
    ((secs,),) = sql(drain, f"{passed} {step if calls == ALONE else call}")
    return float(secs)
