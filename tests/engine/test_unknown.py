"""A call whose worker was lost in the middle: run again, reported, put before a person, or asked of the destination."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from agentq import Agent, ApprovalNotPendingError, ConfigError, Handle, Happened, NotHappened, RunContext, tool
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.engine.drain import Died, Drain
from tests.engine.test_crashes import results, work_through

# A single call is run by the tools step itself, several in lanes.
ALONE, BATCH = 1, 3


class Outside:
    """The destination of a tool: what took effect there, by idempotency key."""

    def __init__(self, *, lost: bool = False) -> None:
        self.effects: list[str] = []
        self.attempts: list[str] = []
        self.numbers: list[int] = []
        self.asked: list[tuple[str, int]] = []
        # Whether the process dies before the effect, or after it.
        self.lost = lost
        self.deaths = 1

    def charge(self, n: int, ctx: RunContext) -> str:
        """Take money; the first call's process dies."""
        self.attempts.append(ctx.idempotency_key)
        self.numbers.append(ctx.attempt)
        if n == 0 and self.deaths and self.lost:
            self.deaths -= 1
            raise Died
        self.effects.append(ctx.idempotency_key)
        if n == 0 and self.deaths:
            self.deaths -= 1
            raise Died
        return f"charged {n}"

    def charged(self, n: int, ctx: RunContext) -> Happened | NotHappened:
        self.asked.append((ctx.idempotency_key, n))
        return Happened(f"found {n}") if ctx.idempotency_key in self.effects else NotHappened()

    def agent(self, on_unknown: Any, calls: int, **more: Any) -> Agent:
        function = tool(on_unknown=on_unknown, name="charge")(self.charge)
        asked = [Call("charge", {"n": n}) for n in range(calls)]
        return Agent("test", model=Scripted([asked, "done"]), tools=[function], **more)


def died(database: Database, outside: Outside, on_unknown: Any, calls: int, **more: Any) -> tuple[Drain, Handle]:
    """A run whose first call's worker was lost, found by the sweep; everything that can be done has been done."""
    drain = Drain(database, test := outside.agent(on_unknown, calls, **more))
    handle = drain.enqueue(test)
    for _ in range(2):
        with suppress(Died):
            drain.work()
        for approval in drain.client.approvals():
            if approval.kind == "approval":
                handle.approve(approval.call_id)
    while not outside.deaths and (drain.wake_ups or drain.age(20) or drain.sweep()):
        drain.work()
        if handle.status() not in ("queued", "running"):
            break
    return drain, handle


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_retry_runs_it_again_with_the_same_key(database: Database, calls: int) -> None:
    outside = Outside()
    _, handle = died(database, outside, "retry", calls)
    assert handle.result().text == "done"
    assert outside.attempts.count(f"{handle.id}:1:0") == 2
    assert [result.code for result in results(handle)] == [None] * calls


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_report_tells_the_model_and_does_not_run_it_again(database: Database, calls: int) -> None:
    outside = Outside()
    _, handle = died(database, outside, "report", calls)
    assert handle.result().text == "done"
    assert len(outside.attempts) == calls
    assert [result.code for result in results(handle)] == ["interrupted"] + [None] * (calls - 1)


# ---------------------------------------------------------------------------------------------- a person is asked


@pytest.mark.parametrize("calls", [ALONE, BATCH, 12])
def test_ask_puts_the_call_before_a_person_and_the_run_waits_with_everything_else_done(
    database: Database, calls: int
) -> None:
    outside = Outside()
    drain, handle = died(database, outside, "ask", calls)
    result = handle.wait(0)
    assert (result.status, result.stop_reason) == ("waiting", "needs_approval")
    [question] = result.approvals
    assert (question.kind, question.tool, question.arguments, question.status) == (
        "outcome",
        "charge",
        '{"n": 0}',
        "pending",
    )
    # Whoever looks at the destination needs the key.
    assert question.idempotency_key == f"{handle.id}:1:0"
    assert len(outside.effects) == calls
    assert [result.text for result in results(handle)] == [f"charged {n}" for n in range(1, calls)]
    # Nothing is held, announced or looked at while it waits.
    drain.age(3600)
    assert drain.sweep() == 0
    assert drain.wake_ups == []


