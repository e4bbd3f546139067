"""People decide: by rule, with changed arguments, in place of a tool, for the rest of a run, in time or too late."""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from hashlib import sha256
from itertools import count
from typing import Any

import pytest

from agentq import (
    Agent,
    ApprovalNotPendingError,
    ApprovalRule,
    Approve,
    Client,
    ConfigError,
    Deferred,
    Handle,
    NeedsApproval,
    Reject,
    Respond,
    RunContext,
    RunFailedError,
    ToolCall,
    WaitTimeoutError,
    tool,
)
from agentq.hooks import Hooks
from agentq.providers.scripted import Call, Scripted, Step
from agentq.storage.database import Database
from tests.engine.drain import Died, Drain
from tests.engine.mishaps import ObservedDatabase
from tests.engine.test_crashes import die_once, results

ALONE, BATCH = 1, 3
NAN = float("nan")


class Bank:
    """What was really paid, as ``(amount, approved, attempt)``; from ``asks_from`` on the tool itself asks."""

    def __init__(self, asks_from: float = float("inf")) -> None:
        self.paid: list[tuple[float, bool, int]] = []
        self.keys: list[str] = []
        self.asks_from = asks_from
        self.asks_always = False

    def pay(self, amount: float, ctx: RunContext) -> str:
        """Pay money."""
        self.keys.append(ctx.idempotency_key)
        if self.asks_always or (amount >= self.asks_from and not ctx.approved):
            raise NeedsApproval(f"{amount:g} is a lot")
        self.paid.append((amount, ctx.approved, ctx.attempt))
        return f"paid {amount:g}"

    def agent(self, *steps: Step, name: str = "test", **more: Any) -> Agent:
        more.setdefault("approve", ["pay"])
        return Agent(name, model=Scripted([*steps, "done"]), tools=[tool(self.pay)], **more)


def pays(*amounts: float) -> list[Call]:
    return [Call("pay", {"amount": amount}) for amount in amounts]


def waiting(database: Database, agent: Agent, **options: Any) -> tuple[Drain, Handle]:
    drain = Drain(database, agent)
    handle = drain.enqueue(agent, **options)
    drain.work()
    assert handle.status() == "waiting"
    return drain, handle


def asked(handle: Handle) -> dict[str, str]:
    """The waiting calls: their ids by the arguments."""
    return {approval.arguments: approval.call_id for approval in handle.approvals()}


def texts(handle: Handle) -> list[str]:
    return [result.text for result in results(handle)]


# ---------------------------------------------------------------------------------------------- who is asked


def test_a_rule_looks_at_the_context_and_the_checked_arguments(database: Database) -> None:
    def too_much(ctx: RunContext, arguments: dict[str, Any]) -> bool:
        return bool(arguments["amount"] > ctx.context["limit"])

    bank = Bank()
    drain, handle = waiting(database, bank.agent(pays(5, 500), approve={"pay": too_much}), context={"limit": 100})
    assert bank.paid == []
    (approval,) = handle.result().approvals
    assert json.loads(approval.arguments) == {"amount": 500}
    handle.approve(approval.call_id)
    drain.work()
    assert handle.result().text == "done"
    assert sorted(bank.paid) == [(5, False, 1), (500, True, 1)]


def test_where_no_call_needs_a_person_there_is_no_review(database: Database) -> None:
    drain = Drain(database)
    result = drain.run(Bank().agent(pays(5), approve={"pay": lambda ctx, arguments: False}))
    events = [event.data.get("phase") for event in drain.client.handle(result.run_id).events(follow=False)]
    assert (result.text, "review" in events) == ("done", False)


def test_a_rule_that_raises_asks_a_person_and_is_on_record(database: Database) -> None:
    def broken(ctx: RunContext, arguments: dict[str, Any]) -> bool:
        raise KeyError("limit")

    _, handle = waiting(database, Bank().agent(pays(5), approve={"pay": broken}))
    faults = [event.data["faults"] for event in handle.events(follow=False) if "faults" in event.data]
    assert faults == [["approve[pay]: KeyError"]]


@pytest.mark.parametrize("asked_by", ["the model", "a hook"])
def test_rules_that_hang_ask_a_person_and_do_not_hold_up_the_run(
    database: Database, monkeypatch: pytest.MonkeyPatch, asked_by: str
) -> None:
    over, is_model = threading.Event(), asked_by == "the model"
    calls = 6 if is_model else 2

    def hangs(ctx: RunContext, arguments: dict[str, Any]) -> bool:
        return arguments["amount"] >= 1 and over.wait(30)

    class Raises(Hooks):
        def before_tool(self, ctx: RunContext, call: ToolCall) -> dict[str, Any]:
            return {"amount": 1}

    bank = Bank()
    more: dict[str, Any] = {} if is_model else {"hooks": [Raises()]}
    agent = bank.agent(
        pays(*[1 if is_model else 0] * calls),
        approve={"pay": hangs},
        hook_timeout_secs=0.5,
        limits={"tool_timeout_secs": 5},
        **more,
    )
    monkeypatch.setattr("agentq.steps.model.MAX_HOOKS_SECS", 0.8)
    drain = Drain(database, agent)
    handle = drain.enqueue(agent)
    try:
        drain.work()
    finally:
        over.set()
    assert len(handle.approvals()) == (calls if is_model else 0)
    faults = [fault for event in handle.events(follow=False) for fault in event.data.get("faults", ())]
    assert faults[0] == "approve[pay]: no answer within 0.5 s"
    # Of many in one reply all together are bounded.
    assert not is_model or faults[-1] == "approve[pay]: those before it have used up the time"
    assert bank.paid == []


def test_arguments_that_do_not_fit_are_put_before_nobody(database: Database) -> None:
    bank = Bank()
    _, handle = waiting(database, bank.agent([Call("pay", {"amount": "much"}), *pays(5)]))
    assert [json.loads(approval.arguments) for approval in handle.approvals()] == [{"amount": 5}]
    assert [result.code for result in results(handle)] == ["invalid_arguments"]


