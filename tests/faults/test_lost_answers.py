"""A claim is committed, and the connection is gone before its answer: nothing was begun, so nothing was interrupted."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from agentq import Agent, ToolMessage, UnavailableError, tool
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from agentq.storage.sql import Connection
from agentq.wire import BatchMessage, CallMessage
from tests.engine.counting import observed
from tests.engine.drain import Drain


@contextmanager
def the_answer_is_lost(database: Database, table: str) -> Iterator[None]:
    """The next claim in ``table`` is made, and its connection is lost before the answer."""
    lost = [True]

    def lose(connection: Connection, statement: str) -> None:
        if lost and f"UPDATE agentq.{table}" in statement and "claimed_at = now()" in statement:
            lost.clear()
            connection.close()
            raise psycopg.OperationalError("server closed the connection")

    with observed(database, lose):
        yield
    assert not lost


@pytest.mark.parametrize("calls", [1, 2])
def test_a_claim_whose_answer_is_lost_is_given_back_and_costs_no_call(database: Database, calls: int) -> None:
    ran: list[int] = []

    @tool
    def act(n: int) -> str:
        """Act."""
        ran.append(n)
        return "acted"

    test = Agent("test", model=Scripted([[Call("act", {"n": n}) for n in range(calls)], "done"]), tools=[act])
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    while handle.run().phase != "tools":
        drain.do(drain.wake_ups.pop(0))
    if calls > 1:
        drain.do(drain.wake_ups.pop(0))
        drain.do(next(message for message in drain.wake_ups if isinstance(message, BatchMessage)))
        drain.wake_ups = [message for message in drain.wake_ups if isinstance(message, CallMessage)]
    with the_answer_is_lost(database, "runs" if calls == 1 else "tool_calls"), pytest.raises(UnavailableError):
        drain.do(drain.wake_ups.pop(0))
    assert ran == []
    drain.work()
    assert handle.result().text == "done"
    assert [m.result.text for m in handle.messages() if isinstance(m, ToolMessage)] == ["acted"] * calls
    assert sorted(ran) == list(range(calls))


@contextmanager
def the_answer_of_a_commit_is_lost(database: Database, after: int) -> Iterator[None]:
    """A step is saved, and its connection is lost before the answer: the one after so many others."""
    left = [after]

    def lose(connection: Connection, statement: str) -> None:
        if "INSERT INTO agentq.journal" in statement and "seq = " in statement:
            left[0] -= 1
            if left[0] == -1:
                connection.close()
                raise psycopg.OperationalError("server closed the connection")

    with observed(database, lose):
        yield
    assert left[0] < 0


@pytest.mark.parametrize("after", range(5))
@pytest.mark.parametrize("local_steps", [0, 64])
def test_after_a_commit_whose_answer_is_lost_the_model_sees_all_that_was_said(
    database: Database, after: int, local_steps: int
) -> None:
    seen: list[int] = []

    def reply(request: ModelRequest) -> Call | str:
        seen.append(len(request.messages))
        return Call("act", {"n": len(seen)}) if len(seen) < 3 else "done"

    @tool(inline=True, idempotent=True)
    def act(n: int) -> str:
        """Act."""
        return f"acted {n}"

    test = Agent("test", model=Scripted([reply] * 3), tools=[act])
    drain = Drain(database, test, local_steps=local_steps)
    handle = drain.enqueue(test)
    with the_answer_of_a_commit_is_lost(database, after):
        drain.work()
        drain.age(20)
        drain.sweep()
        drain.work()
    assert handle.result().text == "done"
    assert seen == [1, 3, 5]
    assert len(handle.messages()) == 6
    assert [event.number for event in handle.events(follow=False)] == list(range(1, 8))
