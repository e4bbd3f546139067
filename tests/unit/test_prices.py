"""What calls cost: the table, what users put in its place, and that nothing is made up."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentq import Agent, ConfigError, Price, set_prices
from agentq.messages import Usage
from agentq.prices import _of_release, price_of, priced, told_cost
from agentq.providers.registry import KNOWN


@pytest.fixture(autouse=True)
def own_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test says of prices is not known to others."""
    monkeypatch.setattr("agentq.prices._given", {})
    monkeypatch.delenv("AGENTQ_PRICES", raising=False)


PRICE = Price(input=Decimal(3), output=Decimal(15), cache_read=Decimal("0.3"), cache_write=Decimal("3.75"))


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(input_tokens=1_000_000, output_tokens=0), "3"),
        (Usage(input_tokens=1000, output_tokens=100), "0.0045"),
        # What came from the cache and went into it is part of the input, reasoning is part of the output.
        (Usage(input_tokens=1000, output_tokens=0, cache_read_tokens=600, cache_write_tokens=300), "0.001605"),
        (Usage(input_tokens=0, output_tokens=100, reasoning_tokens=90), "0.0015"),
        (Usage(input_tokens=1, output_tokens=0, cache_read_tokens=9), "0.0000027"),
        (Usage(input_tokens=1000), None),
        (Usage(output_tokens=3), None),
        (Usage(), None),
    ],
)
def test_a_call_costs_what_its_tokens_do_and_what_is_unknown_stays_unknown(usage: Usage, cost: str | None) -> None:
    assert PRICE.cost(usage) == (None if cost is None else Decimal(cost))


def test_a_long_call_has_the_price_of_long_ones() -> None:
    price = Price(
        input=Decimal(1), output=Decimal(10), long_above=1000, long=Price(input=Decimal(2), output=Decimal(15))
    )
    assert price.cost(Usage(input_tokens=1000, output_tokens=0)) == Decimal("0.001")
    assert price.cost(Usage(input_tokens=1001, output_tokens=1000)) == Decimal("0.017002")


def test_without_a_price_of_its_own_the_cache_costs_as_any_input_and_may_be_free() -> None:
    usage = Usage(input_tokens=100, output_tokens=0, cache_read_tokens=100)
    assert Price(input=Decimal(1), output=Decimal(0)).cost(usage) == Decimal("0.0001")
    assert Price(input=Decimal(1), output=Decimal(0), cache_read=Decimal(0)).cost(usage) == 0


def test_the_cost_of_a_run_is_known_only_if_that_of_each_call_is() -> None:
    known, other = Usage(known_cost=Decimal("0.25")), Usage(known_cost=Decimal("0.5"))
    assert (known + other).cost == Decimal("0.75")
    partly = known + Usage(unpriced=True) + other
    assert (partly.cost, partly.known_cost) == (None, Decimal("0.75"))
    tokens = Usage(input_tokens=1, output_tokens=1)
    for mixed in (tokens + known, known + tokens, tokens + tokens + known):
        assert (mixed.cost, mixed.known_cost) == (None, Decimal("0.25"))
    assert (tokens + tokens) == Usage(input_tokens=2, output_tokens=2)
    assert (Usage() + known).cost == (known + Usage()).cost == Decimal("0.25")
    assert Usage().cost is None


@pytest.mark.parametrize(
    ("provider", "model", "there"),
    [
        ("openai", "gpt-5.2", True),
        ("openai", "gpt-5.2-2025-12-11", True),
        ("openai-chat", "gpt-5.2", True),
        ("anthropic", "claude-sonnet-4-5-20250929", True),
        ("anthropic", "claude-3-7-sonnet-latest", True),
        ("anthropic", "claude-sonnet-4-20250514", True),
        ("openai", "gpt-5.2-pro", False),
        ("openai", "gpt-5.2-mini-2025-12-11", False),
        ("azure", "gpt-5.2", False),
        ("vllm", "anything", False),
    ],
)
def test_a_price_is_that_of_the_very_model_or_unknown(provider: str, model: str, there: bool) -> None:
    assert (price_of(provider, model) is not None) == there


def test_every_price_of_the_release_is_of_a_provider_there_is_and_makes_sense() -> None:
    assert len(_of_release()) > 20
    for name, price in _of_release().items():
        assert name.partition(":")[0] in (*KNOWN, "gemini")
        assert 0 < price.input < price.output
        assert (price.cache_read or price.input) <= price.input <= (price.cache_write or price.input)
        assert price.long is None or price.input < price.long.input