@pytest.mark.parametrize(
    ("approve", "says"),
    [
        ({"pay": 5}, r"approve\['pay'\] is True, False, a function or an ApprovalRule, not 5"),
        ({"pay": lambda ctx: True}, "when is a function of the context and the arguments"),
        ({"pays": True}, "approve names 'pays', which is not one of its tools: pay"),
        ({"pay": Approve}, "is True, False, a function or an ApprovalRule"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_the_agent(approve: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Bank().agent("done", approve=approve)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"deadline_secs": 0}, "deadline_secs"),
        ({"deadline_secs": True}, "deadline_secs"),
        ({"on_expiry": "x"}, "on_exp"),
    ],
)
def test_a_deadline_is_a_positive_number_and_its_end_is_one_of_three(rule: dict[str, Any], says: str) -> None:
    for made in (ApprovalRule, NeedsApproval):
        with pytest.raises(ConfigError, match=says):
            made(**rule)


# ---------------------------------------------------------------------------------------------- what they may say


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_changed_arguments_run_in_place_of_the_models_and_the_model_is_told(database: Database, calls: int) -> None:
    bank = Bank()
    drain, handle = waiting(database, bank.agent(pays(*range(calls))))
    (first, *others) = handle.approvals()
    handle.decide(
        {first.call_id: Approve({"amount": 70}, reason="their limit"), **{a.call_id: Approve() for a in others}},
        by="eva",
    )
    drain.work()
    assert sorted(bank.paid) == sorted([(70, True, 1), *((n, True, 1) for n in range(1, calls))])
    assert texts(handle)[0] == 'A person changed the arguments to {"amount": 70} before it ran.\npaid 70'
    record = next(a for a in handle.approvals(status=None) if a.call_id == first.call_id)
    assert (record.status, record.decided_by, record.reason) == ("approved", "eva", "their limit")
    assert (record.arguments, record.edited) == (first.arguments, '{"amount": 70}')
    assert record.arguments_sha256 == sha256(first.arguments.encode()).hexdigest()
    told = [event.data for event in handle.events(follow=False) if event.type == "approval.decided"]
    assert told[0] == {"call_id": first.call_id, "decision": "approved", "by": "eva", "edited": True}
    assert "70" not in json.dumps(told)
    assert "limit" not in json.dumps(told)


def test_changed_arguments_that_do_not_fit_are_refused_where_the_agent_is_known(database: Database) -> None:
    drain, handle = waiting(database, (bank := Bank()).agent(pays(5)))
    (call_id,) = asked(handle).values()
    with pytest.raises(ConfigError, match="the changed arguments do not fit pay: amount: "):
        handle.approve(call_id, arguments={"amount": "lots"})
    with pytest.raises(ConfigError, match="leave out sticky, or the arguments"):
        handle.approve(call_id, arguments={"amount": 1}, sticky=True)
    assert len(handle.approvals()) == 1
    handle.approve(call_id, arguments={"amount": 6})
    drain.work()
    assert bank.paid == [(6, True, 1)]


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_changed_arguments_that_do_not_fit_come_back_to_the_person_from_the_worker(
    database: Database, calls: int
) -> None:
    bank = Bank()
    drain, handle = waiting(database, bank.agent(pays(*range(calls))))
    drain.client.agents.clear()  # as a producer that does not import the agents
    first, *others = handle.approvals()
    wrong = Approve({"amount": "lots"})
    handle.decide({first.call_id: wrong, **{a.call_id: Approve() for a in others}})
    drain.work()
    (again,) = handle.approvals()
    assert (again.call_id, again.arguments) == (first.call_id, first.arguments)
    assert again.question.startswith("The changed arguments do not fit: amount: ")
    assert sorted(paid for paid, *_ in bank.paid) == list(range(1, calls))
    handle.approve(again.call_id)
    drain.work()
    assert handle.result().text == "done"
    assert texts(handle) == [f"paid {n}" for n in range(calls)]
    assert sorted(paid for paid, *_ in bank.paid) == list(range(calls))


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_person_may_answer_in_the_place_of_a_tool(database: Database, calls: int) -> None:
    bank = Bank()
    drain, handle = waiting(database, bank.agent(pays(*range(calls))))
    first, *others = handle.approvals()
    for other in others:
        handle.approve(other.call_id)
    handle.respond(first.call_id, {"paid": "in cash"}, by="eva")
    drain.work()
    assert handle.result().text == "done"
    assert texts(handle) == ['{"paid": "in cash"}', *(f"paid {n}" for n in range(1, calls))]
    assert [result.status for result in results(handle)] == ["success"] * calls
    assert sorted(paid for paid, *_ in bank.paid) == list(range(1, calls))
    with pytest.raises(ApprovalNotPendingError, match="answered in place of its tool by eva"):
        handle.approve(first.call_id)


def test_decisions_given_together_are_taken_together_or_not_at_all(database: Database) -> None:
    bank = Bank()
    drain, handle = waiting(database, bank.agent(pays(1, 2, 3)))
    one, two, three = (approval.call_id for approval in handle.approvals())
    handle.reject(two, by="bert")
    with pytest.raises(ApprovalNotPendingError, match="rejected by bert"):
        handle.decide({one: Approve(), two: Approve(), three: Approve()})
    with pytest.raises(ApprovalNotPendingError, match="no call 'nope'"):
        handle.decide({one: Approve(), "nope": Reject()})
    with pytest.raises(ConfigError, match="no JSON form"):
        handle.decide({one: Approve(), three: Respond(object())})
    assert {approval.call_id for approval in handle.approvals()} == {one, three}
    handle.decide({one: Approve(), three: Reject("no")})
    drain.work()
    assert [(result.status, result.code) for result in results(handle)] == [
        ("success", None),
        ("rejected", "rejected"),
        ("rejected", "rejected"),
    ]
    assert bank.paid == [(1, True, 1)]


# ---------------------------------------------------------------------------------------------- for the rest of the run


def test_a_sticky_approval_is_for_the_other_calls_of_the_tool_now_and_later(database: Database) -> None:
    bank = Bank()
    drain, handle = waiting(database, bank.agent(pays(1, 2), pays(3), pays(4, 5)))
    handle.approve(handle.approvals()[1].call_id, sticky=True, reason="trusted", by="eva")
    drain.work()
    assert handle.result().text == "done"
    assert sorted(paid for paid, *_ in bank.paid) == [1, 2, 3, 4, 5]
    assert all(approved for _, approved, _ in bank.paid)
    record = [(a.status, a.decided_by, a.reason, a.sticky) for a in handle.approvals(status=None)]
    assert record == [("approved", "eva", "trusted", True)] * 5


