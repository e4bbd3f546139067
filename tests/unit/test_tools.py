"""Tools from functions of every shape: what the model sees, what is refused at registration and how."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from pydantic import BaseModel, Field

from agentq import ConfigError, RunContext, Tool, tool
from agentq.tools import check_name

CTX = RunContext(run_id="run_1", agent="test")


class Address(BaseModel):
    street: str
    number: int = 1


@dataclass
class Point:
    x: float
    y: float = 0.0


class Odd:
    """A type without a schema."""


def one_line(made: pytest.ExceptionInfo[ConfigError]) -> str:
    text = str(made.value)
    assert "\n" not in text
    assert made.value.code == "config_invalid"
    return text


# ---------------------------------------------------------------------------------------------- the schema


def test_the_schema_is_that_of_the_signature() -> None:
    @tool
    def act(  # type: ignore[no-untyped-def] # noqa: PLR0917
        plain,
        number: int,
        maybe: Optional[int] = None,  # noqa: UP045 - the old spelling too
        choice: Literal[1, "x", True, None] = 1,
        names: list[str] = ["a"],  # noqa: B006 - must not be shared between calls
        table: dict[str, int] | None = None,
        address: Address | None = None,
        point: Point = Point(1.0),  # noqa: B008
        limit: Annotated[int, Field(ge=1, description="how many")] = 10,
        tags: list[str] = Field(default_factory=list),  # noqa: B008
        *,
        only: Union[int, str] = 0,  # noqa: UP007
    ) -> str:
        """Act on it."""
        return "done"

    assert act.name == "act"
    assert act.description == "Act on it."
    assert act.schema["type"] == "object"
    assert act.schema["required"] == ["plain", "number"]
    shown = act.schema["properties"]
    assert shown["plain"] == {}
    assert shown["maybe"] == {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
    assert shown["choice"]["enum"] == [1, "x", True, None]
    assert shown["names"] == {"type": "array", "items": {"type": "string"}, "default": ["a"]}
    assert shown["point"]["default"] == {"x": 1.0, "y": 0.0}
    assert shown["limit"] == {"type": "integer", "minimum": 1, "description": "how many", "default": 10}
    assert shown["tags"] == {"type": "array", "items": {"type": "string"}}
    assert set(act.schema["$defs"]) == {"Address", "Point"}


def test_what_the_model_leaves_out_gets_its_default_and_what_it_gives_its_type() -> None:
    @tool
    def act(
        address: Address,
        points: list[Point],
        tags: list[str] = Field(default_factory=list),  # noqa: B008
        size: int = Field(default=3, ge=1),
        limit: Annotated[int, Field(ge=1)] = 10,
    ) -> None: ...

    given = act.parameters.parse('{"address": {"street": "Elm"}, "points": [{"x": 1}]}')
    assert given == {
        "address": Address(street="Elm"),
        "points": [Point(1.0)],
        "tags": [],
        "size": 3,
        "limit": 10,
    }


def test_a_mutable_default_is_new_for_every_call() -> None:
    @tool
    def act(seen: list[int] = [], more: list[int] = Field(default_factory=list)) -> None: ...  # noqa: B006, B008

    first = act.parameters.parse("{}")
    first["seen"].append(1)
    first["more"].append(1)
    assert act.parameters.parse("{}") == {"seen": [], "more": []}


def test_extra_keywords_reach_the_function_and_cannot_take_a_parameters_place() -> None:
    @tool
    def act(ctx: RunContext, first: int = 1, **extra: int) -> dict[str, Any]:
        return {"first": first, "run": ctx.run_id} | extra

    assert act.schema["additionalProperties"] is True
    given = act.bind(act.parameters.parse('{"p0": 5, "ctx": "evil", "other": 2}'), CTX)
    assert act(**given) == {"first": 1, "run": "run_1", "p0": 5, "other": 2}


def test_a_parameter_may_be_shown_under_another_name() -> None:
    @tool
    def act(
        amount: float = Field(alias="Amount"),
        size: Annotated[int, Field(alias="Size")] = 2,
    ) -> None: ...

    assert list(act.schema["properties"]) == ["Amount", "Size"]
    assert act.parameters.parse('{"Amount": 1, "Size": 5}') == {"amount": 1.0, "size": 5}


def test_parameter_names_that_pydantic_keeps_for_itself_reach_the_function_unchanged() -> None:
    def act(self, _path, model_config, model_dump, model_extra, p1, schema=7):  # type: ignore[no-untyped-def]
        return [self, _path, model_config, model_dump, model_extra, p1, schema]

    made = tool(act)
    text = '{"self": 1, "_path": 2, "model_config": 3, "model_dump": 4, "model_extra": 5, "p1": 6}'
    assert made(**made.parameters.parse(text)) == [1, 2, 3, 4, 5, 6, 7]
    shown = ["self", "_path", "model_config", "model_dump", "model_extra", "p1", "schema"]
    assert list(made.schema["properties"]) == shown


# ---------------------------------------------------------------------------------------------- the context


def with_context(wanted: str, ctx: RunContext) -> str:
    return f"{wanted} for {ctx.run_id}"


def with_any_name(wanted: str, its_run: RunContext | None = None) -> str:
    return f"{wanted} for {its_run.run_id if its_run else None}"


def with_annotated(wanted: str, *, c: Annotated[Optional[RunContext], "ours"]) -> str:  # noqa: UP045
    return f"{wanted} for {c.run_id if c else None}"


@pytest.mark.parametrize("function", [with_context, with_any_name, with_annotated])
def test_the_context_comes_from_us_and_is_not_shown_to_the_model(function: Any) -> None:
    made = tool(function)
    assert list(made.schema["properties"]) == ["wanted"]
    assert made(**made.bind(made.parameters.parse('{"wanted": "tea"}'), CTX)) == "tea for run_1"


def test_a_tool_without_context_gets_none() -> None:
    made = tool(name="nothing")(lambda: None)
    assert made.bind({}, CTX) == {}
    assert made.schema == {"type": "object", "properties": {}}


# ---------------------------------------------------------------------------------------------- callables of all kinds


class Shop:
    def sell(self, item: str) -> str:
        """Sell it."""
        return f"sold {item}"

    def __call__(self, item: str) -> str:
        """Buy it."""
        return f"bought {item}"


def test_bound_methods_and_callable_objects_are_tools() -> None:
    sell = tool(Shop().sell)
    assert (sell.name, sell.description, list(sell.schema["properties"])) == ("sell", "Sell it.", ["item"])
    buy = tool(name="buy")(Shop())
    assert (buy.description, buy(**buy.parameters.parse('{"item": "tea"}'))) == ("Buy it.", "bought tea")


def order(tenant: str, item: str, count: int = 1) -> str:
    """Order it."""
    return f"{tenant}: {count} {item}"


@pytest.mark.parametrize("function", [functools.partial(order, "acme"), functools.partial(order, tenant="acme")])
def test_what_a_partial_has_set_is_not_the_models_to_change(function: Any) -> None:
    made = tool(function)
    assert (made.name, made.description) == ("order", "Order it.")
    assert list(made.schema["properties"]) == ["item", "count"]
    assert made(**made.parameters.parse('{"item": "tea"}')) == "acme: 1 tea"


def test_a_decorated_function_is_seen_through() -> None:
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    made = tool(logged(order))
    assert list(made.schema["properties"]) == ["tenant", "item", "count"]


def test_async_functions_are_tools() -> None:
    @tool(timeout=5)
    async def fetch(url: str) -> str:
        return url

    assert isinstance(fetch, Tool)
    assert fetch.timeout == 5


def test_a_return_type_only_type_checkers_know_does_no_harm() -> None:
    def act(n: int) -> Nowhere: ...  # type: ignore[name-defined] # noqa: F821

    assert tool(act).schema["required"] == ["n"]


def test_the_options_are_kept() -> None:
    made = tool(name="send-mail", description="", timeout=0.5, queue="gpu.large", idempotent=True)(order)
    assert (made.name, made.description, made.timeout, made.queue) == ("send-mail", "", 0.5, "gpu.large")
    assert (made.on_unknown, made.probe) == ("retry", None)


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", ["my tool!", "поиск", "a" * 65, "", "9lives", "a.b", "a\n"])
def test_a_name_that_a_provider_would_refuse_is_refused_at_once(name: str) -> None:
    with pytest.raises(ConfigError) as made:
        tool(name=name)(order)
    assert repr(name) in one_line(made)


@pytest.mark.parametrize("name", ["a", "_a", "A-b_9", "a" * 64])
def test_a_name_that_every_provider_takes_is_taken(name: str) -> None:
    check_name("tool", name)


def never(value: Odd) -> None: ...
def no_such_type(value: Nothing) -> None: ...  # type: ignore[name-defined] # noqa: F821
def odd_default(ok: int, value: object = object()) -> None: ...
def infinite_default(value: float = float("inf")) -> None: ...
def positional(value: int, /) -> None: ...
def many(*values: int) -> None: ...
def context_by_position(ctx: RunContext, /, value: int) -> None: ...
def two_contexts(a: RunContext, b: RunContext) -> None: ...
def call_back(value: type[Odd] | Odd) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (never, "'value'"),
        (no_such_type, "Nothing"),
        (odd_default, "parameter 'value': its default object() is not JSON; use None or a JSON value"),
        (infinite_default, "parameter 'value': its default inf is not JSON; use None or a JSON value"),
        (positional, "'value'"),
        (many, "'values'"),
        (context_by_position, "'ctx'"),
        (two_contexts, "'a' and 'b'"),
        (call_back, "'value'"),
    ],
)
def test_parameters_that_cannot_be_shown_or_given_are_refused_by_name(function: Any, says: str) -> None:
    with pytest.raises(ConfigError) as made:
        tool(function)
    text = one_line(made)
    assert text.startswith(f"tool {function.__name__!r}: ")
    assert says in text


@pytest.mark.parametrize("given", ["search", 5, int, Shop, tool(order)])
def test_what_is_no_function_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="a tool is made of a function"):
        tool(given)


def test_an_object_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="needs a name"):
        tool(Shop())


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), "5", True])
def test_a_timeout_is_a_positive_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(ConfigError, match="tool 'order': timeout"):
        tool(timeout=timeout)(order)


@pytest.mark.parametrize("queue", ["", "a b", "ä", 5, "-x", "a" * 101])
def test_a_queue_is_a_name_that_every_broker_takes(queue: Any) -> None:
    with pytest.raises(ConfigError, match="tool 'order': queue"):
        tool(queue=queue)(order)