@pytest.mark.parametrize(
    ("given", "code", "text"),
    [
        ({"happened": True, "result": "receipt 7"}, None, "receipt 7"),
        ({"happened": True}, None, "took effect"),
        ({"happened": True, "result": {"receipt": 7}}, None, '"receipt"'),
        ({"happened": True, "reason": "seen at the bank"}, None, "took effect"),
        ({"happened": None, "reason": "the bank does not answer"}, "interrupted", "the bank does not answer"),
        ({"happened": None}, "interrupted", "may or may not have taken effect"),
    ],
)
@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_what_the_person_says_is_the_result(
    database: Database, calls: int, given: dict[str, Any], code: str | None, text: str
) -> None:
    outside = Outside()
    drain, handle = died(database, outside, "ask", calls)
    call_id = handle.result().approvals[0].call_id
    handle.settle(call_id, by="ann", **given)
    drain.work()
    assert handle.result().text == "done"
    assert len(outside.attempts) == calls
    assert results(handle)[0].code == code
    assert text in results(handle)[0].text
    [question] = drain.client.approvals(status=None)
    assert (question.decided_by, question.status) == ("ann", "happened" if given["happened"] else "unknown")


@pytest.mark.parametrize("calls", [ALONE, BATCH, 12])
def test_a_call_that_did_not_happen_runs_again_with_the_same_key(database: Database, calls: int) -> None:
    outside = Outside(lost=True)
    drain, handle = died(database, outside, "ask", calls)
    handle.settle(handle.result().approvals[0].call_id, happened=False)
    assert handle.status() == "running"
    drain.work()
    assert handle.result().text == "done"
    assert [result.text for result in results(handle)] == [f"charged {n}" for n in range(calls)]
    assert outside.attempts.count(f"{handle.id}:1:0") == 2
    # A tool may look at its attempt to know whether it is the first.
    assert outside.numbers == [1] * calls + [2]
    assert len(outside.effects) == calls


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_call_is_asked_about_each_time_its_worker_is_lost(database: Database, calls: int) -> None:
    outside = Outside(lost=True)
    drain, handle = died(database, outside, "ask", calls)
    outside.deaths = 1
    handle.settle(handle.result().approvals[0].call_id, happened=False)
    with pytest.raises(Died):
        drain.work()
    drain.age(20)
    drain.sweep()
    [question] = handle.result().approvals
    handle.settle(question.call_id, happened=True, result="in the end")
    drain.work()
    assert handle.result().text == "done"
    assert results(handle)[0].text == "in the end"
    assert [approval.status for approval in drain.client.approvals(status=None)] == ["not_happened", "happened"]


def test_the_lost_wake_up_of_a_call_that_runs_again_is_sent_again(database: Database) -> None:
    outside = Outside(lost=True)
    drain, handle = died(database, outside, "ask", BATCH)
    handle.settle(handle.result().approvals[0].call_id, happened=False)
    drain.wake_ups.clear()
    drain.age(10)
    drain.sweep()
    drain.work()
    assert handle.result().text == "done"


def test_a_call_that_a_person_has_approved_may_be_asked_about_too(database: Database) -> None:
    outside = Outside()
    drain, handle = died(database, outside, "ask", ALONE, approve=["charge"])
    [question] = handle.result().approvals
    with pytest.raises(ApprovalNotPendingError, match="asks whether it took effect"):
        handle.approve(question.call_id)
    with pytest.raises(ApprovalNotPendingError, match="asks whether it took effect"):
        handle.reject(question.call_id)
    handle.settle(question.call_id, happened=True, result="it did")
    drain.work()
    assert handle.result().text == "done"
    assert [approval.kind for approval in drain.client.approvals(status=None)] == ["approval", "outcome"]


def test_an_answer_fits_its_question(database: Database) -> None:
    outside = Outside()
    gated = outside.agent("ask", ALONE, approve=["charge"])
    drain = Drain(database, gated)
    handle = drain.enqueue(gated)
    drain.work()
    call_id = handle.result().approvals[0].call_id
    with pytest.raises(ApprovalNotPendingError, match="asks whether it may run"):
        handle.settle(call_id, happened=True)
    with pytest.raises(ConfigError, match="has no result"):
        handle.settle(call_id, happened=False, result="5")
    with pytest.raises(ConfigError, match="happened is True, False or None"):
        handle.settle(call_id, happened="yes")  # type: ignore[arg-type]
    assert handle.status() == "waiting"