def test_a_sticky_rejection_answers_the_tools_later_calls_and_asks_nobody(database: Database) -> None:
    bank = Bank()
    drain, handle = waiting(database, bank.agent(pays(1), pays(2, 3)))
    handle.reject(handle.approvals()[0].call_id, reason="never", sticky=True)
    drain.work()
    assert handle.result().text == "done"
    assert texts(handle) == ["A person rejected this call: never"] * 3
    assert bank.paid == []
    assert [a.status for a in handle.approvals(status=None)] == ["rejected"] * 3


def test_a_sticky_decision_is_for_its_tool_and_its_run_only(database: Database) -> None:
    bank = Bank()

    @tool
    def other() -> str:
        """Another tool that is asked about."""
        return "ok"

    agent = Agent(
        "test",
        model=Scripted([pays(1), [*pays(2), Call("other")], "done"]),
        tools=[tool(bank.pay), other],
        approve=["pay", "other"],
    )
    drain, handle = waiting(database, agent)
    handle.approve(handle.approvals()[0].call_id, sticky=True)
    drain.work()
    assert [approval.tool for approval in handle.approvals()] == ["other"]
    _, second = waiting(database, agent)
    assert [approval.tool for approval in second.approvals()] == ["pay"]


@pytest.mark.parametrize("calls", [ALONE, BATCH])
@pytest.mark.parametrize("approved", [True, False])
def test_a_sticky_decision_holds_for_a_tool_that_asks_by_itself_too(
    database: Database, calls: int, approved: bool
) -> None:
    bank = Bank(asks_from=100)
    drain, handle = waiting(database, bank.agent(pays(500), pays(*range(600, 600 + calls)), approve=[]))
    (approval,) = handle.approvals()
    handle.decide({approval: Approve(sticky=True) if approved else Reject("never", sticky=True)}, by="eva")
    drain.work()
    assert handle.result().text == "done"
    record = [(a.status, a.decided_by, a.sticky) for a in handle.approvals(status=None)]
    assert record == [("approved" if approved else "rejected", "eva", True)] * (1 + calls)
    later = [f"paid {600 + n}" for n in range(calls)] if approved else ["A person rejected this call: never"] * calls
    assert texts(handle)[1:] == later
    assert sorted(paid for paid, *_ in bank.paid) == ([500, *range(600, 600 + calls)] if approved else [])


@pytest.mark.parametrize("approved", [True, False])
def test_a_sticky_decision_holds_for_a_tool_that_is_about_to_ask_while_it_is_made(
    database: Database, monkeypatch: pytest.MonkeyPatch, approved: bool
) -> None:
    bank = Bank(asks_from=100)
    drain = Drain(database, agent := bank.agent(pays(500, 600, 1), approve=[]))
    handle = drain.enqueue(agent)
    ask = drain.engine.saver.ask

    def decided_before(*arguments: Any) -> Any:
        for approval in handle.approvals():
            handle.decide({approval: Approve(sticky=True) if approved else Reject("never", sticky=True)}, by="eva")
        return ask(*arguments)

    monkeypatch.setattr(drain.engine.saver, "ask", decided_before)
    drain.work()
    assert handle.result().text == "done"
    record = [(a.status, a.decided_by, a.sticky) for a in handle.approvals(status=None)]
    assert record == [("approved" if approved else "rejected", "eva", True)] * 2
    said = ["paid 500", "paid 600"] if approved else ["A person rejected this call: never"] * 2
    assert sorted(texts(handle)) == sorted([*said, "paid 1"])
    assert sorted(paid for paid, *_ in bank.paid) == ([1, 500, 600] if approved else [1])
    decided = [event for event in handle.events(follow=False) if event.type == "approval.decided"]
    assert [event.data["by"] for event in decided] == ["eva"] * 2


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_the_model_learns_of_changed_arguments_also_from_the_outside(database: Database, calls: int) -> None:
    @tool
    def pay(amount: float) -> str:
        """Hand it over."""
        raise Deferred

    agent = Agent("test", model=Scripted([pays(*range(calls)), "done"]), tools=[pay], approve=["pay"])
    drain, handle = waiting(database, agent)
    handle.decide({a: Approve({"amount": 7}) if not n else Reject("no") for n, a in enumerate(handle.approvals())})
    drain.work()
    (out,) = handle.approvals()
    assert out.kind == "deferred"
    handle.complete(out.call_id, "sent")
    drain.work()
    assert handle.result().text == "done"
    assert texts(handle)[0] == 'A person changed the arguments to {"amount": 7} before it ran.\nsent'


def test_of_decisions_given_together_each_call_has_its_own_beside_a_sticky_one(database: Database) -> None:
    bank = Bank()
    drain, handle = waiting(database, bank.agent(pays(1, 2, 3)))
    one, two, _ = (approval.call_id for approval in handle.approvals())
    handle.decide({one: Approve(sticky=True), two: Reject("not this")})
    drain.work()
    assert [result.status for result in results(handle)] == ["success", "rejected", "success"]


# ---------------------------------------------------------------------------------------------- a tool that asks


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_tool_may_ask_by_itself_and_runs_once_it_is_approved(database: Database, calls: int) -> None:
    bank = Bank(asks_from=100)
    drain, handle = waiting(database, bank.agent(pays(500, *range(1, calls)), approve=[]))
    assert sorted(bank.paid) == [(n, False, 1) for n in range(1, calls)]
    (approval,) = handle.result().approvals
    assert (approval.tool, approval.question, approval.kind) == ("pay", "500 is a lot", "approval")
    handle.approve(approval.call_id)
    drain.work()
    assert handle.result().text == "done"
    assert texts(handle) == ["paid 500", *(f"paid {n}" for n in range(1, calls))]
    assert (500, True, 1) in bank.paid
    assert bank.keys.count(f"{handle.id}:1:0") == 2


