"""People are asked before a tool runs: by rule, by the tool itself, by a sub-agent; they answer, or nobody does."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentq import (
    Agent,
    ApprovalNotPendingError,
    ApprovalRule,
    Approve,
    NeedsApproval,
    Reject,
    Respond,
    RunCancelledError,
    RunContext,
    tool,
)
from agentq.providers.scripted import Call
from tests.scenarios.scenario import scenario
from tests.scenarios.scene import Scene
from tests.scenarios.stage import Played, act, look, pay

TOOLS = [pay, look]
DEADLINE_SECS = 1.5


def asking(name: str, *turns: Call | list[Call], **options: object) -> Agent:
    given = {"tools": TOOLS, "approve": ["pay"], **options}
    return Agent(name, model=Played([*turns, "done"], name), **given)  # type: ignore[arg-type]


def paying(*numbers: int) -> list[Call]:
    return [Call("pay", {"n": n}) for n in numbers]


by_name = asking("by_name", paying(1))
by_function = asking(
    "by_function", [*paying(1, 100), Call("look", {"n": 1})], approve={"pay": lambda ctx, given: given["n"] > 10}
)
expires_told = asking("expires_told", paying(1), approve={"pay": ApprovalRule(deadline_secs=DEADLINE_SECS)})
expires_runs = asking(
    "expires_runs", paying(1), approve={"pay": ApprovalRule(deadline_secs=DEADLINE_SECS, on_expiry="approve")}
)
expires_fails = asking(
    "expires_fails", paying(1), approve={"pay": ApprovalRule(deadline_secs=DEADLINE_SECS, on_expiry="fail")}
)
three = asking("three", paying(1, 2, 3))
edited = asking("edited", paying(1))
rejected = asking("rejected", paying(1))
responded = asking("responded", paying(1))
twice = asking("twice", paying(1), paying(2))
thrice = asking("thrice", paying(1, 2), paying(3))
raced = asking("raced", paying(1))
cancelled = asking("cancelled", [*paying(1), Call("look", {"n": 1})])
bottom = asking("bottom", [*paying(1), Call("look", {"n": 1})])
middle = asking("middle", Call("bottom", {"input": "go"}), tools=[bottom.as_tool()], approve=[])
top = asking("top", Call("middle", {"input": "go"}), tools=[middle.as_tool()], approve=[])


@tool(timeout=30)
def careful(n: int, ctx: RunContext) -> str:
    """Ask before much is paid."""
    if n > 10 and not ctx.approved:
        raise NeedsApproval(f"{n} is much")
    act(ctx, "careful")
    return f"careful {n}"


asks_itself = asking(
    "asks_itself", [Call("careful", {"n": 5}), Call("careful", {"n": 50})], tools=[careful], approve=[]
)


@scenario(model=2, in_tool=1, decided=1, enqueued=1)
def approved_by_name(scene: Scene) -> None:
    handle = scene.enqueue(by_name)
    (waiting,) = scene.asked(handle)
    assert (waiting.tool, json.loads(waiting.arguments), waiting.kind) == ("pay", {"n": 1}, "approval")
    assert scene.effects("pay") == 0
    handle.approve(waiting.call_id, reason="photo is fine", by="eva")
    scene.decided()
    scene.done(handle)
    scene.came_back(handle, ("pay", None, "pay 1"))
    (record,) = handle.approvals(status=None)
    assert (record.status, record.decided_by, record.reason) == ("approved", "eva", "photo is fine")


@scenario(model=2, tool=2, decided=1)
def approved_by_function(scene: Scene) -> None:
    handle = scene.enqueue(by_function)
    (waiting,) = scene.asked(handle)
    assert json.loads(waiting.arguments) == {"n": 100}
    # No tool of the turn has run before the person has decided.
    assert not scene.marked("effect")
    handle.approve(waiting.call_id)
    scene.decided()
    scene.done(handle)
    scene.came_back(handle, ("pay", None, "pay 1"), ("pay", None, "pay 100"), ("look", None, "look 1"))


@scenario(model=2)
def deadline_then_told(scene: Scene) -> None:
    handle = scene.enqueue(expires_told)
    (waiting,) = scene.asked(handle)
    scene.until(lambda: not handle.approvals(), "the deadline has passed")
    with pytest.raises(ApprovalNotPendingError):
        handle.approve(waiting.call_id)
    scene.done(handle)
    scene.came_back(handle, ("pay", "expired", None))
    (record,) = handle.approvals(status=None)
    assert record.status == "expired"


@scenario(model=2, in_tool=1)
def deadline_then_approved(scene: Scene) -> None:
    handle = scene.enqueue(expires_runs)
    scene.asked(handle)
    scene.done(handle)
    scene.came_back(handle, ("pay", None, "pay 1"))
    assert all(each["approved"] for each in scene.marked("tool"))


@scenario(model=1)
def deadline_then_failed(scene: Scene) -> None:
    handle = scene.enqueue(expires_fails)
    scene.asked(handle)
    scene.failed(handle, "approval_expired")
    assert scene.effects("pay") == 0


@scenario(model=1)
def deadline_while_workers_are_down(scene: Scene) -> None:
    handle = scene.enqueue(expires_told)
    (waiting,) = scene.asked(handle)
    scene.crew.kill_all()
    scene.until(lambda: _is_over(scene, waiting.expires_at), "the deadline has passed")
    with pytest.raises(ApprovalNotPendingError):
        handle.approve(waiting.call_id)
    assert handle.status() == "waiting"
    scene.crew.man()
    scene.done(handle)
    scene.came_back(handle, ("pay", "expired", None))


def _is_over(scene: Scene, moment: object) -> bool:
    with scene.crew.connect() as connection:
        return connection.execute("SELECT now() > %s", [moment]).fetchone() == (True,)


@scenario(model=2, tool=2, decided=1)
def tool_asks_by_itself(scene: Scene) -> None:
    handle = scene.enqueue(asks_itself)
    scene.until(lambda: handle.status() in ("waiting", "completed"), "it has asked, or its worker was lost before")
    if handle.status() == "waiting":
        (waiting,) = scene.asked(handle)
        assert waiting.question == "50 is much"
        handle.approve(waiting.call_id)
        scene.decided()
    scene.done(handle)
    scene.came_back(handle, ("careful", None, "careful 5"), ("careful", None, "careful 50"))


@scenario(model=2, in_tool=1, decided=1)
def several_decided_at_once(scene: Scene) -> None:
    handle = scene.enqueue(three)
    first, second, third = (each.call_id for each in scene.asked(handle, 3))
    with pytest.raises(ApprovalNotPendingError):
        handle.decide({first: Approve(), "call_of_nobody": Reject("no")})
    assert len(handle.approvals()) == 3, "all or none"
    handle.decide({first: Approve(), second: Reject("too much"), third: Respond("paid in cash")}, by="eva")
    scene.decided()
    scene.done(handle)
    scene.came_back(handle, ("pay", None, "pay 1"), ("pay", "rejected", "too much"), ("pay", None, "paid in cash"))
    assert {each.decided_by for each in handle.approvals(status=None)} == {"eva"}
    assert scene.effects("pay") <= 1


@scenario(model=2, in_tool=1, decided=1)
def approved_with_other_arguments(scene: Scene) -> None:
    handle = scene.enqueue(edited)
    (waiting,) = scene.asked(handle)
    handle.approve(waiting.call_id, arguments={"n": 7})
    scene.decided()
    scene.done(handle)
    scene.came_back(handle, ("pay", None, "pay 7"))
    (record,) = handle.approvals(status=None)
    assert (json.loads(record.arguments), json.loads(str(record.edited))) == ({"n": 1}, {"n": 7})


@scenario(model=2, decided=1)
def rejected_with_a_reason(scene: Scene) -> None:
    handle = scene.enqueue(rejected)
    (waiting,) = scene.asked(handle)
    scene.cli("approvals", "reject", handle.id, waiting.call_id, "--reason", "out of warranty", "--by", "otto")
    scene.decided()
    scene.done(handle)
    scene.came_back(handle, ("pay", "rejected", "out of warranty"))
    with pytest.raises(ApprovalNotPendingError):
        handle.approve(waiting.call_id)


@scenario(model=2, decided=1)
def answered_in_the_tools_place(scene: Scene) -> None:
    handle = scene.enqueue(responded)
    (waiting,) = scene.asked(handle)
    scene.cli("approvals", "respond", handle.id, waiting.call_id, "--result", "paid in cash")
    scene.decided()
    scene.done(handle)
    scene.came_back(handle, ("pay", None, "paid in cash"))
    assert scene.effects("pay") == 0


@scenario(model=3, tool=2, decided=1)
def approved_for_the_rest_of_the_run(scene: Scene) -> None:
    handle = scene.enqueue(twice)
    (waiting,) = scene.asked(handle)
    handle.approve(waiting.call_id, sticky=True)
    scene.decided()
    scene.done(handle)
    scene.came_back(handle, ("pay", None, "pay 1"), ("pay", None, "pay 2"))
    assert {each.status for each in handle.approvals(status=None)} == {"approved"}


@scenario(model=3, decided=1)
def rejected_for_the_rest_of_the_run(scene: Scene) -> None:
    handle = scene.enqueue(thrice)
    first, _ = scene.asked(handle, 2)
    handle.reject(first.call_id, reason="never", sticky=True)
    scene.decided()
    scene.done(handle)
    scene.came_back(handle, *[("pay", "rejected", "never")] * 3)
    assert scene.effects("pay") == 0


@scenario(model=2, in_tool=1, decided=1)
def one_of_twenty_deciders_wins(scene: Scene) -> None:
    handle = scene.enqueue(raced)
    (waiting,) = scene.asked(handle)

    refused: list[ApprovalNotPendingError] = []

    def decide(n: int) -> bool:
        try:
            if n % 2:
                handle.approve(waiting.call_id, by=f"person {n}")
            else:
                handle.reject(waiting.call_id, reason="no", by=f"person {n}")
        except ApprovalNotPendingError as error:
            refused.append(error)
            return False
        return True

    with ThreadPoolExecutor(20) as people:
        won = list(people.map(decide, range(20)))
    scene.decided()
    assert sum(won) == 1
    winner = won.index(True)
    assert all(f"person {winner}" in str(error) for error in refused), refused
    scene.done(handle)
    (record,) = handle.approvals(status=None)
    assert record.decided_by == f"person {winner}"
    scene.came_back(handle, ("pay", None if winner % 2 else "rejected", None))


@scenario(model=6, in_tool=1, decided=1)
def asked_two_levels_below(scene: Scene) -> None:
    handle = scene.enqueue(top)
    (waiting,) = scene.asked(handle)
    assert waiting.agent == "bottom"
    assert handle.wait(5).approvals == (waiting,)
    handle.approve(waiting.call_id)
    scene.decided()
    scene.done(handle)
    scene.came_back(handle, ("middle", None, "done"))
    below = scene.below(handle, "bottom")
    scene.came_back(below, ("pay", None, "pay 1"), ("look", None, "look 1"))


@scenario(model=1)
def cancelled_while_it_waits(scene: Scene) -> None:
    handle = scene.enqueue(cancelled)
    (waiting,) = scene.asked(handle)
    handle.cancel()
    scene.ended(handle, "cancelled")
    with pytest.raises(RunCancelledError):
        handle.result()
    with pytest.raises(ApprovalNotPendingError):
        handle.approve(waiting.call_id)
    scene.came_back(handle, ("pay", "cancelled", None), ("look", "cancelled", None))
    assert not scene.marked("effect")
    (record,) = handle.approvals(status=None)
    assert record.status == "closed"
