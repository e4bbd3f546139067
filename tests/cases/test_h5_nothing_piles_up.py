"""H5: runs leave nothing behind in the processes that worked on them, nor in the broker."""

from dataclasses import dataclass

import psutil
import pytest
import redis

from agentq.storage.database import Database
from tests.cases.stored import rows
from tests.waiting import eventually
from tests.workers.fleet import Fleet, Worker


@dataclass(frozen=True)
class Process:
    """One process of a worker; ``kept`` is memory in bytes that nobody else has."""

    kept: int
    threads: int
    files: int


@dataclass(frozen=True)
class Measured:
    """What there is while nothing is to be done."""

    processes: dict[int, Process]
    keys: frozenset[bytes]
    channels: frozenset[bytes]
    broker_clients: int
    database_clients: int


def measure(fleet: Fleet, database: Database, workers: list[Worker]) -> Measured:
    found = [psutil.Process(worker.process.pid) for worker in workers]
    found += [child for parent in found for child in parent.children(recursive=True)]
    with redis.Redis.from_url(fleet.broker_url) as client:
        return Measured(
            processes={
                process.pid: Process(process.memory_full_info().uss, process.num_threads(), process.num_fds())
                for process in found
            },
            keys=frozenset(client.keys()),
            channels=frozenset(client.pubsub_channels()),
            broker_clients=sum(int(other["db"]) == client.client_info()["db"] for other in client.client_list()),
            database_clients=rows(database, "select count(*) from pg_stat_activity where datname = current_database()")[
                0
            ][0],
        )


def work(fleet: Fleet, runs: int) -> None:
    """Enqueue tiny runs, some at a time, and wait until all have ended and nothing is on its way."""
    for _ in range(runs // 50):
        for _ in range(50):
            fleet.client.enqueue("tiny", "go")
        eventually(lambda: is_idle(fleet), within=120, what="fifty tiny runs")


def is_idle(fleet: Fleet) -> bool:
    open_runs = "select count(*) from agentq.runs where status in ('queued', 'running', 'waiting')"
    if rows(fleet.database, open_runs) != [(0,)]:
        return False
    with redis.Redis.from_url(fleet.broker_url) as client:
        return not client.exists(fleet.queue, f"{fleet.queue}.tools", "unacked", "unacked_index")


def assert_flat(fleet: Fleet, database: Database, *, warm_up: int, runs: int, grown: int) -> None:
    """After ``warm_up`` runs, ``runs`` more let no process grow by ``grown`` bytes or more, and nothing else at all."""
    workers = list(fleet.both(concurrency=2))
    work(fleet, warm_up)
    before = measure(fleet, database, workers)
    work(fleet, runs)

    def settled() -> Measured | None:
        # A hook's thread or a pooled connection may be a moment behind.
        after = measure(fleet, database, workers)
        return after if few_more(before, after) else None

    after = eventually(settled, within=20, what=f"flat: {before} {measure(fleet, database, workers)}")
    assert after.keys == before.keys
    assert after.channels == before.channels
    assert after.processes.keys() == before.processes.keys()
    growth = {pid: process.kept - before.processes[pid].kept for pid, process in after.processes.items()}
    assert max(growth.values()) < grown, f"after {runs} runs each process has so many bytes more: {growth}"
    assert rows(database, "select status, count(*) from agentq.runs group by 1") == [("completed", warm_up + runs)]


def few_more(before: Measured, after: Measured) -> bool:
    """Pools may have filled up meanwhile, by a connection or two for each of the few things a process does at once.

    How far they are filled is a matter of how busy the machine was, and has a bound that no number of runs moves.
    """
    more = [
        (after.broker_clients, before.broker_clients),
        (after.database_clients, before.database_clients),
        *((p.threads, before.processes[pid].threads) for pid, p in after.processes.items()),
        *((p.files, before.processes[pid].files) for pid, p in after.processes.items()),
    ]
    return all(now <= then + 8 for now, then in more)


@pytest.mark.long
def test_of_three_hundred_runs_with_three_tools_each(workers: Fleet, database: Database) -> None:
    assert_flat(workers, database, warm_up=100, runs=300, grown=4_000_000)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_of_five_thousand_runs_with_three_tools_each(workers: Fleet, database: Database) -> None:
    assert_flat(workers, database, warm_up=1_000, runs=5_000, grown=8_000_000)
