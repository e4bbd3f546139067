"""What an agent's own checks make of an answer: accepted, changed, asked for again, or nobody can tell."""

import asyncio
import json
import threading
from typing import Any

import pytest
from pydantic import BaseModel

from agentq import AskAgain, EndRun, RunContext
from agentq.agent import AgentSpec
from agentq.errors import ConfigError
from agentq.messages import AssistantMessage, ToolCall
from agentq.outcomes import Output
from agentq.steps.answers import answers, structured

CTX = RunContext(run_id="run_1", agent="test", context={"most": 5})


class Ticket(BaseModel):
    a: int


def final(*values: Any) -> AssistantMessage:
    calls = [ToolCall(id=f"c{n}", name="final_answer", arguments=json.dumps(value)) for n, value in enumerate(values)]
    return AssistantMessage(calls=tuple(calls), stop="tool_calls")


def worth(reply: AssistantMessage, *checks: Any, **more: Any) -> Output:
    agent = AgentSpec("test", model="openai:x", output=Ticket, output_check=checks, **more)
    found = structured(answers(reply, agent, CTX))
    assert found is not None
    return found


def at_most(ctx: RunContext, value: Ticket) -> None:
    if value.a > ctx.context["most"]:
        raise AskAgain(f"a is at most {ctx.context['most']}")


def add_one(ctx: RunContext, value: Ticket) -> Ticket:
    return Ticket(a=value.a + 1)


async def add_ten(ctx: RunContext, value: Ticket) -> Ticket:
    await asyncio.sleep(0)
    return Ticket(a=value.a + 10)


def test_a_check_sees_the_object_and_may_leave_it() -> None:
    assert worth(final({"a": 5}), at_most) == Output({"a": 5}, index=0)
    assert worth(AssistantMessage(text='{"a": 5}'), at_most) == Output({"a": 5})


def test_checks_may_change_it_one_after_the_other_sync_or_async() -> None:
    assert worth(final({"a": 1}), add_one, add_ten, add_one) == Output({"a": 13}, index=0)


def test_a_check_that_asks_again_says_why_and_those_after_it_are_not_called() -> None:
    found = worth(final({"a": 6}), at_most, lambda ctx, value: pytest.fail("called"))
    assert found == Output(problem="a is at most 5", index=0)


def test_the_words_of_a_check_are_cleaned_bounded_and_never_empty() -> None:
    def check(words: str) -> str:
        def ask(ctx: RunContext, value: Ticket) -> None:
            raise AskAgain(words)

        return str(worth(final({"a": 1}), ask).problem)

    assert check("a\x00b") == "a\ufffdb"
    assert check(" ") == "the answer was not accepted"
    assert len(check("x" * 1_000_000)) <= 4_000


def test_of_several_answers_the_first_that_passes_is_final_and_no_other_is_checked() -> None:
    seen: list[int] = []

    def check(ctx: RunContext, value: Ticket) -> None:
        seen.append(value.a)
        at_most(ctx, value)

    assert worth(final({"a": 9}, {"a": "x"}, {"a": 2}, {"a": 3}), check) == Output({"a": 2}, index=2)
    assert seen == [9, 2]


def test_where_none_passes_the_first_problem_is_told() -> None:
    assert worth(final({"a": 9}, {"a": "x"}), at_most).problem == "a is at most 5"


@pytest.mark.parametrize(
    ("does", "what"),
    [
        (RuntimeError("secret"), "RuntimeError"),
        (SystemExit(1), "RuntimeError"),
        (EndRun("x"), "EndRun"),
        ("a text", "OutputInvalidError"),
    ],
)
def test_a_check_that_fails_is_no_answer_of_the_models(does: Any, what: str) -> None:
    def fails(ctx: RunContext, value: Ticket) -> Any:
        if isinstance(does, BaseException):
            raise does
        return does

    found = worth(final({"a": 1}), fails)
    assert found.fault is not None
    assert not found.is_accepted
    assert found.fault.code == "output_check_failed"
    assert found.fault.message == f"the answer could not be checked: fails: {what}"
    assert found.fault.details == {"check": "fails"}


def test_a_check_that_hangs_is_left_behind() -> None:
    free = threading.Event()
    found = worth(final({"a": 1}), lambda ctx, value: free.wait(), hook_timeout_secs=0.05)
    free.set()
    assert found.fault is not None
    assert found.fault.message.endswith("no answer within 0.05 s")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"output_check": at_most}, "give an output too, such as output=str"),
        ({"output_check": [at_most, 5], "output": Ticket}, "output_check is a function"),
        ({"output_check": 5, "output": Ticket}, "output_check is a function"),
        ({"output": Ticket, "output_mode": "tools"}, "output_mode is 'auto', 'native' or 'tool', not 'tools'"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        AgentSpec("test", model="openai:x", **options)


def test_one_check_may_be_given_alone() -> None:
    assert AgentSpec("test", model="openai:x", output=Ticket, output_check=at_most).output_checks == (at_most,)