@pytest.mark.parametrize("calls", [ALONE, BATCH])
@pytest.mark.parametrize(
    ("decide", "text"),
    [
        (lambda handle, call: handle.reject(call, reason="no"), "A person rejected this call: no"),
        (lambda handle, call: handle.respond(call, "in cash"), "in cash"),
        (
            lambda handle, call: handle.approve(call, arguments={"amount": 7}),
            'A person changed the arguments to {"amount": 7} before it ran.\npaid 7',
        ),
    ],
    ids=["reject", "respond", "edit"],
)
def test_what_a_person_says_to_a_tool_that_asked_is_its_result(
    database: Database, calls: int, decide: Callable[[Handle, str], None], text: str
) -> None:
    bank = Bank(asks_from=100)
    drain, handle = waiting(database, bank.agent(pays(500, *range(1, calls)), approve=[]))
    decide(handle, handle.approvals()[0].call_id)
    drain.work()
    assert handle.result().text == "done"
    assert texts(handle)[0] == text
    assert 500 not in [paid for paid, *_ in bank.paid]


class Caps(Hooks):
    """No call is for more than ``most``."""

    def __init__(self, *most: float) -> None:
        self._most = [*most]

    def before_tool(self, ctx: RunContext, call: ToolCall) -> dict[str, Any] | None:
        most = self._most[0] if len(self._most) == 1 else self._most.pop(0)
        amount = json.loads(call.arguments)["amount"]
        return {"amount": min(amount, most)} if amount else None


@pytest.mark.parametrize("calls", [ALONE, BATCH])
@pytest.mark.parametrize(
    ("decision", "paid"), [(Approve(), 100), (Approve({"amount": 90}), 90), (Approve(sticky=True), 100)]
)
def test_what_hooks_had_made_of_a_call_when_its_tool_asked_is_what_is_approved_and_runs(
    database: Database, calls: int, decision: Approve, paid: float
) -> None:
    bank = Bank(asks_from=10)
    agent = bank.agent(pays(500, *[0] * (calls - 1)), approve=[], hooks=[Caps(100)])
    drain, handle = waiting(database, agent)
    (approval,) = handle.approvals()
    assert approval.arguments == '{"amount": 100}'
    assert approval.arguments_sha256 == sha256(approval.arguments.encode()).hexdigest()
    handle.decide({approval: decision})
    drain.work()
    assert handle.result().text == "done"
    assert [amount for amount, *_ in bank.paid if amount] == [paid]


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_hooks_that_make_something_else_of_a_call_than_was_approved_have_it_refused(
    database: Database, calls: int
) -> None:
    bank = Bank(asks_from=10)
    agent = bank.agent(pays(500, *[0] * (calls - 1)), approve=[], hooks=[Caps(100, *[100] * (calls - 1), 300)])
    drain, handle = waiting(database, agent)
    handle.approve(*asked(handle).values())
    drain.work()
    assert (handle.result().text, results(handle)[0].code) == ("done", "rejected")
    assert [amount for amount, *_ in bank.paid if amount] == []


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_tool_that_asks_again_although_it_was_approved_has_failed(database: Database, calls: int) -> None:
    bank = Bank()
    bank.asks_always = True
    drain, handle = waiting(database, bank.agent(pays(*range(calls)), approve=[]))
    for approval in handle.approvals():
        handle.approve(approval.call_id)
    drain.work()
    assert handle.result().text == "done"
    assert [result.code for result in results(handle)] == ["tool_failed"] * calls
    assert bank.paid == []


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_call_that_waits_because_its_tool_asked_is_closed_as_not_run(database: Database, calls: int) -> None:
    bank = Bank(asks_from=100)
    _, handle = waiting(database, bank.agent(pays(500, *range(1, calls)), approve=[]))
    call_id = handle.approvals()[0].call_id
    assert handle.cancel() == "cancelled"
    assert [result.code for result in results(handle)] == ["cancelled", *[None] * (calls - 1)]
    assert texts(handle)[0] == "Not run: the run has ended."
    with pytest.raises(ApprovalNotPendingError, match="closed"):
        handle.approve(call_id)


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_tool_that_asks_while_its_run_is_cancelled_asks_nobody(database: Database, calls: int) -> None:
    handles: list[Handle] = []

    @tool
    def pay(amount: float) -> str:
        """Be cancelled, and ask."""
        handles[0].cancel()
        raise NeedsApproval

    agent = Agent("test", model=Scripted([pays(*range(calls)), "done"]), tools=[pay])
    drain = Drain(database, agent)
    handles.append(drain.enqueue(agent))
    drain.work()
    assert handles[0].status() == "cancelled"
    assert {result.code for result in results(handles[0])} == {"cancelled"}
    assert handles[0].approvals(status=None) == []


def test_a_tool_that_asks_has_not_come_back_for_its_hooks(database: Database) -> None:
    seen: list[str] = []

    class Watch(Hooks):
        def before_tool(self, ctx: RunContext, call: ToolCall) -> None:
            seen.append("before")

        def after_tool(self, ctx: RunContext, result: Any) -> None:
            seen.append(f"after {result.text}")

    drain, handle = waiting(database, Bank(asks_from=100).agent(pays(500), approve=[], hooks=[Watch()]))
    assert seen == ["before"]
    handle.approve(handle.approvals()[0].call_id)
    drain.work()
    assert seen == ["before", "before", "after paid 500"]


@pytest.mark.parametrize("calls", [ALONE, BATCH])
@pytest.mark.parametrize("point", ["effect", "committed", "announced"])
def test_a_worker_lost_around_a_tools_question_asks_it_once_or_tells_of_the_loss(
    database: Database, calls: int, point: str
) -> None:
    bank = Bank(asks_from=100)
    agent = bank.agent(pays(500, *range(1, calls)), approve=[])
    drain = Drain(database, agent, probe=die_once(point, "tools" if calls == ALONE else "call"))
    handle = drain.enqueue(agent)
    for _ in range(12):
        try:
            drain.work()
        except Died:
            assert len(handle.approvals()) <= 1
        if handle.run().is_terminal:
            break
        for approval in handle.approvals():
            handle.approve(approval.call_id)
        drain.age(20)
        drain.sweep()
    assert handle.result().text == "done"
    # Before the commit nobody knows that it only asked: an unsafe tool is not run again then.
    lost = point == "effect"
    assert results(handle)[0].code == ("interrupted" if lost else None)
    assert [paid for paid, *_ in bank.paid].count(500) == (0 if lost else 1)