def test_prices_of_code_win_over_the_file_and_the_file_over_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml, json = tmp_path / "prices.toml", tmp_path / "prices.json"
    toml.write_text('"openai:gpt-5.2" = { input = 0.1, output = 0.3 }\n"vllm:*" = { input = 0, output = 0 }\n')
    json.write_text('{"openai:gpt-5.2": {"input": 0.1, "output": 0.3}, "vllm:*": {"input": "0", "output": 0}}')
    for file in (toml, json):
        monkeypatch.setenv("AGENTQ_PRICES", str(file))
        assert price_of("openai", "gpt-5.2") == Price(input=Decimal("0.1"), output=Decimal("0.3"))
        assert price_of("vllm", "whatever") == Price(input=Decimal(0), output=Decimal(0))
        assert price_of("openai", "gpt-5.1") is not None
    set_prices({"openai:gpt-5.2": {"input": "0.2", "output": 1}})
    assert price_of("openai", "gpt-5.2-2025-12-11") == Price(input=Decimal("0.2"), output=Decimal(1))


@pytest.mark.parametrize(
    ("prices", "says"),
    [
        ({"openai:x": {"input": -1, "output": 1}}, "openai:x.input"),
        ({"openai:x": {"input": 1}}, "openai:x.output"),
        ({"openai:x": {"input": 1, "output": 1, "cached": 1}}, "openai:x.cached"),
        ({"openai:x": {"input": 1, "output": 1, "long_above": 5}}, "long and long_above go together"),
        ({"gpt-5": {"input": 1, "output": 1}}, "'gpt-5' names no model; write 'provider:model'"),
    ],
)
def test_a_wrong_price_is_one_clear_line(prices: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        set_prices(prices)


@pytest.mark.parametrize(("name", "text"), [("a.toml", "x = "), ("a.json", "{"), ("a.toml", None), ("a.toml", "x = 1")])
def test_a_wrong_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("AGENTQ_PRICES", str(file))
    with pytest.raises(ConfigError, match="AGENTQ_PRICES=") as caught:
        price_of("openai", "x")
    assert str(file) in caught.value.message


@pytest.mark.parametrize(
    ("told", "cost"),
    [
        (0, "0"),
        (0.000235, "0.000235"),
        ("0.5", "0.5"),
        *((wrong, None) for wrong in (None, True, -1, "much", float("nan"), float("inf"), {"total": 1}, "9" * 40)),
    ],
)
def test_what_a_provider_says_of_the_cost_is_taken_where_it_makes_sense(told: Any, cost: str | None) -> None:
    assert told_cost(told) == (None if cost is None else Decimal(cost))


def test_what_a_provider_says_wins_over_the_table() -> None:
    told = Usage(input_tokens=1000, output_tokens=1000, known_cost=Decimal("0.007"))
    assert priced(told, "openai", "gpt-5.2") == told
    assert priced(Usage(input_tokens=1, output_tokens=0), "openai", "gpt-5.2").known_cost == Decimal("0.00000175")
    tokens = Usage(input_tokens=1, output_tokens=0)
    assert priced(tokens, "openai", "own") == tokens
    assert priced(Usage(), "openai", "own").unpriced
    assert priced(Usage(input_tokens=1), "openai", "gpt-5.2").unpriced


def test_a_limit_in_dollars_needs_the_price_of_each_model() -> None:
    limits = {"usd": 0.5}
    Agent("fine", model="openai:gpt-5.2", fallback=["anthropic:claude-haiku-4-5"], limits=limits)
    # It says with each answer what that cost.
    Agent("fine", model="openrouter:some/model", limits=limits)
    with pytest.raises(ConfigError, match=r"agent 'test': no price is known for vllm:own.*set_prices.*AGENTQ_PRICES"):
        Agent("test", model="openai:gpt-5.2", fallback=["vllm:own"], limits=limits)
    helper = Agent("helper", model="vllm:own")
    with pytest.raises(ConfigError, match="its sub-agent 'helper': no price is known for vllm:own"):
        Agent("test", model="openai:gpt-5.2", tools=[helper.as_tool()], limits=limits)
    set_prices({"vllm:own": Price(input=Decimal(0), output=Decimal(0))})
    Agent("test", model="openai:gpt-5.2", tools=[helper.as_tool()], limits=limits)


@pytest.mark.parametrize("usd", [0, -1, "much", float("nan"), True])
def test_a_limit_in_dollars_is_a_positive_amount(usd: Any) -> None:
    with pytest.raises(ConfigError, match="usd"):
        Agent("test", model="openai:gpt-5.2", limits={"usd": usd})
