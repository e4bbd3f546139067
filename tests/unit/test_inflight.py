"""What code could not go on with, run by run: nothing is said of what it can."""

from typing import Any

import pytest

from agentq import Agent, Tool, tool
from agentq.inflight import OpenRun, Report, WaitingCall, problems

HELPER = Agent("helper", model="openai:x")


def refund(order_id: str, amount: float) -> str:
    """Pay money back."""
    return order_id


def refund_with_a_reason(order_id: str, amount: float, reason: str) -> str:
    """Pay money back."""
    return order_id


def refund_with_a_note(order_id: str, amount: float, note: str = "") -> str:
    """Pay money back."""
    return order_id


def named(function: Any, **options: Any) -> Tool:
    return tool(name="refund", **options)(function)


def agent(*tools: Any, **more: Any) -> Agent:
    return Agent("support", model="openai:x", tools=tools or [named(refund)], **more)


ARGUMENTS = '{"order_id":"7","amount":80}'


def call(**changes: Any) -> WaitingCall:
    return WaitingCall(**({"tool": "refund", "arguments": ARGUMENTS} | changes))


def reasons(run: OpenRun, *agents: Agent) -> list[str]:
    return [problem.reason for problem in problems(run, {each.name: each for each in agents})]


def run(*calls: WaitingCall, version: str | None = None) -> OpenRun:
    return OpenRun("run_1", "support", version, calls)


FITS: dict[str, tuple[OpenRun, Agent]] = {
    "not begun": (run(), agent(on_change="fail")),
    "the same version": (run(version=agent().version), agent(on_change="fail")),
    "another version that goes on": (run(version="old"), agent()),
    "a call that fits": (run(call()), agent()),
    "a new parameter with a default": (run(call()), agent(named(refund_with_a_note))),
    "a tool that may run again now": (run(call()), agent(named(refund, idempotent=True))),
    "a call handed to the outside": (run(call(tool="gone", asks="deferred")), agent()),
    "a sub-agent that has begun": (run(call(tool="gone", kind="agent", has_run=True)), agent()),
    "a sub-agent": (run(call(tool="helper", kind="agent", arguments='{"input":"x"}')), agent(HELPER.as_tool())),
}
DOES_NOT: dict[str, tuple[OpenRun, Agent, str, tuple[str, ...]]] = {
    "no agent": (run(call()), HELPER, "agent_missing", ("there is no agent 'support'", "--agents")),
    "held": (
        run(version="old"),
        agent(on_change="hold"),
        "agent_changed",
        ("from version old to", "held", "agentq runs adopt --agent support"),
    ),
    "failed": (run(version="old"), agent(on_change="fail"), "agent_changed", ("they fail with agent_changed",)),
    "a tool less": (run(call(tool="gone")), agent(), "tool_missing", ("no tool 'gone'", "keep it")),
    "a tool less that a person is asked about": (run(call(tool="gone", asks="outcome")), agent(), "tool_missing", ()),
    "a tool that became an agent": (run(call(tool="helper")), agent(HELPER.as_tool()), "tool_missing", ()),
    "an agent that became a tool": (run(call(kind="agent")), agent(), "tool_missing", ("no sub-agent 'refund'",)),
    "a parameter more": (
        run(call()),
        agent(named(refund_with_a_reason)),
        "arguments_refused",
        ("give new parameters",),
    ),
    "arguments that a person has changed": (
        run(call(arguments='{"order_id":7}', asks="approval")),
        agent(),
        "arguments_refused",
        (),
    ),
}


@pytest.mark.parametrize(("open_run", "code"), FITS.values(), ids=FITS)
def test_nothing_is_said_of_what_goes_on(open_run: OpenRun, code: Agent) -> None:
    assert reasons(open_run, code) == []


@pytest.mark.parametrize(("open_run", "code", "reason", "words"), DOES_NOT.values(), ids=DOES_NOT)
def test_what_does_not_go_on_is_named_with_what_to_do(
    open_run: OpenRun, code: Agent, reason: str, words: tuple[str, ...]
) -> None:
    (problem,) = problems(open_run, {code.name: code})
    assert problem.reason == reason
    assert [word for word in words if word not in f"{problem.message}; {problem.fix}"] == []


def test_a_report_counts_runs_and_keeps_the_first_of_each_problem() -> None:
    report = Report(shown=2)
    for number in range(5):
        report.add(OpenRun(f"run_{number}", "support", "old", (call(tool="gone"), call(tool="gone"))), {})
    gone = {"support": agent(on_change="fail")}
    for number in range(5, 8):
        report.add(OpenRun(f"run_{number}", "support", "old", (call(tool="gone"), call(tool="gone"))), gone)
    report.add(run(), gone)
    assert (report.looked_at, report.affected) == (9, 8)
    found = [(each.problem.reason, each.runs, each.run_ids) for each in report.worst_first]
    assert found == [
        ("agent_missing", 5, ["run_0", "run_1"]),
        ("agent_changed", 3, ["run_5", "run_6"]),
        ("tool_missing", 3, ["run_5", "run_6"]),
    ]


def test_arguments_are_never_said() -> None:
    secret = call(arguments='{"order_id":{"secret":1},"amount":"secret"}')
    assert "secret" not in str([*problems(run(secret), {"support": agent()})])