# ---------------------------------------------------------------------------------------------- until when


def with_deadline(on_expiry: Any, calls: int, bank: Bank) -> Agent:
    rule = ApprovalRule(deadline_secs=3600, on_expiry=on_expiry)
    return bank.agent(pays(*range(calls)), approve={"pay": rule})


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_decision_after_the_deadline_is_refused_also_before_anybody_has_noticed(
    database: Database, calls: int
) -> None:
    bank = Bank()
    drain, handle = waiting(database, with_deadline("report", calls, bank))
    call_id = handle.approvals()[0].call_id
    drain.age(3599)
    drain.sweep()
    assert len(handle.approvals()) == calls
    drain.age(2)
    for decide in (handle.approve, handle.reject):
        with pytest.raises(ApprovalNotPendingError, match="is expired since") as caught:
            decide(call_id)
        assert caught.value.details["status"] == "expired"
    drain.sweep()
    drain.work()
    assert handle.result().text == "done"
    assert {result.code for result in results(handle)} == {"expired"}
    assert {result.status for result in results(handle)} == {"error"}
    assert [a.status for a in handle.approvals(status=None)] == ["expired"] * calls
    assert bank.paid == []
    with pytest.raises(ApprovalNotPendingError, match="is expired since"):
        handle.approve(call_id)


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_an_expired_approval_may_stand_for_yes(database: Database, calls: int) -> None:
    bank = Bank()
    drain, handle = waiting(database, with_deadline("approve", calls, bank))
    drain.age(3601)
    drain.sweep()
    drain.work()
    assert handle.result().text == "done"
    assert sorted(bank.paid) == [(n, True, 1) for n in range(calls)]
    assert [a.status for a in handle.approvals(status=None)] == ["expired"] * calls


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_an_expired_approval_may_end_the_run(database: Database, calls: int) -> None:
    bank = Bank()
    drain, handle = waiting(database, with_deadline("fail", calls, bank))
    drain.age(3601)
    drain.sweep()
    with pytest.raises(RunFailedError, match="nobody decided in time whether pay may run") as caught:
        handle.result()
    assert caught.value.code == "approval_expired"
    assert {result.code for result in results(handle)} == {"cancelled"}
    assert (bank.paid, drain.wake_ups) == ([], [])


@pytest.mark.parametrize("calls", [ALONE, BATCH])
@pytest.mark.parametrize("on_expiry", ["report", "approve", "fail"])
def test_a_tool_that_asks_may_give_a_deadline_too(database: Database, calls: int, on_expiry: Any) -> None:
    runs: list[int] = []

    @tool
    def pay(amount: float, ctx: RunContext) -> str:
        """Ask for the first one."""
        if amount == 0 and not ctx.approved:
            raise NeedsApproval(deadline_secs=60, on_expiry=on_expiry)
        runs.append(int(amount))
        return "paid"

    drain, handle = waiting(database, Agent("test", model=Scripted([pays(*range(calls)), "done"]), tools=[pay]))
    drain.age(61)
    drain.sweep()
    drain.work()
    code = {"report": "expired", "approve": None, "fail": "cancelled"}[on_expiry]
    assert results(handle)[0].code == code
    assert (0 in runs) == (on_expiry == "approve")
    assert handle.status() == ("failed" if on_expiry == "fail" else "completed")


def test_the_rule_of_the_agent_goes_before_the_deadline_of_the_tool(database: Database) -> None:
    rule = ApprovalRule(when=lambda ctx, arguments: False, deadline_secs=10)

    @tool
    def pay(amount: float) -> str:
        """Ask."""
        raise NeedsApproval(deadline_secs=60)

    agent = Agent("test", model=Scripted([pays(1), "done"]), tools=[pay], approve={"pay": rule})
    _, handle = waiting(database, agent)
    (approval,) = handle.approvals()
    assert approval.expires_at is not None
    assert round((approval.expires_at - approval.requested_at).total_seconds()) == 10


def test_of_deciders_and_the_deadline_at_once_one_wins_and_each_loser_learns_who(database: Database) -> None:
    bank = Bank()
    drain, handle = waiting(database, with_deadline("report", 1, bank))
    (call_id,) = asked(handle).values()
    won: list[str] = []
    refused: list[ApprovalNotPendingError] = []
    with database.transaction() as connection:
        connection.execute("update agentq.approvals set expires_at = now() + interval '150 ms'")

    def decide(i: int) -> None:
        try:
            handle.decide({call_id: [Approve(), Reject(), Respond("x")][i % 3]}, by=f"person {i}")
            won.append(f"person {i}")
        except ApprovalNotPendingError as error:
            refused.append(error)

    threads = [threading.Thread(target=decide, args=(i,)) for i in range(20)]
    sweeper = threading.Thread(target=lambda: [drain.sweep() for _ in range(10)])
    for thread in [*threads[:10], sweeper, *threads[10:]]:
        thread.start()
    for thread in [*threads, sweeper]:
        thread.join()
    (record,) = handle.approvals(status=None)
    assert len(refused) == (19 if record.decided_by else 20)
    assert won == ([record.decided_by] if record.decided_by else [])
    assert {error.details.get("decided_by") for error in refused} <= {record.decided_by}
    drain.work()
    assert len(results(handle)) == 1
    assert len(bank.paid) == (record.status == "approved")


# ---------------------------------------------------------------------------------------------- what it is bound to


@pytest.mark.parametrize("named", ["by its id", "by its approval"])
@pytest.mark.parametrize("given", ["call_0", ""])
def test_a_late_word_on_a_call_is_none_on_a_later_call_to_which_the_model_gave_the_same_id(
    database: Database, given: str, named: str
) -> None:
    bank = Bank()
    turns = [Call("pay", {"amount": amount}, id=given) for amount in (1, 10_000)]
    drain, handle = waiting(database, bank.agent(*turns))
    (seen,) = handle.approvals()
    handle.approve(seen.call_id, by="eva")
    drain.work()
    (later,) = handle.approvals()
    assert later.arguments == '{"amount": 10000}'
    with pytest.raises(ApprovalNotPendingError, match="is approved by eva since"):
        handle.decide({seen.call_id if named == "by its id" else seen: Approve()}, by="otto")
    assert handle.approvals() == [later]
    assert [amount for amount, *_ in bank.paid] == [1]


