"""How many connections a worker opens to Postgres, and that no process uses another's."""

from pathlib import Path

import psutil
import pytest

from agentq import ToolMessage
from agentq.storage.database import Database
from tests.faults.conftest import FleetOn
from tests.servers import Postgres
from tests.workers.fleet import Worker

AGENTS = Path(__file__).parent / "agents_at_import.py"
RUNS = 200


def connections(worker: Worker, port: int) -> set[int]:
    """The local ports of a worker's connections to the server, those of its children included; inherited ones once."""
    found = set()
    process = psutil.Process(worker.process.pid)
    for one in [process, *process.children(recursive=True)]:
        for connection in one.net_connections("tcp"):
            if connection.raddr and connection.raddr.port == port and connection.status == psutil.CONN_ESTABLISHED:
                found.add(connection.laddr.port)
    return found


@pytest.mark.crash
@pytest.mark.parametrize("own_postgres", [["max_connections=20"]], indirect=True)
@pytest.mark.long
def test_two_hundred_runs_share_twenty_connections_also_after_a_query_at_import(
    own_postgres: Postgres, redis_url: str, fleet_on: FleetOn
) -> None:
    database = Database(own_postgres.url, pool_size=1)
    fleet = fleet_on(database, redis_url)
    fleet.agents, fleet.db_pool_size = AGENTS, 2
    steps, tools = fleet.both(concurrency=4)
    handles = [fleet.client.enqueue("looker", "go", tags={"n": str(n)}, idempotency_key=str(n)) for n in range(RUNS)]
    most_steps = most_tools = 0

    def all_ended() -> bool:
        nonlocal most_steps, most_tools
        most_steps = max(most_steps, len(connections(steps, own_postgres.port)))
        most_tools = max(most_tools, len(connections(tools, own_postgres.port)))
        return len(fleet.client.runs(status="completed", limit=RUNS)) == RUNS

    fleet.until(all_ended, within=90)
    # The guide's numbers, and one more in each process for the pool that the agent's module opened.
    assert most_steps <= 2 + 1 + 1
    assert 4 < most_tools <= 1 + 2 * 4 + 5
    for n, handle in enumerate(handles):
        assert [m.result.text for m in handle.messages() if isinstance(m, ToolMessage)] == [str(n)]
    assert not fleet.deaths
    for worker in (steps, tools):
        text = worker.text()
        assert "Traceback" not in text
        assert "cannot be used" not in text, text
    database.dispose()
