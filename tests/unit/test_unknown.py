"""What a tool says of calls whose outcome is unknown: kept as it was meant, or refused with the reason."""

from typing import Any

import pytest

from agentq import ConfigError, NotHappened, RunContext, tool


def charge(amount: int, ctx: RunContext) -> str:
    """Take money."""
    return "charged"


def charged(amount: int, ctx: RunContext) -> NotHappened:
    return NotHappened()


def by_amount(amount: int) -> NotHappened:
    return NotHappened()


def blind() -> NotHappened:
    return NotHappened()


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({}, "report"),
        ({"idempotent": True}, "retry"),
        ({"idempotent": True, "on_unknown": "retry"}, "retry"),
        ({"on_unknown": "retry"}, "retry"),
        ({"on_unknown": "report"}, "report"),
        ({"on_unknown": "ask"}, "ask"),
        ({"on_unknown": charged}, "probe"),
        ({"on_unknown": blind}, "probe"),
    ],
)
def test_the_rule_is_kept(given: dict[str, Any], rule: str) -> None:
    made = tool(**given)(charge)
    assert made.on_unknown == rule
    assert (made.probe is not None) == (rule == "probe")


def test_a_probe_gets_the_arguments_it_names_and_the_context() -> None:
    context = RunContext(run_id="run_1", agent="test", idempotency_key="run_1:1:0")
    for probe, bound in (
        (charged, {"amount": 7, "ctx": context}),
        (by_amount, {"amount": 7}),
        (blind, {}),
    ):
        made = tool(on_unknown=probe)(charge)
        assert made.probe is not None
        assert made.probe.bind({"amount": 7}, context) == bound


def refund(order_id: str) -> NotHappened:
    return NotHappened()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"on_unknown": "rerun"}, "on_unknown is 'retry', 'report', 'ask' or a function, not 'rerun'"),
        ({"on_unknown": True}, "on_unknown is 'retry', 'report', 'ask' or a function, not True"),
        ({"on_unknown": NotHappened}, "on_unknown is 'retry', 'report', 'ask' or a function"),
        ({"idempotent": True, "on_unknown": "ask"}, "leave out one of them"),
        ({"idempotent": True, "on_unknown": charged}, "leave out one of them"),
        ({"idempotent": "yes"}, "idempotent is True or False, not 'yes'"),
        ({"on_unknown": refund}, r"asks for 'order_id'; it may name parameters of the tool \(amount\)"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_when_the_tool_is_made(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"tool 'charge': .*{problem}"):
        tool(**given)(charge)