TAMPERED = ["arguments_sha256 = 'of other arguments'", "status = 'rejected'", "kind = 'outcome'"]


@pytest.mark.parametrize("calls", [ALONE, BATCH])
@pytest.mark.parametrize("tamper", TAMPERED)
def test_a_gated_call_runs_only_with_an_approval_of_its_arguments_on_record(
    database: Database, calls: int, tamper: str
) -> None:
    bank = Bank()
    drain, handle = waiting(database, bank.agent(pays(*range(calls))))
    handle.decide(dict.fromkeys(asked(handle).values(), Approve()))
    with database.transaction() as connection:
        connection.execute(f"update agentq.approvals set {tamper}")
    drain.work()
    assert handle.result().text == "done"
    assert [result.code for result in results(handle)] == ["rejected"] * calls
    assert bank.paid == []


@pytest.mark.parametrize("calls", [ALONE, BATCH])
@pytest.mark.parametrize("tamper", TAMPERED)
def test_a_gated_sub_agent_begins_only_with_an_approval_of_its_task_on_record(
    database: Database, calls: int, tamper: str
) -> None:
    clerk = Agent("clerk", model=Scripted(["did it"]))
    script = Scripted([[Call("clerk", {"input": f"task {n}"}) for n in range(calls)], "done"])
    top = Agent("top", model=script, tools=[clerk.as_tool()], approve=["clerk"])
    drain = Drain(database, top, clerk)
    handle = drain.enqueue(top)
    drain.work()
    handle.decide(dict.fromkeys(handle.approvals(), Approve()))
    with database.transaction() as connection:
        connection.execute(f"update agentq.approvals set {tamper} where index = 0")
    drain.work()
    assert handle.result().text == "done"
    assert [result.code for result in results(handle)] == ["rejected", *[None] * (calls - 1)]
    assert len(drain.client.runs(agent="clerk")) == calls - 1


# ---------------------------------------------------------------------------------------------- handed to the outside


def handing_out(calls: int, **options: Any) -> tuple[Agent, list[tuple[str, str]]]:
    """An agent whose first call is handed to the outside, and what the outside was told."""
    handed: list[tuple[str, str]] = []

    @tool
    def pay(amount: float, ctx: RunContext) -> str:
        """Hand over the first one."""
        if amount == 0:
            handed.append((ctx.run_id, ctx.call_id))
            raise Deferred(**options)
        return f"paid {amount:g}"

    return Agent("test", model=Scripted([pays(*range(calls)), "done"]), tools=[pay]), handed


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_call_handed_to_the_outside_is_completed_with_its_call_id(database: Database, calls: int) -> None:
    agent, handed = handing_out(calls, note="batch 7")
    drain, handle = waiting(database, agent)
    ((run_id, call_id),) = handed
    (approval,) = handle.approvals()
    assert (approval.kind, approval.question, approval.call_id) == ("deferred", "batch 7", call_id)
    assert "was handed to the outside" in handle.why().waiting_for[0].what
    with pytest.raises(WaitTimeoutError):
        handle.wait(timeout=0.05)
    with pytest.raises(ApprovalNotPendingError, match="waits for its result: agentq approvals complete"):
        handle.approve(call_id)
    drain.client.handle(run_id).complete(call_id, {"receipt": 7}, by="bank")
    with pytest.raises(ApprovalNotPendingError, match="is completed by bank since"):
        drain.client.handle(run_id).complete(call_id)
    drain.work()
    assert handle.wait(timeout=5).text == "done"
    assert texts(handle) == ['{"receipt": 7}', *(f"paid {n}" for n in range(1, calls))]
    assert len(handed) == 1


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_call_handed_to_the_outside_may_fail_there(database: Database, calls: int) -> None:
    agent, handed = handing_out(calls)
    drain, handle = waiting(database, agent)
    handle.fail(handed[0][1], "the bank is closed")
    drain.work()
    assert handle.result().text == "done"
    assert (results(handle)[0].code, texts(handle)[0]) == ("tool_error", "the bank is closed")


@pytest.mark.parametrize("calls", [ALONE, BATCH])
@pytest.mark.parametrize("on_expiry", ["report", "fail"])
def test_the_outside_may_have_a_deadline(database: Database, calls: int, on_expiry: Any) -> None:
    agent, handed = handing_out(calls, deadline_secs=60, on_expiry=on_expiry)
    drain, handle = waiting(database, agent)
    drain.age(61)
    with pytest.raises(ApprovalNotPendingError, match="is expired since"):
        handle.complete(handed[0][1], "late")
    drain.sweep()
    drain.work()
    assert handle.status() == ("completed" if on_expiry == "report" else "failed")
    result = results(handle)[0]
    assert result.code == ("expired" if on_expiry == "report" else "interrupted")
    assert "may or may not have taken effect" in result.text


def test_who_is_faster_than_the_worker_that_handed_it_over_is_waited_for(database: Database) -> None:
    outside: list[threading.Thread] = []

    @tool
    def pay(amount: float, ctx: RunContext) -> str:
        """Be overtaken by the outside."""
        answer = threading.Thread(target=drain.client.handle(ctx.run_id).complete, args=(ctx.call_id, "at once"))
        outside.append(answer)
        answer.start()
        raise Deferred

    agent = Agent("test", model=Scripted([pays(0), "done"]), tools=[pay])
    drain = Drain(database, agent)
    handle = drain.enqueue(agent)
    drain.work()
    outside[0].join()
    drain.work()
    assert (handle.result().text, texts(handle)) == ("done", ["at once"])


