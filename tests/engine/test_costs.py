"""What a turn costs in tasks, claims, statements and durable commits: the table of docs/costs.md, held true."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from agentq import Agent, tool
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from agentq.storage.sql import Connection
from agentq.wire import BatchMessage, CallMessage, StepMessage, WakeUp
from tests.engine.counting import counted
from tests.engine.drain import Drain

DOCS = Path(__file__).parents[2] / "docs" / "costs.md"


@tool
def act(n: int) -> str:
    """Do something."""
    return f"did {n}"


def turn(database: Database, calls: int) -> tuple[Counter[str], int]:
    """The counts of one turn with so many calls, and its Celery tasks: up to the wake-up of the next model call."""
    asked = [Call("act", {"n": n}) for n in range(calls)]
    drain = Drain(database, test := Agent("test", model=Scripted([asked, "done"]), tools=[act]))
    handle = drain.enqueue(test)
    tasks = 0
    with counted(database) as counts:
        while not (handle.run().phase == "recall" and handle.run().turn == 1):
            wake_up = drain.wake_ups.pop(0)
            tasks += not isinstance(wake_up, BatchMessage)
            drain.do(wake_up)
    # Reading the run's phase is the test's own.
    return counts, tasks


def row(name: str) -> dict[str, int]:
    """A row of the table in docs/costs.md."""
    lines = [
        [cell.strip() for cell in line.strip("|\n ").split("|")]
        for line in DOCS.read_text().splitlines()
        if line.startswith("|")
    ]
    header = next(cells for cells in lines if "tasks" in cells)
    found = next(cells for cells in lines if cells[0] == name)
    return {title: int(cell) for title, cell in zip(header, found, strict=True) if re.fullmatch(r"\d+", cell)}


def test_a_turn_with_one_call_is_two_tasks_two_claims_and_two_durable_commits(database: Database) -> None:
    counts, tasks = turn(database, 1)
    assert (tasks, counts["claims"], counts["commits"]) == (2, 2, 2)


@pytest.mark.parametrize("calls", [2, 8, 32])
def test_a_turn_with_n_calls_is_n_plus_two_tasks(database: Database, calls: int) -> None:
    counts, tasks = turn(database, calls)
    assert (tasks, counts["claims"], counts["commits"]) == (calls + 2, calls + 2, calls + 2)


@pytest.mark.parametrize(
    ("name", "phase"),
    [("model, one call asked", "recall"), ("tools, one call", "tools"), ("model, final answer", "recall")],
)
def test_the_costs_of_each_step_are_those_in_the_docs(database: Database, name: str, phase: str) -> None:
    drain = Drain(database, test := Agent("test", model=Scripted([Call("act", {"n": 1}), "done"]), tools=[act]))
    handle = drain.enqueue(test)
    if "final" in name:
        drain.do(drain.wake_ups.pop(0))
    if phase == "tools" or "final" in name:
        drain.do(drain.wake_ups.pop(0))
    # As in another process, which does not know the run.
    drain.engine.services.transcripts.forget(handle.id)
    sent = len(drain.sent)
    with counted(database) as counts:
        drain.do(drain.wake_ups.pop(0))
    assert counts | Counter(messages=messages(drain.sent[sent:])) == costs(name)


def costs(name: str) -> Counter[str]:
    return Counter({key: count for key, count in row(name).items() if key != "tasks" and count})


def messages(sent: list[WakeUp]) -> int:
    return sum(
        len(one.lanes) if isinstance(one, BatchMessage) else isinstance(one, StepMessage | CallMessage) for one in sent
    )


def test_the_cost_of_a_step_does_not_grow_with_the_transcript(database: Database) -> None:
    turns = 20
    script = [Call("act", {"n": n}) for n in range(turns)]
    drain = Drain(database, test := Agent("test", model=Scripted([*script, "done"]), tools=[act]))
    drain.enqueue(test)
    found = []
    while drain.wake_ups:
        with counted(database) as counts:
            drain.do(drain.wake_ups.pop(0))
        found.append(counts)
    assert found[2] == found[2 * turns - 2]
    assert found[3] == found[2 * turns - 1]


def test_steps_that_follow_in_their_process_are_one_statement_and_one_commit_each(database: Database) -> None:
    quick = tool(inline=True)(act.function)
    script = [Call("act", {"n": n}) for n in range(10)]
    drain = Drain(database, test := Agent("test", model=Scripted([*script, "done"]), tools=[quick]), local_steps=64)
    drain.enqueue(test)
    with counted(database) as counts:
        drain.work()
    # The first message is all that is read, and the 21 steps of the run are all that is written.
    assert counts == Counter(claims=1, reads=1, writes=21, commits=21)
    assert len(drain.sent) == 1


def test_enqueueing_is_one_durable_commit_and_one_message(database: Database) -> None:
    drain = Drain(database, test := Agent("test", model=Scripted(["done"])))
    with counted(database) as counts:
        drain.enqueue(test)
    assert counts["commits"] == 1
    assert len(drain.sent) == 1


def test_an_idle_sweep_is_one_statement(database: Database) -> None:
    drain = Drain(database, test := Agent("test", model=Scripted(["done"])))
    drain.enqueue(test)
    drain.work()
    with counted(database) as counts:
        assert drain.sweep() == 0
    assert dict(counts) == {"claims": 1}


def test_the_costs_of_a_batch_are_those_in_the_docs(database: Database) -> None:
    asked = [Call("act", {"n": n}) for n in range(3)]
    drain = Drain(database, test := Agent("test", model=Scripted([asked, "done"]), tools=[act]))
    drain.enqueue(test)
    drain.do(drain.wake_ups.pop(0))
    found = []
    for name in ("tools, fan-out of three", "one call of a batch", "one call of a batch", "last call of a batch"):
        sent = len(drain.sent)
        with counted(database) as counts:
            drain.do(drain.wake_ups.pop(0))
        if isinstance(drain.wake_ups[0], BatchMessage):
            drain.do(drain.wake_ups.pop(0))
        found.append((name, counts | Counter(messages=messages(drain.sent[sent:]))))
    # With three calls on three lanes no lane has a next call to send.
    expected = [(name, costs(name)) for name, _ in found]
    for index in (1, 2):
        del expected[index][1]["messages"]
    assert found == expected


def test_the_cost_of_a_review_is_that_in_the_docs(database: Database) -> None:
    drain = Drain(
        database, test := Agent("test", model=Scripted([Call("act", {"n": 1})]), tools=[act], approve=["act"])
    )
    drain.enqueue(test)
    drain.do(drain.wake_ups.pop(0))
    with counted(database) as counts:
        drain.do(drain.wake_ups.pop(0))
    name = "review, one call gated"
    assert counts == costs(name)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


@contextmanager
def wal(database: Database) -> Iterator[list[int]]:
    """The WAL bytes of each statement that writes, without those in which Postgres writes a page as a whole."""
    found: list[int] = []
    execute = Connection.execute

    def weigh(connection: Connection, query: bytes, params: Any) -> None:
        with connection.transaction(force_rollback=True):
            explained = execute(connection, f"EXPLAIN (ANALYZE, WAL, FORMAT JSON) {query.decode()}", params).scalar()
        changes = [node for node in nodes(explained[0]["Plan"]) if node["Node Type"] == "ModifyTable"]
        if not any(node["WAL FPI"] for node in changes):
            found.append(sum(node["WAL Bytes"] for node in changes))

    def weighing(method: Callable[..., Any]) -> Callable[..., Any]:
        def weighed(connection: Connection, query: Any, params: Any = None, **options: Any) -> Any:
            if isinstance(query, bytes) and query.startswith(b"WITH") and connection.info.dbname == database.name:
                weigh(connection, query, params)
            return method(connection, query, params, **options)

        return weighed

    with (
        patch.object(Connection, "execute", weighing(execute)),
        patch.object(Connection, "fetch", weighing(Connection.fetch)),
    ):
        yield found


def test_the_wal_of_a_step_is_as_small_as_the_docs_say(database: Database) -> None:
    quick = tool(inline=True)(act.function)
    script = [Call("act", {"n": n}) for n in range(10)]
    drain = Drain(database, test := Agent("test", model=Scripted([*script, "done"]), tools=[quick]), local_steps=64)
    drain.enqueue(test)
    with wal(database) as found:
        drain.work()
    model, tools = map(int, re.findall(r"(\d+) bytes of WAL", DOCS.read_text()))
    # The claim and the last commit write indexes of the run's row too, the steps between them do not.
    in_order = sorted(found)
    assert in_order[5] <= tools
    assert in_order[-5] <= model
