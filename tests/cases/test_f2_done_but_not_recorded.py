"""F2: work that was done and not recorded is done again only where that is allowed, and always with the same key."""

from collections.abc import Callable

import pytest

from agentq import Agent, RunContext, tool
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Fault, Scripted
from agentq.storage.database import Database
from tests.cases.stored import assert_over, codes
from tests.engine.drain import Died, Drain
from tests.engine.test_crashes import die_once, work_through
from tests.workers.fleet import Fleet


def charging(
    database: Database, *, idempotent: bool, calls: int, die: Callable[[int], bool]
) -> tuple[Drain, list[str]]:
    """An agent whose tool charges, and loses its process after the effect where ``die`` says so for the attempt."""
    keys: list[str] = []

    @tool(idempotent=idempotent)
    def charge(ctx: RunContext) -> str:
        """Charge."""
        keys.append(ctx.idempotency_key)
        if die(ctx.attempt):
            raise Died
        return "charged"

    @tool
    def beside() -> str:
        """Do something beside."""
        return "beside"

    asked = [Call("charge"), *[Call("beside")] * (calls - 1)]
    test = Agent("test", model=Scripted([asked, "done"]), tools=[charge, beside])
    drain = Drain(database, test)
    drain.enqueue(test)
    return drain, keys


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("deaths", [1, 2, 3])
@pytest.mark.parametrize("idempotent", [True, False], ids=["safe", "unsafe"])
def test_after_the_effect_and_before_its_commit(database: Database, idempotent: bool, deaths: int, calls: int) -> None:
    drain, keys = charging(database, idempotent=idempotent, calls=calls, die=lambda attempt: attempt <= deaths)
    handle = drain.client.handle(drain.client.runs()[0].id)
    assert work_through(drain, handle) == (deaths if idempotent else 1)
    assert set(keys) == {f"{handle.id}:1:0"}
    code = ("crashed" if deaths == 3 else None) if idempotent else "interrupted"
    assert codes(handle) == [code, *[None] * (calls - 1)]
    assert len(keys) == (min(deaths + 1, 3) if idempotent else 1)
    assert_over(database, handle)


def test_after_the_models_answer_and_before_its_commit_one_reply_is_kept(database: Database) -> None:
    asked: list[int] = []

    def reply(request: ModelRequest) -> str:
        asked.append(len(request.messages))
        return f"answer {len(asked)}"

    drain = Drain(database, test := Agent("test", model=Scripted([reply])), probe=die_once("effect", "model"))
    handle = drain.enqueue(test)
    assert work_through(drain, handle) == 1
    # Asked twice, with the same transcript; the lost answer is in no history.
    assert asked == [1, 1]
    assert [message.text for message in handle.messages()] == ["go", "answer 2"]  # type: ignore[union-attr]
    assert handle.run().model_calls == 1
    assert_over(database, handle)


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("fault", ["server_error", "quota_exceeded", "bug", "death"])
def test_an_approved_call_that_is_done_is_neither_asked_nor_run_again_when_the_next_model_call_fails(
    database: Database, fault: str, calls: int
) -> None:
    keys: list[str] = []
    failed: list[bool] = []

    @tool
    def pay(ctx: RunContext) -> str:
        """Pay."""
        keys.append(ctx.idempotency_key)
        return "paid"

    def last(request: ModelRequest) -> str:
        if fault in ("bug", "death") and not failed:
            failed.append(True)
            raise Died if fault == "death" else RuntimeError("a bug of the adapter")
        return "done"

    faults = [Fault(fault)] if fault in ("server_error", "quota_exceeded") else []  # type: ignore[arg-type]
    script = Scripted([[Call("pay")] * calls, *faults, last])
    test = Agent("test", model=script, fallback=[Scripted(["never", "done"])], tools=[pay], approve=["pay"])
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    work_through(drain, handle)
    assert handle.result().text == "done"
    assert sorted(keys) == [f"{handle.id}:1:{n}" for n in range(calls)]
    assert [approval.status for approval in drain.client.approvals(run_id=handle.id, status=None)] == [
        "approved"
    ] * calls
    requested = [event for event in handle.events(follow=False) if event.type == "approval.requested"]
    assert len(requested) == calls
    assert_over(database, handle)


@pytest.mark.crash
def test_with_real_workers_a_charge_that_loses_its_process_after_the_effect(workers: Fleet) -> None:
    workers.both(concurrency=2)
    agents = ("pays", "pays_beside", "pays_safely", "pays_safely_beside")
    for agent, handle in [(agent, workers.client.enqueue(agent, "go")) for agent in agents]:
        assert handle.wait(90).text == "done"
        key = f"{handle.id}:1:0"
        attempts = [call["attempt"] for call in workers.calls("charge") if call["key"] == key]
        safe, beside = "safely" in agent, "beside" in agent
        assert attempts == ([1, 2] if safe else [1])
        assert codes(handle) == [None if safe else "interrupted", *[None] * beside]
        assert_over(workers.database, handle)
    assert len({call["key"] for call in workers.calls("charge")}) == len(agents)
    assert len(workers.calls("note")) == 2