@pytest.mark.parametrize("calls", [ALONE, BATCH])
@pytest.mark.parametrize("point", ["effect", "committed", "announced"])
def test_a_worker_lost_while_it_hands_a_call_over_does_not_hand_it_over_twice(
    database: Database, calls: int, point: str
) -> None:
    agent, handed = handing_out(calls)
    drain = Drain(database, agent, probe=die_once(point, "tools" if calls == ALONE else "call"))
    handle = drain.enqueue(agent)
    for _ in range(12):
        with suppress(Died):
            drain.work()
        if handle.run().is_terminal:
            break
        for approval in handle.approvals():
            handle.complete(approval.call_id, "completed")
        drain.age(20)
        drain.sweep()
    assert handle.result().text == "done"
    assert texts(handle)[0] == ("completed" if point != "effect" else interrupted_text(handle))
    assert len(handed) == 1


def interrupted_text(handle: Handle) -> str:
    first = results(handle)[0]
    assert first.code == "interrupted"
    return first.text


@pytest.mark.parametrize("statement", range(7))
@pytest.mark.parametrize("goes_on_to", ["nothing yet", "the outside", "its end"])
def test_whoever_waits_while_another_one_decides_is_given_no_result_that_is_none(
    database: Database, statement: int, goes_on_to: str
) -> None:
    agent, _ = handing_out(1)
    agent = Agent(
        "test",
        model=Scripted([pays(1 if goes_on_to == "its end" else 0), "done"]),
        tools=agent.tools.values(),
        approve=["pay"],
    )
    drain, handle = waiting(database, agent)
    observed, passed = ObservedDatabase(database.url), count()

    def moment(what: str) -> None:
        if next(passed) == statement:
            handle.approve(*asked(handle).values())
            if goes_on_to != "nothing yet":
                drain.work()

    observed.moment = moment
    client = Client(settings=drain.client.settings)
    client.database = observed
    try:
        result = client.handle(handle.id).wait(timeout=0.3)
    except WaitTimeoutError:
        assert goes_on_to != "its end"
    else:
        assert result.text == "done" if result.status == "completed" else result.approvals[0].kind == "approval"
    finally:
        observed.dispose()


# ---------------------------------------------------------------------------------------------- what is no decision


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda handle, call: handle.decide({call: True}), "True is no decision"),
        (lambda handle, call: handle.decide({call: "approve"}), "'approve' is no decision"),
        (lambda handle, call: handle.decide({call: Approve}), "is no decision; give Approve"),
        (lambda handle, call: handle.decide([call]), "decisions map call ids to decisions"),
        (lambda handle, call: handle.decide(call), "decisions map call ids to decisions"),
        (lambda handle, call: handle.approve(5), "named by its id or its Approval, not by 5"),
        (lambda handle, call: handle.approve(call, by=5), "by is the name of who decides"),
        (lambda handle, call: handle.reject(call, reason=5), "Reject: reason is a text"),
        (lambda handle, call: handle.approve(call, sticky="no"), "Approve: sticky is True or False"),
        (lambda handle, call: handle.reject(call, sticky=None), "Reject: sticky is True or False"),
        (lambda handle, call: handle.fail(call, 5), "Fail: message is a text"),
        (lambda handle, call: handle.settle(call, happened=0), "happened is True, False or None"),
        (lambda handle, call: handle.respond(call, object()), "the result has no JSON form"),
        (lambda handle, call: handle.respond(call, 10**5000), "the result has no JSON form"),
        (lambda handle, call: handle.respond(call, [1, {"n": NAN}]), r"\[1\].n is NaN, and JSON has no such number"),
        (lambda handle, call: handle.settle(call, happened=True, result=NAN), "the value is NaN"),
        (lambda handle, call: handle.complete(call, {"n": -float("inf")}), "n is -Infinity"),
        (lambda handle, call: handle.approve(call, arguments={"amount": NAN}), "amount is NaN"),
        (lambda handle, call: handle.approve(call, arguments={"amount": Decimal("Infinity")}), "amount is Infinity"),
        (lambda handle, call: handle.approve(call, arguments="all"), "arguments must be a JSON object"),
        (lambda handle, call: handle.approve(call, arguments={"amount": object()}), "must be a JSON object"),
        (lambda handle, call: handle.decide({call: Approve(), handle.approvals()[0]: Reject()}), "decided on twice"),
    ],
)
def test_what_is_no_decision_is_refused_in_our_words_and_the_call_waits_on(
    database: Database, wrong: Callable[[Handle, str], object], says: str
) -> None:
    _, handle = waiting(database, Bank().agent(pays(1)))
    (call_id,) = asked(handle).values()
    with pytest.raises(ConfigError, match=says):
        wrong(handle, call_id)
    assert [approval.status for approval in handle.approvals(status=None)] == ["pending"]


# ---------------------------------------------------------------------------------------------- sub-agents


def family(bank: Bank, *, levels: int = 1, calls: int = 1, beside: bool = False) -> Agent:
    """An agent whose sub-agent (of so many levels) pays; ``beside``: a second sub-agent that pays as well."""
    below = bank.agent(pays(*range(calls)), name="clerk")
    for level in range(levels - 1):
        below = Agent(
            f"boss{level}", model=Scripted([Call(below.name, {"input": "x"}), "told"]), tools=[below.as_tool()]
        )
    others = [bank.agent(pays(9), name="other")] if beside else []
    tools = [agent.as_tool() for agent in (below, *others)]
    return Agent("top", model=Scripted([[Call(each.name, {"input": "x"}) for each in tools], "done"]), tools=tools)


def with_family(database: Database, top: Agent) -> Drain:
    known = [top]
    for agent in known:
        known += [each.agent for each in agent.tools.values() if each.agent]
    return Drain(database, *known)


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_what_a_sub_agent_asks_is_asked_on_the_outermost_run(database: Database, levels: int) -> None:
    bank = Bank()
    drain = with_family(database, top := family(bank, levels=levels))
    handle = drain.enqueue(top)
    drain.work()
    result = handle.wait(timeout=10)
    assert (result.status, result.stop_reason) == ("waiting", "needs_approval")
    (approval,) = result.approvals
    assert (approval.tool, approval.agent, approval.run_id != handle.id) == ("pay", "clerk", True)
    handle.approve(approval.call_id, by="eva")
    assert handle.status() == "running"
    drain.work()
    assert handle.wait(timeout=10).text == "done"
    assert bank.paid == [(0, True, 1)]
    (record,) = handle.approvals(status=None)
    assert record.decided_by == "eva"


