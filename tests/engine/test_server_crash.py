"""A Postgres of our own that crashes, or is restarted: claims wait for no fsync, so a crash may undo them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from agentq import Agent, Handle, ToolMessage, embedded, tool
from agentq.providers.scripted import Call, Scripted
from agentq.storage import migrate
from agentq.storage.database import Database
from tests.engine.drain import Drain
from tests.waiting import eventually

pytestmark = pytest.mark.crash


@pytest.fixture
def server(tmp_path: Path) -> Iterator[embedded.Embedded]:
    with embedded.start(tmp_path / "agentq") as started:
        yield started


def codes(handle: Handle) -> list[str | None]:
    return [message.result.code for message in handle.messages() if isinstance(message, ToolMessage)]


RESET = "select pg_stat_get_bgwriter_stat_reset_time()"


def crash(url: str) -> None:
    """kill -9 of one backend, as the kernel does when memory is short: the server recovers as after a crash."""
    with psycopg.connect(url) as connection:
        before = connection.execute(RESET).fetchone()
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")

    def has_recovered() -> bool:
        try:
            with psycopg.connect(url, connect_timeout=2) as connection:
                return connection.execute(RESET).fetchone() != before
        except psycopg.OperationalError:
            return False

    eventually(has_recovered)


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("idempotent", [False, True])
def test_after_a_crash_of_the_server_an_unsafe_call_that_may_have_been_begun_is_not_run(
    server: embedded.Embedded, calls: int, idempotent: bool
) -> None:
    ran: list[int] = []

    @tool(idempotent=idempotent)
    def act(n: int) -> str:
        """Act."""
        ran.append(n)
        return "done"

    database = Database(server.database_url)
    migrate.upgrade(database)
    test = Agent("test", model=Scripted([[Call("act", {"n": n}) for n in range(calls)], "done"]), tools=[act])
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    while handle.run().phase != "tools":
        drain.do(drain.wake_ups.pop(0))
    if calls > 1:
        drain.do(drain.wake_ups.pop(0))
    database.dispose()
    crash(server.database_url)
    drain.work()
    assert handle.result().text == "done"
    assert codes(handle) == [None if idempotent else "interrupted"] * calls
    assert len(ran) == (calls if idempotent else 0)
    database.dispose()


def test_a_clean_restart_of_the_server_costs_no_call(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool
    def act(n: int) -> str:
        """Act."""
        ran.append(n)
        return "done"

    test = Agent("test", model=Scripted([[Call("act", {"n": n}) for n in range(3)], "done"]), tools=[act])
    with embedded.start(tmp_path / "agentq") as server:
        database = Database(server.database_url)
        migrate.upgrade(database)
        drain = Drain(database, test)
        handle = drain.enqueue(test)
        while handle.run().phase != "tools":
            drain.do(drain.wake_ups.pop(0))
        drain.do(drain.wake_ups.pop(0))
        database.dispose()
    with embedded.start(tmp_path / "agentq"):
        drain.work()
        assert handle.result().text == "done"
        assert codes(handle) == [None] * 3
        assert len(ran) == 3
        database.dispose()
