"""G1, G2, G5: many decide at once, one after the other, too late, or not at all."""

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from agentq import (
    Agent,
    ApprovalNotPendingError,
    ApprovalRule,
    Handle,
    RunCancelledError,
    ThreadBusyError,
    ToolMessage,
    UserMessage,
    tool,
)
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.cases.stored import assert_over
from tests.engine.drain import Drain

ran: list[int] = []


@tool
def free() -> str:
    """Do what nobody minds."""
    ran.append(0)
    return "free"


@tool
def gated(n: int) -> str:
    """Do what a person minds."""
    ran.append(n)
    return f"did {n}"


def waiting(database: Database, *, numbers: tuple[int, ...] = (1,), **options: Any) -> tuple[Drain, Handle, Agent]:
    ran.clear()

    def answer(request: ModelRequest) -> Any:
        calls = [Call("free"), *(Call("gated", {"n": n}) for n in numbers)]
        last = request.messages[-1]
        is_over = isinstance(last, ToolMessage) or (isinstance(last, UserMessage) and last.text == "never mind")
        return "done" if is_over else calls

    approve = options.pop("approve", ["gated"])
    agent = Agent("test", model=Scripted([answer] * 9), tools=[free, gated], approve=approve)
    drain = Drain(database, agent)
    handle = drain.enqueue(agent, thread="t")
    drain.work()
    assert handle.status() == "waiting"
    return drain, handle, agent


def approve(handle: Handle, call_id: str) -> None:
    handle.approve(call_id, by="ann")


def reject(handle: Handle, call_id: str) -> None:
    handle.reject(call_id, by="bob")


@pytest.mark.parametrize("ways", [(approve,), (reject,), (approve, reject)], ids=["yes", "no", "both"])
def test_g1_of_twenty_that_decide_at_once_one_wins_and_the_others_hear_of_it(
    database: Database, ways: tuple[Callable[[Handle, str], None], ...]
) -> None:
    drain, handle, _ = waiting(database)
    (question,) = handle.approvals()
    lost: list[ApprovalNotPendingError] = []

    def decide(way: Callable[[Handle, str], None]) -> None:
        try:
            way(handle, question.call_id)
        except ApprovalNotPendingError as error:
            lost.append(error)

    threads = [Thread(target=decide, args=(ways[n % len(ways)],)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lost) == 19
    (record,) = handle.approvals(status=None)
    assert all(str(record.decided_by) in str(error) for error in lost)
    # The message that goes on may come twice.
    drain.wake_ups *= 2
    drain.work()
    assert ran.count(1) == (record.status == "approved")
    with pytest.raises(ApprovalNotPendingError):
        approve(handle, question.call_id)
    assert handle.approvals(status=None) == [record]
    assert_over(drain.database, handle)


def test_g2_decisions_one_by_one_run_nothing_before_the_last_and_keep_the_order_asked(database: Database) -> None:
    drain, handle, _ = waiting(database, numbers=(1, 2))
    first, second = handle.approvals()
    handle.approve(first.call_id)
    # Workers come and go meanwhile.
    drain.work()
    drain.age(3600)
    assert drain.sweep() == 0
    assert (handle.status(), ran) == ("waiting", [])
    handle.reject(second.call_id, reason="not today")
    drain.work()
    assert sorted(ran) == [0, 1]
    back = [message.result for message in handle.messages() if isinstance(message, ToolMessage)]
    assert [(result.text, result.code) for result in back[:2]] == [("free", None), ("did 1", None)]
    assert (back[2].code, "not today" in back[2].text) == ("rejected", True)
    assert_over(drain.database, handle)


@pytest.mark.parametrize("end", ["cancelled", "expired", "answered by a message"])
def test_g5_a_question_is_closed_with_what_became_of_it_and_the_thread_can_go_on(database: Database, end: str) -> None:
    rule = {"gated": ApprovalRule(deadline_secs=60)} if end == "expired" else ["gated"]
    drain, handle, agent = waiting(database, approve=rule)
    (question,) = handle.approvals()
    with pytest.raises(ThreadBusyError, match="waiting"):
        drain.enqueue(agent, "and now?", thread="t")
    if end == "cancelled":
        handle.cancel()
    elif end == "expired":
        drain.age(61)
        drain.sweep()
    else:
        drain.enqueue(agent, "never mind", thread="t", on_waiting="deny_and_continue")
    drain.work()
    with pytest.raises(ApprovalNotPendingError):
        handle.approve(question.call_id)
    (record,) = handle.approvals(status=None)
    statuses = {"cancelled": "closed", "expired": "expired", "answered by a message": "rejected"}
    assert record.status == statuses[end]
    assert 1 not in ran
    if end == "cancelled":
        with pytest.raises(RunCancelledError):
            handle.result()
    else:
        assert handle.status() == "completed"
    after = drain.enqueue(agent, "and now?", thread="t")
    drain.work()
    assert after.status() == "waiting"
