"""Whose lease it is: kept for those who live and work, and for nobody else; a locked row holds up no other."""

import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal
from uuid import UUID

import pytest

from agentq import Agent, Handle, tool
from agentq.engine import Engine
from agentq.heartbeat import Heartbeat, Lease
from agentq.providers.scripted import Call, Scripted
from agentq.recovery import sweep, take_back
from agentq.storage import leases
from agentq.storage.database import Database
from agentq.storage.sql import Connection
from agentq.wire import WakeUp
from tests.engine.drain import Died, Drain
from tests.engine.test_crashes import results
from tests.engine.test_hostile import ALONE, BATCH, dying, once, sql, work

Rule = Literal["retry", "report", "ask"]


def of_worker(drain: Drain, name: str, **changes: Any) -> Engine:
    """The engine of another process."""
    return Engine(replace(drain.engine.services, worker=name, **changes))


def leased_secs(drain: Drain) -> float:
    """How long a lease of any kind still lasts."""
    left = "select extract(epoch from lease_until - now())::float from agentq"
    found = sql(drain, f"{left}.runs where lease_until > now() union all {left}.tool_calls where lease_until > now()")
    return max((float(secs) for (secs,) in found), default=0.0)


def a_minute_passes(drain: Drain) -> None:
    """The parent of the living process "drain" sweeps each second, and so does another worker."""
    third = of_worker(drain, "third")
    for _ in range(60):
        drain.age(1)
        sweep(drain.engine, mine=["drain"])
        sweep(third)
        with suppress(RuntimeError):
            work(drain)


@pytest.mark.parametrize("calls", [ALONE, BATCH])
@pytest.mark.parametrize("on_unknown", ["retry", "ask"])
def test_a_sweeper_that_dies_is_not_kept_alive_by_the_worker_it_took_over_from(
    database: Database, calls: int, on_unknown: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    test, _ = dying(on_unknown, calls, timeout=600)
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    work(drain)
    drain.age(16)

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr("agentq.recovery._verdict", die)
        with pytest.raises(Died):
            sweep(of_worker(drain, "sweeper"))
    a_minute_passes(drain)
    assert leased_secs(drain) == 0
    assert handle.status() == ("completed" if on_unknown == "retry" else "waiting")


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_lease_that_is_let_go_stays_so_though_a_renewal_was_under_way(
    database: Database, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(timeout=3600)
    def long(n: int) -> str:
        """Take up to an hour."""
        return f"did {n}"

    renewing, gone = threading.Event(), threading.Event()
    renew, let_go = leases.renew, leases.let_go
    beats: list[threading.Thread] = []

    def slow_renew(connection: Connection, held: dict[UUID, str], *, lease_secs: float) -> set[UUID]:
        renewing.set()
        assert gone.wait(10)
        return renew(connection, held, lease_secs=lease_secs)

    def seen_let_go(connection: Connection, run_id: str, token: UUID) -> None:
        let_go(connection, run_id, token)
        gone.set()

    def fault() -> None:
        beats.append(threading.Thread(target=drain.engine.services.heartbeat.renew))
        beats[0].start()
        assert renewing.wait(10)
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(leases, "renew", slow_renew)
    monkeypatch.setattr(leases, "let_go", seen_let_go)
    test = Agent("test", model=Scripted([[Call("long", {"n": n}) for n in range(calls)], "done"]), tools=[long])
    drain = Drain(database, test, probe=once(("effect", "tools" if calls == ALONE else "call"), fault))
    handle = drain.enqueue(test)
    with suppress(RuntimeError):
        drain.work()
    beats[0].join()
    a_minute_passes(drain)
    assert leased_secs(drain) == 0
    assert handle.status() == "completed"


def test_a_lost_call_of_a_run_whose_row_is_locked_costs_the_others_nothing(database: Database) -> None:
    @tool
    def deadly(n: int) -> str:
        """Take the process along, each time."""
        raise Died

    test = Agent("test", model=Scripted([[Call("deadly", {"n": n}) for n in range(2)], "done"]), tools=[deadly])
    drain = Drain(database, test)
    locked, lost = drain.enqueue(test), drain.enqueue(test)
    work(drain)
    drain.age(16)
    sweeping = of_worker(drain, "sweeper", waits_for_locks=False)
    with database.transaction() as holder:
        holder.execute(f"select 1 from agentq.runs where id = '{locked.id}' for update")
        sweep(sweeping)
        assert [result.code for result in results(lost)] == ["interrupted", "interrupted"]
    assert results(locked) == []
    sweep(sweeping)
    assert [result.code for result in results(locked)] == ["interrupted", "interrupted"]


def test_all_that_a_leaving_worker_held_is_settled_before_a_broker_is_asked_for_anything(database: Database) -> None:
    test, _ = dying("retry", ALONE)
    drain = Drain(database, test)
    leased: list[float] = []

    class Watched:
        def send(self, wake_up: WakeUp) -> None:
            leased.append(leased_secs(drain))

    @tool(idempotent=True)
    def deadly() -> str:
        """Take the process along, each time."""
        raise Died

    test = Agent("deadly", model=Scripted([Call("deadly"), "done"]), tools=[deadly])
    drain.agents["deadly"] = test
    for _ in range(3):
        drain.enqueue(test)
    work(drain)
    assert leased_secs(drain) > 0
    assert take_back(of_worker(drain, "drain", dispatcher=Watched()), "drain") == 3
    assert leased == [0, 0, 0]


class Standing(Heartbeat):
    """One that does not get round to renewing, as when a tool never lets go of the interpreter."""

    def add(self, lease: Lease) -> None:
        super().add(lease)
        self.drop(lease)


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_process_whose_tool_outlives_its_limit_is_named_and_one_within_it_is_kept(
    database: Database, calls: int
) -> None:
    seen: list[tuple[int, list[str], float]] = []

    @tool(timeout=60)
    def holds(n: int) -> str:
        """Hold the interpreter while time passes."""
        hung: list[str] = []
        for secs in range(5, 100, 5):
            drain.age(5)
            sweep(drain.engine, mine=["drain"], hung=hung.append)
            seen.append((secs, list(hung), leased_secs(drain)))
        return f"did {n}"

    test = Agent("test", model=Scripted([[Call("holds", {"n": n}) for n in range(calls)], "done"]), tools=[holds])
    drain = Drain(database, test)
    services = drain.engine.services
    drain.engine = Engine(replace(services, heartbeat=Standing(database, services.lease_secs)))
    drain.enqueue(test)
    while not seen:
        drain.do(drain.wake_ups.pop(0))
    within = [(hung, left > 0) for secs, hung, left in seen if secs < 60]
    assert within == [([], True)] * len(within)
    assert seen[-1][1][:1] == ["drain"]


def test_a_tool_does_not_begin_when_its_hooks_have_used_up_the_lease(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[int] = []

    @tool(timeout=1)
    def act(n: int) -> str:
        """Do something."""
        began.append(n)
        return f"did {n}"

    def hold(*_: Any, **__: Any) -> Any:
        return real(drain.engine.services.heartbeat, *_, **(__ | {"limit_secs": -100.0}))

    test = Agent("test", model=Scripted([Call("act", {"n": 0}), "done"]), tools=[act])
    drain = Drain(database, test)
    real = Heartbeat.hold
    handle: Handle = drain.enqueue(test)
    drain.do(drain.wake_ups.pop(0))
    monkeypatch.setattr(drain.engine.services.heartbeat, "hold", hold)
    drain.do(drain.wake_ups.pop(0))
    assert began == []
    assert handle.run().phase == "tools"
