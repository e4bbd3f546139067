"""What model calls cost: a table of prices that ships with the package, which users add to and replace."""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from agentq.errors import ConfigError
from agentq.messages import Usage

VARIABLE = "AGENTQ_PRICES"
_MILLION = 1_000_000
# Billionths of a dollar: a tenth of what the cheapest token costs.
_SMALLEST = Decimal("1e-9")
_DATE = re.compile(r"-(\d{8}|\d{4}-\d\d-\d\d|latest)$")
# Several names of one vendor, by the API that is spoken.
_SAME = {"openai-chat": "openai", "google": "gemini"}
# Those that say with each answer what it cost.
_TELLING = frozenset({"openrouter"})


class Price(BaseModel):
    """US dollars for a million tokens.

    ``cache_read`` and ``cache_write``: of input that came from, or went into, the provider's cache; as ``input`` where
    left out. ``long``: the price of a call whose input is more than ``long_above`` tokens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Decimal = Field(ge=0, allow_inf_nan=False)
    output: Decimal = Field(ge=0, allow_inf_nan=False)
    cache_read: Decimal | None = Field(default=None, ge=0, allow_inf_nan=False)
    cache_write: Decimal | None = Field(default=None, ge=0, allow_inf_nan=False)
    long_above: int | None = Field(default=None, gt=0)
    long: "Price | None" = None

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.long is None) != (self.long_above is None):
            raise ValueError("long and long_above go together")
        return self

    def cost(self, usage: Usage) -> Decimal | None:
        """US dollars of one call; None where its tokens are unknown."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        if self.long is not None and usage.input_tokens > (self.long_above or 0):
            return self.long.cost(usage)
        read, written = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
        dollars = (
            max(usage.input_tokens - read - written, 0) * self.input
            + read * (self.input if self.cache_read is None else self.cache_read)
            + written * (self.input if self.cache_write is None else self.cache_write)
            + usage.output_tokens * self.output
        )
        return (dollars / _MILLION).quantize(_SMALLEST)


_TABLE: TypeAdapter[dict[str, Price]] = TypeAdapter(dict[str, Price])
_given: dict[str, Price] = {}


def set_prices(prices: Mapping[str, Price | Mapping[str, Any]]) -> None:
    """Add to, and replace, what models cost in this process: ``{"vllm:mine": Price(input="0.2", output="0.6")}``.

    Names are those of ``"provider:model"`` strings; of a provider's object its ``name`` and ``model``. ``"vllm:*"`` is
    for all others of a provider. They win over the file that AGENTQ_PRICES names, and that over the table of this
    release. Raises ConfigError.
    """
    _given.update(_checked(dict(prices), "set_prices"))


def price_of(provider: str, model: str) -> Price | None:
    """What a model costs; None where nobody has said."""
    own = _SAME.get(provider, provider.removesuffix("-responses"))
    models = dict.fromkeys((model, _DATE.sub("", model)))
    for table in (_given, _of_file(os.environ.get(VARIABLE, "").strip()), _of_release()):
        for name in dict.fromkeys(f"{vendor}:{each}" for each in (*models, "*") for vendor in (provider, own)):
            if name in table:
                return table[name]
    return None


def priced(usage: Usage, provider: str, model: str) -> Usage:
    """The usage of one call with its cost: what the provider says, else by the table."""
    if usage.known_cost is not None:
        return usage
    price = price_of(provider, model)
    cost = price.cost(usage) if price is not None else None
    if cost is None and price is None and usage.total:
        return usage
    return usage.model_copy(update={"unpriced": True} if cost is None else {"known_cost": cost})


def told_cost(amount: Any) -> Decimal | None:
    """An amount of dollars as a provider's answer has it; None for anything else."""
    if isinstance(amount, bool) or not isinstance(amount, int | float | str):
        return None
    try:
        dollars = Decimal(str(amount))
    except InvalidOperation:
        return None
    return dollars.quantize(_SMALLEST) if dollars.is_finite() and 0 <= dollars < _MILLION else None


def without_price(models: tuple[Any, ...]) -> str | None:
    """The first of an agent's models that nobody knows the price of, as a sentence that says how to give it."""
    for model in models:
        provider, name = _names(model)
        if provider not in _TELLING and price_of(provider, name) is None:
            given = f"set_prices({{'{provider}:{name}': Price(input=…, output=…)}})"
            needs = f"no price is known for {provider}:{name}, which a limit in dollars needs"
            return f"{needs}; give it with {given}, or in the file that {VARIABLE} names"
    return None


def _names(model: Any) -> tuple[str, str]:
    """The provider and the name of a model, as an agent has it."""
    if isinstance(model, str):
        provider, _, name = model.partition(":")
        return provider.strip(), name.strip()
    return model.name, getattr(model, "model", "") or model.name


def _checked(prices: Any, where: str) -> dict[str, Price]:
    try:
        table = _TABLE.validate_python(prices)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where}: {place}: {first['msg'].removeprefix('Value error, ')}") from error
    for name in table:
        if not all(part.strip() for part in name.partition(":")):
            raise ConfigError(f"{where}: {name!r} names no model; write 'provider:model', or 'provider:*'")
    return table


@cache
def _of_release() -> dict[str, Price]:
    text = (files("agentq") / "prices.toml").read_text(encoding="utf-8")
    return _TABLE.validate_python(tomllib.loads(text, parse_float=Decimal))


@cache
def _of_file(path: str) -> dict[str, Price]:
    if not path:
        return {}
    try:
        text = Path(path).read_text(encoding="utf-8")
        load = json.loads if path.lower().endswith(".json") else tomllib.loads
        found: Any = load(text, parse_float=Decimal)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{VARIABLE}={path!r} cannot be read, as TOML or, where it ends so, .json: {error}"
        ) from error
    return _checked(found, f"{VARIABLE}={path!r}")
