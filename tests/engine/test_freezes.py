"""A process that is frozen with locks in its hands (SIGSTOP, a paused machine) must not stop the others."""

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from agentq import Agent, ToolMessage, tool
from agentq.engine import Engine
from agentq.providers.scripted import Call, Scripted
from agentq.services import boot_time
from agentq.storage import leases, steps
from agentq.storage.database import Database
from agentq.wire import BatchMessage
from tests.engine.drain import Died, Drain
from tests.engine.freezes import batch
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]


@pytest.mark.crash
def test_a_worker_frozen_while_it_saves_a_call_stops_neither_the_sweep_nor_its_run(database: Database) -> None:
    die: list[bool] = []

    def probe(point: str, what: str) -> None:
        if (point, what) == ("claimed", "call") and die:
            raise Died

    drain = Drain(database, test := batch(), probe=probe)
    handle = drain.enqueue(test)
    while not isinstance(drain.wake_ups[0], BatchMessage):
        drain.do(drain.wake_ups.pop(0))
    first, second, _ = drain.wake_ups.pop(0).lanes
    url = database.url
    command = [sys.executable, "-m", "tests.engine.freezes", url, first.run_id, str(first.seq), str(first.index)]
    frozen = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == b"frozen\n"
        # A sibling is lost for the third time: its verdict needs the row that the frozen one holds.
        die.append(True)
        with pytest.raises(Died):
            drain.do(second)
        die.clear()
        drain.wake_ups.clear()
        with database.transaction() as connection:
            connection.execute("update agentq.tool_calls set lease_until = now(), attempt = 3 where index = 1")

        def recovered() -> bool:
            drain.sweep()
            drain.work()
            drain.age(70)
            return handle.run().is_terminal

        eventually(recovered, within=60, what="the run goes on without the frozen process")
        assert handle.result().text == "done"
    finally:
        frozen.kill()
        frozen.communicate()


@pytest.mark.parametrize("calls", [1, 3])
def test_a_tool_does_not_begin_when_its_call_was_answered_while_its_process_stood_still(
    database: Database, calls: int
) -> None:
    ran: list[int] = []

    @tool
    def act(n: int) -> str:
        """Do something outside that may not be done late."""
        ran.append(n)
        return "done"

    def stand_still(point: str, what: str) -> None:
        if (point, what) == ("claimed", "tools" if calls == 1 else "call") and not stood:
            stood.append(True)
            other.age(20)
            other.sweep()

    stood: list[bool] = []
    test = Agent("test", model=Scripted([[Call("act", {"n": n}) for n in range(calls)], "done"]), tools=[act])
    drain, other = Drain(database, test, probe=stand_still), Drain(database, test)
    drain.engine = Engine(replace(drain.engine.services, clock=lambda: boot_time() + (20 if stood else 0)))
    handle = drain.enqueue(test)
    drain.work()
    other.work()
    assert handle.result().text == "done"
    results = [message.result.code for message in handle.messages() if isinstance(message, ToolMessage)]
    assert results == ["interrupted"] + [None] * (calls - 1)
    assert ran == list(range(1, calls))


def test_a_row_that_somebody_holds_does_not_cost_other_runs_their_leases(database: Database) -> None:
    drain = Drain(database, test := Agent("test", model=Scripted(["done"])))
    tokens = {}
    for handle in (drain.enqueue(test), drain.enqueue(test)):
        with database.autocommit() as connection:
            claimed = steps.claim(connection, handle.id, 0, lease_secs=5, worker="me")
        assert claimed
        tokens[claimed[0].token] = handle.id
    held, free = tokens.values()
    left = "select extract(epoch from lease_until - now()) from agentq.runs where id = %s"
    with database.transaction() as holder, database.autocommit() as connection:
        holder.execute("select 1 from agentq.runs where id = %s for update", (held,))
        renewing = threading.Thread(target=leases.renew, args=(connection, tokens), kwargs={"lease_secs": 500})
        renewing.start()
        renewing.join(10)
        assert not renewing.is_alive()
        assert holder.execute(left, (free,)).scalar() > 400
        assert holder.execute(left, (held,)).scalar() < 6


def test_a_renewal_tells_whose_work_is_in_vain(database: Database) -> None:
    drain = Drain(database, test := Agent("test", model=Scripted(["done"])))
    handle = drain.enqueue(test)
    with database.autocommit() as connection:
        claimed = steps.claim(connection, handle.id, 0, lease_secs=5, worker="me")
        assert claimed
        token = claimed[0].token
        lost = uuid4()
        held = {token: handle.id, lost: handle.id}
        assert leases.renew(connection, held, lease_secs=5) == {lost}
        handle.cancel()
        assert leases.renew(connection, held, lease_secs=5) == {token, lost}