def test_one_answer_counts_and_the_next_person_learns_of_it(database: Database) -> None:
    drain, handle = died(database, Outside(), "ask", BATCH)
    call_id = handle.result().approvals[0].call_id
    handle.settle(call_id, happened=True, by="ann")
    with pytest.raises(ApprovalNotPendingError, match="said to have happened by ann"):
        handle.settle(call_id, happened=False, by="bob")
    drain.work()
    assert handle.result().text == "done"


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_cancelled_run_asks_nobody_any_more(database: Database, calls: int) -> None:
    drain, handle = died(database, Outside(), "ask", calls)
    call_id = handle.result().approvals[0].call_id
    assert handle.cancel() == "cancelled"
    assert drain.client.approvals() == []
    assert results(handle)[0].code == "interrupted"
    with pytest.raises(ApprovalNotPendingError, match="closed"):
        handle.settle(call_id, happened=True)


@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_run_that_is_being_cancelled_asks_nobody(database: Database, calls: int) -> None:
    outside = Outside()
    drain = Drain(database, test := outside.agent("ask", calls))
    handle = drain.enqueue(test)
    with pytest.raises(Died):
        drain.work()
    handle.cancel()
    drain.age(20)
    drain.sweep()
    drain.work()
    assert handle.status() == "cancelled"
    assert drain.client.approvals(status=None) == []


# ---------------------------------------------------------------------------------------------- a probe asks


@pytest.mark.parametrize("lost", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("calls", [ALONE, BATCH])
def test_a_probe_finds_out_and_the_effect_happens_once(database: Database, calls: int, lost: bool) -> None:
    outside = Outside(lost=lost)
    _, handle = died(database, outside, outside.charged, calls)
    assert handle.result().text == "done"
    # Asked only about the call that may have run, with its own key and arguments.
    assert outside.asked == [(f"{handle.id}:1:0", 0)]
    assert sorted(outside.effects) == [f"{handle.id}:1:{n}" for n in range(calls)]
    assert results(handle)[0].text == ("charged 0" if lost else "found 0")


def hang(ctx: RunContext) -> NotHappened:
    while True:
        pass


def raises(ctx: RunContext) -> NotHappened:
    raise ConnectionError("the bank does not answer")


def exits(ctx: RunContext) -> NotHappened:
    raise SystemExit(1)


async def asynchronous(ctx: RunContext) -> Happened:
    return Happened("found it")


@pytest.mark.parametrize(
    ("probe", "code"),
    [(raises, "interrupted"), (exits, "interrupted"), (lambda: True, "interrupted"), (asynchronous, None)],
    ids=["raises", "exits", "answers nonsense", "async"],
)
def test_a_probe_that_cannot_tell_leaves_it_to_the_model(
    database: Database, probe: Callable[..., Any], code: str | None
) -> None:
    outside = Outside()
    _, handle = died(database, outside, probe, ALONE)
    assert handle.result().text == "done"
    assert len(outside.attempts) == 1
    assert results(handle)[0].code == code


def test_a_probe_that_hangs_is_stopped_at_the_tools_time_limit(database: Database) -> None:
    outside = Outside()
    _, handle = died(database, outside, hang, ALONE, limits={"tool_timeout_secs": 0.3})
    assert handle.result().text == "done"
    assert results(handle)[0].code == "interrupted"


def test_a_probe_that_kills_its_worker_three_times_is_given_up(database: Database) -> None:
    outside = Outside()

    def deadly(ctx: RunContext) -> NotHappened:
        raise Died

    drain = Drain(database, test := outside.agent(deadly, BATCH))
    handle = drain.enqueue(test)
    assert work_through(drain, handle) == 3
    assert results(handle)[0].code == "crashed"
    assert len(outside.effects) == BATCH


def test_a_probe_that_a_deploy_has_taken_away_leaves_it_to_the_model(database: Database) -> None:
    outside = Outside()
    drain = Drain(database, test := outside.agent(outside.charged, ALONE))
    handle = drain.enqueue(test)
    with pytest.raises(Died):
        drain.work()
    drain.agents["test"] = outside.agent("report", ALONE)
    drain.age(20)
    drain.sweep()
    drain.work()
    assert results(handle)[0].code == "interrupted"
    assert len(outside.attempts) == 1
