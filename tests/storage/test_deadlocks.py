"""Two transactions that wait for each other: which do not, and what the one that Postgres ends is told."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier, Thread

import pytest

from agentq import Agent, tool
from agentq.errors import LockedError
from agentq.messages import ToolResult
from agentq.outcomes import HookEnded
from agentq.providers.scripted import Call, Scripted
from agentq.saving import Saver
from agentq.steps.tool_batch import CallDone
from agentq.storage import calls, control
from agentq.storage.database import Database
from agentq.wire import BatchMessage
from tests.engine.drain import Drain
from tests.engine.test_crashes import results
from tests.waiting import eventually


@tool
def act() -> str:
    """Act."""
    return "did"


def test_a_deadlock_is_a_row_locked_by_others_and_no_outage(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute("insert into agentq.threads (id) values ('a'), ('b')")
    both, told = Barrier(2), list[LockedError]()

    def lock(first: str, second: str) -> None:
        row = "select 1 from agentq.threads where id = '{}' for update"
        try:
            with database.transaction() as connection:
                connection.execute(row.format(first))
                both.wait()
                connection.execute(row.format(second))
        except LockedError as error:
            told.append(error)

    people = [Thread(target=lock, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for person in people:
        person.start()
    for person in people:
        person.join()
    (error,) = told
    assert "deadlock detected" in error.message
    assert "AGENTQ_DATABASE_URL" not in error.message


@pytest.mark.parametrize("ends_by", ["a cancel", "a hook"])
def test_a_call_that_ends_its_run_and_a_claim_whose_message_came_twice_do_not_wait_for_each_other(
    database: Database, ends_by: str
) -> None:
    test = Agent("test", model=Scripted([[Call("act"), Call("act")], "done"]), tools=[act])
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    while not isinstance(drain.wake_ups[0], BatchMessage):
        drain.do(drain.wake_ups.pop(0))
    first = drain.wake_ups[0].lanes[0]
    with database.autocommit() as connection:
        claimed = calls.claim(connection, first.run_id, first.seq, first.index, lease_secs=15, worker="w")
        assert claimed is not None
        if ends_by == "a cancel":
            control.ask_cancel(connection, handle.id)
    ends = HookEnded("enough") if ends_by == "a hook" else None
    done = CallDone(ToolResult(call_id="call_0", name="act", text="did"), ends)
    saver = Saver(replace(drain.engine.services, waits_for_locks=False))
    finish = partial(saver.finish_call, claimed.ref, done, claimed.claim.token, {})
    with database.transaction() as connection, ThreadPoolExecutor(1) as pool:
        # As it began the call was not taken yet: it has locked the run, and comes to the call now.
        connection.execute("select 1 from agentq.runs for key share")
        saved = pool.submit(finish)
        with database.autocommit() as look:
            waits = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            eventually(lambda: look.execute(waits).first())
        connection.execute("update agentq.tool_calls set worker = worker where index = 0")
        connection.execute("commit")
        saved.result()
    assert handle.status() == ("cancelled" if ends_by == "a cancel" else "completed")
    assert [result.text for result in results(handle)][:1] == ["did"]
