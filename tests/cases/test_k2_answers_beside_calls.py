"""K2: the first valid answer of a reply ends the run; no other call of it runs, and each has one result."""

from typing import Any

import pytest
from pydantic import BaseModel

from agentq import Agent, AskAgain, Handle, Hooks, RunContext, RunFailedError, ToolCall, tool
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.cases.stored import assert_over, codes, results
from tests.engine.drain import Drain

sent: list[str] = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


@tool
def send_mail() -> str:
    """Send a mail."""
    sent.append("mail")
    return "sent"


@tool
def gated() -> str:
    """Do what needs a person."""
    sent.append("gated")
    return "done"


class Number(BaseModel):
    a: int


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GOOD, OTHER, BAD = (Call("final_answer", {"a": value}) for value in (1, 2, "x"))
MAIL, GATED = Call("send_mail"), Call("gated")


def run(database: Database, *script: Any, **more: Any) -> Handle:
    options = {"output": Number, "tools": [send_mail, gated], "approve": ["gated"]} | more
    drain = Drain(database, test := Agent("test", model=Scripted([*script, "never"]), **options))
    handle = drain.enqueue(test)
    drain.work()
    return handle


@pytest.mark.parametrize("output", [Number, SCHEMA], ids=["type", "schema"])
@pytest.mark.parametrize("hooks", [(), (Hooks(),)], ids=["plain", "hooks"])
@pytest.mark.parametrize(
    ("calls", "value", "expected"),
    [
        ([GOOD, MAIL], 1, [None, "skipped"]),
        ([MAIL, GOOD], 1, ["skipped", None]),
        ([BAD, GOOD], 1, ["invalid_arguments", None]),
        ([GOOD, BAD], 1, [None, "invalid_arguments"]),
        ([GOOD, OTHER], 1, [None, "skipped"]),
        ([OTHER, GOOD], 2, [None, "skipped"]),
        ([GOOD, GATED], 1, [None, "skipped"]),
        ([GATED, MAIL, BAD, OTHER, GOOD], 2, ["skipped", "skipped", "invalid_arguments", None, "skipped"]),
        ([Call("nobody"), GOOD], 1, ["unknown_tool", None]),
        (["In words, too.", GOOD, MAIL], 1, [None, "skipped"]),
    ],
)
def test_the_first_valid_answer_ends_the_run_and_nothing_else_happens(
    database: Database, calls: Any, value: int, expected: list[str | None], output: Any, hooks: Any
) -> None:
    handle = run(database, calls, output=output, hooks=hooks)
    result = handle.result()
    assert result.stop_reason == "output"
    assert result.output == (Number(a=value) if output is Number else {"a": value})
    assert codes(handle) == expected
    assert (sent, result.approvals) == ([], ())
    assert handle.run().tool_calls == 0
    assert_over(database, handle)


def test_beside_an_invalid_answer_the_others_run_and_the_gated_one_waits(database: Database) -> None:
    handle = run(database, [BAD, MAIL], GOOD)
    assert handle.result().output == Number(a=1)
    assert (sent, codes(handle)) == (["mail"], ["invalid_arguments", None, None])
    assert_over(database, handle)
    handle = run(database, [BAD, GATED], GOOD, output=SCHEMA)
    assert handle.result().stop_reason == "needs_approval"


def test_a_text_beside_calls_is_no_answer(database: Database) -> None:
    handle = run(database, ['{"a": 1}', MAIL], '{"a": 2}')
    assert (handle.result().output, sent) == (Number(a=2), ["mail"])


def test_the_second_invalid_answer_ends_the_run_and_what_is_beside_it_does_not_run(database: Database) -> None:
    handle = run(database, BAD, [MAIL, BAD, GATED])
    with pytest.raises(RunFailedError) as caught:
        handle.result()
    assert caught.value.code == "output_invalid"
    assert (sent, codes(handle)) == ([], ["invalid_arguments", "cancelled", "invalid_arguments", "cancelled"])
    assert_over(database, handle)


def odd_only(ctx: RunContext, value: Number) -> None:
    if value.a % 2 == 0:
        raise AskAgain("an odd number, please")


def test_an_answer_that_a_check_does_not_take_is_an_invalid_one(database: Database) -> None:
    """So the first that it takes is final, and beside none of them the others run."""
    handle = run(database, [OTHER, GOOD, MAIL], output_check=odd_only)
    assert (handle.result().output, sent) == (Number(a=1), [])
    assert codes(handle) == ["invalid_arguments", None, "skipped"]
    assert_over(database, handle)
    handle = run(database, [OTHER, MAIL], GOOD, output_check=odd_only)
    assert (handle.result().output, sent) == (Number(a=1), ["mail"])
    assert results(handle)[0].text == "an odd number, please"
    handle = run(database, OTHER, '{"a": 2}', output_check=odd_only)
    with pytest.raises(RunFailedError, match="an odd number, please") as caught:
        handle.result()
    assert caught.value.code == "output_invalid"


def test_where_a_check_fails_the_run_does_and_no_other_call_runs(database: Database) -> None:
    def broken(ctx: RunContext, value: Number) -> None:
        raise ZeroDivisionError

    for script in ([MAIL, GOOD, GATED], '{"a": 1}'):
        handle = run(database, script, output_check=broken)
        with pytest.raises(RunFailedError) as caught:
            handle.result()
        assert caught.value.code == "output_check_failed"
        assert sent == []
        assert set(codes(handle)) <= {"cancelled"}
        assert handle.run().model_calls == 1
        assert_over(database, handle)


def test_what_a_check_makes_of_the_answer_is_the_runs_output(database: Database) -> None:
    def doubled(ctx: RunContext, value: Number) -> Number:
        return Number(a=value.a * 2)

    handle = run(database, [GOOD], output_check=[doubled, doubled])
    assert handle.result().output == Number(a=4)
    assert handle.run().output == {"a": 4}


def test_an_answer_that_a_hook_left_out_of_the_reply_is_none(database: Database) -> None:
    class Drops(Hooks):
        def after_model(self, ctx: RunContext, reply: Any) -> Any:
            def keeps(call: ToolCall) -> bool:
                return call.name != "final_answer" or "1" in call.arguments

            return reply.model_copy(update={"calls": tuple(filter(keeps, reply.calls))})

    handle = run(database, [OTHER, MAIL], GOOD, hooks=[Drops()])
    assert (handle.result().output, sent) == (Number(a=1), ["mail"])


def test_the_typed_object_comes_back_to_who_knows_the_agent_and_json_to_who_does_not(database: Database) -> None:
    handle = run(database, [GOOD])
    assert handle.result().output == Number(a=1)
    assert Drain(database).client.handle(handle.id).result().output == {"a": 1}
