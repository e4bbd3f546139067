"""Lists for people and callers come whole, or in pages that leave nothing out and give nothing twice."""

from typing import Any

import pytest

from agentq import Agent, Client, ConfigError, Reject, RunNotFoundError, tool
from agentq.errors import AgentqError
from agentq.providers.scripted import Call, Scripted
from agentq.run import Approval
from agentq.storage.database import Database
from tests.engine.drain import Drain


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def asking(database: Database, *, runs: int, calls: int) -> Drain:
    """So many runs, each with so many calls before a person; a model gives the same id to two calls."""
    asked = [Call("pay", {"amount": n}, id=f"call_{n % 2}") for n in range(calls)]
    test = Agent("test", model=Scripted([asked, "done"]), tools=[pay], approve=["pay"])
    drain = Drain(database, test)
    drain.client.enqueue_many("test", ["pay"] * runs)
    drain.work()
    return drain


def pages(client: Client, size: int, **which: Any) -> list[Approval]:
    found: list[Approval] = []
    while page := client.approvals(limit=size, after=found[-1].id if found else None, **which):
        assert len(page) <= size
        found += page
    return found


def test_all_that_wait_are_listed_however_many_they_are(database: Database) -> None:
    drain = asking(database, runs=15, calls=15)
    assert len(drain.client.approvals()) == 225


def test_pages_of_waiting_calls_are_the_list_of_all_of_them(database: Database) -> None:
    drain = asking(database, runs=3, calls=4)
    whole = drain.client.approvals()
    assert len({approval.id for approval in whole}) == 12
    for size in (1, 5, 12):
        assert pages(drain.client, size) == whole
    of_one = [approval for approval in whole if approval.run_id == whole[0].run_id]
    assert pages(drain.client, 3, run_id=whole[0].run_id) == of_one


def test_the_page_after_a_call_that_was_decided_on_meanwhile_is_the_same(database: Database) -> None:
    drain = asking(database, runs=2, calls=2)
    first, second, *others = drain.client.approvals()
    for approval in (first, second):
        drain.client.handle(approval.run_id).decide({approval: Reject("no")})
    assert drain.client.approvals(after=second.id) == others
    assert [approval.id for approval in drain.client.approvals(after=first.id, status=None)] == [
        approval.id for approval in (second, *others)
    ]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"after": "run_nope:1:0:0"}, RunNotFoundError),
        ({"after": "nothing"}, RunNotFoundError),
        ({"after": "\x00"}, RunNotFoundError),
        ({"limit": 0}, ConfigError),
        ({"limit": "5"}, ConfigError),
    ],
)
def test_a_page_that_cannot_be_is_refused(database: Database, options: Any, error: type[AgentqError]) -> None:
    drain = asking(database, runs=1, calls=1)
    with pytest.raises(error):
        drain.client.approvals(**options)


def test_a_page_of_any_size_may_be_asked_for(database: Database) -> None:
    drain = asking(database, runs=1, calls=1)
    assert len(drain.client.approvals(limit=10**20)) == len(drain.client.runs(limit=10**20)) == 1
    with pytest.raises(ConfigError, match="limit"):
        drain.client.runs(limit=-1)