def test_a_run_is_not_waiting_while_another_sub_agent_is_at_work(database: Database) -> None:
    bank = Bank()
    drain = with_family(database, top := family(bank, beside=True))
    handle = drain.enqueue(top)
    while len(drain.wake_ups) < 2:
        drain.do(drain.wake_ups.pop(0))
    first, second = drain.wake_ups
    drain.wake_ups = [first]
    drain.work()
    assert (len(handle.approvals()), handle.status()) == (1, "running")
    drain.wake_ups = [second]
    drain.work()
    assert (len(handle.approvals()), handle.status()) == (2, "waiting")
    decided = {approval.run_id: approval.call_id for approval in handle.approvals()}
    one, other = decided
    drain.client.handle(one).approve(decided[one])
    drain.work()
    assert handle.status() == "waiting"
    drain.client.handle(other).approve(decided[other])
    drain.work()
    assert handle.wait(timeout=10).text == "done"


def test_one_call_id_of_two_sub_agents_is_decided_by_the_run_it_belongs_to(database: Database) -> None:
    bank = Bank()
    clerks = [bank.agent(Call("pay", {"amount": n}, id="same"), name=f"clerk{n}") for n in range(2)]
    calls = [Call(clerk.name, {"input": "x"}) for clerk in clerks]
    top = Agent("top", model=Scripted([calls, "done"]), tools=[clerk.as_tool() for clerk in clerks])
    drain = Drain(database, top, *clerks)
    handle = drain.enqueue(top)
    drain.work()
    with pytest.raises(ConfigError, match="several runs wait with a call 'same': run_"):
        handle.approve("same")
    for approval in handle.approvals():
        drain.client.handle(approval.run_id).approve("same")
    drain.work()
    assert handle.wait(timeout=10).text == "done"
    assert sorted(paid for paid, *_ in bank.paid) == [0, 1]


@pytest.mark.parametrize("levels", [1, 3])
def test_who_is_late_with_a_sub_agents_call_learns_of_the_outermost_run_who_decided(
    database: Database, levels: int
) -> None:
    bank = Bank()
    drain = with_family(database, top := family(bank, levels=levels))
    handle = drain.enqueue(top)
    drain.work()
    (call_id,) = asked(handle).values()
    refused: list[ApprovalNotPendingError] = []

    def decide(name: str) -> None:
        try:
            handle.decide({call_id: Approve()}, by=name)
        except ApprovalNotPendingError as error:
            refused.append(error)

    people = [threading.Thread(target=decide, args=(f"person {n}",)) for n in range(20)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    drain.work()
    with pytest.raises(ApprovalNotPendingError) as late:
        handle.reject(call_id)
    (record,) = handle.approvals(status=None)
    assert [error.details.get("decided_by") for error in [*refused, late.value]] == [record.decided_by] * 20
    assert (handle.result().text, bank.paid) == ("done", [(0, True, 1)])


def test_however_many_calls_wait_all_of_a_run_are_shown_and_decided_on(database: Database) -> None:
    bank = Bank()
    clerks = [bank.agent(pays(*range(30)), name=f"clerk{n}") for n in range(7)]
    calls = [Call(clerk.name, {"input": "x"}) for clerk in clerks]
    top = Agent("top", model=Scripted([calls, "done"]), tools=[clerk.as_tool() for clerk in clerks])
    drain = Drain(database, top, *clerks)
    handle = drain.enqueue(top)
    drain.work()
    assert len(handle.result().approvals) == 210
    handle.decide(dict.fromkeys(handle.approvals(), Reject()))
    drain.work()
    assert (handle.result().text, len(handle.approvals(status=None))) == ("done", 210)


def test_calls_of_several_sub_agents_are_decided_on_together(database: Database) -> None:
    bank = Bank()
    drain = with_family(database, top := family(bank, beside=True, calls=2))
    handle = drain.enqueue(top)
    drain.work()
    assert len(handle.approvals()) == 3
    handle.decide(dict.fromkeys(handle.approvals(), Approve()))
    drain.work()
    assert handle.wait(timeout=10).text == "done"
    assert sorted(paid for paid, *_ in bank.paid) == [0, 1, 9]


@pytest.mark.parametrize(
    "changed", [{}, {"task": "y"}, {"input": None}, {"input": {"x": 1}}, {"input": "y", "more": 1}]
)
def test_a_changed_task_that_no_sub_agent_takes_is_refused_by_a_process_without_the_agents_too(
    database: Database, changed: dict[str, Any]
) -> None:
    clerk = Agent("clerk", model=Scripted(["did it"]))
    calls = [Call("clerk", {"input": "x"}), Call("clerk", {"input": "y"})]
    top = Agent("top", model=Scripted([calls, "done"]), tools=[clerk.as_tool()], approve=["clerk"])
    drain = Drain(database, top, clerk)
    handle = drain.enqueue(top)
    drain.work()
    drain.client.agents.clear()
    first, second = asked(handle).values()
    with pytest.raises(ConfigError, match="the changed arguments do not fit clerk"):
        handle.decide({second: Approve(), first: Approve(changed)})
    assert len(handle.approvals()) == 2
    handle.decide({second: Approve(), first: Approve({"input": "z"})})
    drain.work()
    assert handle.result().text == "done"


def test_a_sub_agent_may_need_approval_itself_with_a_changed_task(database: Database) -> None:
    heard: list[str] = []

    def answer(request: Any) -> str:
        heard.append(request.messages[-1].text)
        return "did it"

    clerk = Agent("clerk", model=Scripted([answer]))
    top = Agent(
        "top", model=Scripted([Call("clerk", {"input": "x"}), "done"]), tools=[clerk.as_tool()], approve=["clerk"]
    )
    drain = Drain(database, top, clerk)
    handle = drain.enqueue(top)
    drain.work()
    assert heard == []
    handle.approve(handle.approvals()[0].call_id, arguments={"input": "y"})
    drain.work()
    assert (handle.result().text, heard) == ("done", ["y"])
    assert texts(handle) == ['A person changed the arguments to {"input": "y"} before it ran.\ndid it']
