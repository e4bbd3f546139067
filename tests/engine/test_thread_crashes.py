"""Whoever rewinds, forks, retries, deletes or decides may die at any statement: nothing is left half done."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from agentq import Agent, AgentqError, Approve, AssistantMessage, Client, Message, Reject, Respond, ToolMessage, tool
from agentq.providers.scripted import Call, Fault, Scripted
from agentq.storage.database import Database
from tests.engine.drain import Died, Drain
from tests.engine.mishaps import ObservedDatabase

# None of them has more, with what follows its commit.
STATEMENTS = 80


class Family:
    """A thread with a run that is done, and one whose sub-agent waits for a person, two levels below."""

    def __init__(self, database: Database) -> None:
        self.paid: list[int] = []

        @tool
        def pay(n: int) -> str:
            """Pay."""
            self.paid.append(n)
            return f"paid {n}"

        calls = [Call("pay", {"n": n}) for n in (1, 2)]
        clerk = Agent("clerk", model=Scripted([calls, "done"]), tools=[pay], approve=["pay"])
        boss = Agent("boss", model=Scripted([Call("clerk", {"input": "x"}), "told"]), tools=[clerk.as_tool()])
        script = Scripted(["hello", Fault("quota_exceeded"), Call("boss", {"input": "x"}), "done"])
        self.top = Agent("top", model=script, tools=[boss.as_tool()])
        self.drain = Drain(database, self.top, boss, clerk)
        self.drain.run(self.top, thread="t")
        self.handle = self.drain.enqueue(self.top, thread="t")
        self.drain.work()

    def comes_to_its_end(self) -> None:
        """Time passes, one worker lives, and people say yes."""
        for _ in range(20):
            self.drain.work()
            for approval in self.drain.client.approvals():
                self.drain.client.handle(approval.run_id).decide({approval: Approve()})
            self.drain.age(130)
            if self.drain.sweep() == 0 and not self.drain.client.approvals():
                break
        assert self.drain.sweep() == 0
        for run in self.drain.client.runs():
            assert run.is_terminal
            assert is_whole(self.drain.client.handle(run.id).messages())
        assert is_whole(self.drain.client.history("t"))
        assert self.drain.client.approvals() == []


def is_whole(messages: tuple[Message, ...]) -> bool:
    """Whether each call has its result behind it."""
    asked: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if not asked or asked.pop(0) != message.result.call_id:
                return False
        elif asked:
            return False
        elif isinstance(message, AssistantMessage):
            asked = [call.id for call in message.calls]
    return not asked


def failed(family: Family) -> None:
    """Its last run has failed."""


def waiting(family: Family) -> None:
    family.handle.retry()
    family.drain.work()
    assert (family.handle.status(), len(family.handle.approvals())) == ("waiting", 2)


def decides(*decisions: Any) -> Callable[[Client, Family], None]:
    def decide(client: Client, family: Family) -> None:
        handle = client.handle(family.handle.id)
        handle.decide(dict(zip(handle.approvals(), decisions, strict=True)))

    return decide


OPERATIONS: dict[str, tuple[Callable[[Family], None], Callable[[Client, Family], object]]] = {
    "rewind": (waiting, lambda client, _: client.thread("t").rewind(1)),
    "fork": (waiting, lambda client, _: client.thread("t").fork("f")),
    "approve all": (waiting, decides(Approve(), Approve())),
    "change and answer": (waiting, decides(Approve({"n": 7}), Respond("by hand"))),
    "decide for both": (
        waiting,
        lambda client, family: client.handle(family.handle.id).approve("call_0_0", sticky=True),
    ),
    "reject all": (waiting, decides(Reject(), Reject())),
    "retry": (failed, lambda client, _: client.thread("t").retry()),
    "delete": (failed, lambda client, _: client.thread("t").delete()),
}


@pytest.fixture
def observed(database: Database) -> Iterator[ObservedDatabase]:
    other = ObservedDatabase(database.url)
    yield other
    other.dispose()


def dies_at(family: Family, observed: ObservedDatabase, place: int, act: Callable[[Client, Family], object]) -> bool:
    """Let a process do it that dies at that place; whether it came so far."""
    passed, client = count(), Client(settings=family.drain.client.settings)
    client.database = observed
    client.__dict__["dispatcher"] = family.drain

    def moment(what: str) -> None:
        if next(passed) == place:
            raise Died

    observed.moment = moment
    try:
        with suppress(Died):
            act(client, family)
    finally:
        observed.dispose()
    return next(passed) > place


@pytest.mark.parametrize("name", OPERATIONS)
def test_who_dies_at_any_statement_of_it_leaves_nothing_half_done(
    database: Database, observed: ObservedDatabase, name: str
) -> None:
    make, act = OPERATIONS[name]
    for place in range(STATEMENTS):
        with database.transaction() as connection:
            connection.execute("truncate agentq.runs, agentq.threads cascade")
            connection.execute("truncate agentq.journal")
        family = Family(database)
        make(family)
        came_so_far = dies_at(family, observed, place, act)
        # A person who has heard nothing does it once more.
        with suppress(AgentqError, ValueError):
            act(family.drain.client, family)
        family.comes_to_its_end()
        paid = {
            "approve all": [1, 2],
            "decide for both": [1, 2],
            "reject all": [],
            "cancel": [],
            "rewind": [],
            "delete": [],
        }.get(name)
        assert paid is None or sorted(family.paid) == paid
        if not came_so_far:
            return
    raise AssertionError(f"{name} has more than {STATEMENTS} statements")
