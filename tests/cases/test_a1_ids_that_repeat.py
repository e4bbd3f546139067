"""A1: calls of one reply, or of several, come with the same id; each is one call, with one result in its place."""

from collections import Counter

import pytest

from agentq import Agent, AssistantMessage, ToolMessage, tool
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.cases.stored import assert_over
from tests.engine.drain import Drain

REPLIES = {
    "twice in a reply": [[("dup", 1), ("dup", 2)]],
    "the same arguments": [[("c1", 5), ("c2", 5)]],
    "the same of all": [[("dup", 5), ("dup", 5), ("dup", 5)]],
    "in several replies": [[("dup", 1)], [("dup", 2)], [("dup", 2), ("other", 3)]],
    "none at all": [[("", 1), ("", 1)], [("", 2)]],
}


@pytest.mark.parametrize("replies", list(REPLIES.values()), ids=list(REPLIES))
@pytest.mark.parametrize("approve", [False, True], ids=["at once", "approved one by one"])
def test_each_call_that_was_asked_for_runs_once_and_has_its_own_result(
    database: Database, replies: list[list[tuple[str, int]]], *, approve: bool
) -> None:
    paid: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    script = [[Call("pay", {"amount": amount}, id=call_id) for call_id, amount in reply] for reply in replies]
    agent = Agent("test", model=Scripted([*script, "done"]), tools=[pay], approve=["pay"] if approve else [])
    drain = Drain(database, agent)
    handle = drain.enqueue(agent)
    drain.work()
    while waiting := handle.approvals():
        # The first of those with an id is the one that is meant by it.
        handle.approve(waiting[0].call_id)
        drain.work()
    asked = [amount for reply in replies for _, amount in reply]
    assert Counter(paid) == Counter(asked)
    messages = handle.messages()
    calls = [call for message in messages if isinstance(message, AssistantMessage) for call in message.calls]
    back = [message.result for message in messages if isinstance(message, ToolMessage)]
    assert [result.text for result in back] == [f"paid {amount}" for amount in asked]
    assert [result.call_id for result in back] == [call.id for call in calls]
    assert len({call.id for call in calls}) == len(calls)
    assert all(call.id for call in calls)
    assert_over(drain.database, handle)
