"""What a caller gives wrong is refused as that, early, with nothing stored: a web app shows it to its user."""

from collections.abc import Callable

import pytest

from agentq import Agent, Client, InputError, Settle, tool
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.engine.drain import Drain

BAD_INPUT: tuple[Callable[[Client], object], ...] = (
    lambda client: client.enqueue("test", ""),
    lambda client: client.enqueue("test", "go", context=[1]),  # type: ignore[arg-type]
    lambda client: client.enqueue("test", "go", context={"n": float("nan")}),
    lambda client: client.enqueue("test", "go", tags={"a": 1}),  # type: ignore[dict-item]
    lambda client: client.enqueue("test", "go", delay_secs=-1),
    lambda client: client.enqueue("test", "go", limits={"modelcalls": 1}),
    lambda client: client.enqueue("test", [b"bytes"]),  # type: ignore[list-item]
    lambda client: client.enqueue("test", "go", on_busy="later"),  # type: ignore[arg-type]
    lambda client: client.runs(status="foo"),  # type: ignore[arg-type]
    lambda client: client.runs(limit=0),
    lambda client: client.thread("t").rewind(99),
    lambda client: client.thread("t").fork("t"),
    lambda client: client.handle("run_1").decide({"call_1": "yes"}),  # type: ignore[dict-item]
    lambda client: Settle(happened="no"),  # type: ignore[arg-type]
)


@pytest.mark.parametrize("ask", BAD_INPUT)
def test_what_a_caller_gave_wrong_is_told_apart_from_a_broken_installation(
    database: Database, ask: Callable[[Client], object]
) -> None:
    drain = Drain(database, agent := Agent("test", model=Scripted(["hello"])))
    drain.run(agent, thread="t")
    with pytest.raises(InputError) as refused:
        ask(drain.client)
    assert refused.value.code in ("input_invalid", "content_invalid")


def test_changed_arguments_that_do_not_fit_are_bad_input(database: Database) -> None:
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    agent = Agent("test", model=Scripted([Call("pay", {"amount": 1}), "done"]), tools=[pay], approve=["pay"])
    drain = Drain(database, agent)
    handle = drain.enqueue(agent)
    drain.work()
    (asked,) = handle.approvals()
    with pytest.raises(InputError, match="do not fit pay") as refused:
        handle.approve(asked.call_id, arguments={"amount": "much"})
    with pytest.raises(InputError, match="arguments must be a JSON object"):
        handle.approve(asked.call_id, arguments=[1])  # type: ignore[arg-type]
    assert refused.value.code == "input_invalid"


def test_a_context_that_is_no_object_is_told_what_it_is(database: Database) -> None:
    client = Drain(database, Agent("test", model=Scripted(["hello"]))).client
    with pytest.raises(InputError, match=r"context must be a JSON object, such as \{.*\}, not a value of type list"):
        client.enqueue("test", "go", context=[1])  # type: ignore[arg-type]
