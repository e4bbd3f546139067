"""The model's argument texts: what is put right, what is refused, and in which words."""

import json
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, field_validator

from agentq import tool
from agentq.arguments import ArgumentsError


class Checked(BaseModel):
    value: int = 1

    @field_validator("value")
    @classmethod
    def _check(cls, value: int) -> int:
        if value == 2:
            raise ValueError("two is not allowed")
        if value == 3:
            raise KeyError("three")
        return value


def nothing() -> None: ...
def city(city: str) -> None: ...
def limit(limit: int = 10) -> None: ...
def tags(tags: list[str]) -> None: ...
def note(note: str) -> None: ...
def number(n: int) -> None: ...
def either(value: int | str = 3) -> None: ...
def containers(
    one: list[int] | dict[str, int] | None = None,
    two: tuple[int, ...] = (),
    three: frozenset[int] = frozenset(),
    four: Checked | None = None,
) -> None: ...
def checked(item: Checked, amount: Annotated[float, Field(gt=0)] = 1.0) -> None: ...
def many(items: list[Checked]) -> None: ...


def parse(function: Any, text: str) -> dict[str, Any]:
    return tool(function).parameters.parse(text)


def refusal(function: Any, text: str) -> str:
    with pytest.raises(ArgumentsError) as made:
        parse(function, text)
    return str(made.value)


@pytest.mark.parametrize("text", ["", " ", "\n", "null", "{}", '""', '"null"', '"{}"'])
def test_no_arguments_in_every_spelling(text: str) -> None:
    assert parse(nothing, text) == {}
    assert parse(limit, text) == {"limit": 10}
    assert refusal(city, text) == "city: required"


@pytest.mark.parametrize(
    ("function", "text", "given"),
    [
        (limit, '{"limit": null}', {"limit": 10}),
        (either, '{"value": null}', {"value": 3}),
        (city, '"{\\"city\\": \\"Oslo\\"}"', {"city": "Oslo"}),
        (tags, '{"tags": "[\\"a\\", \\"b\\"]"}', {"tags": ["a", "b"]}),
        (note, '{"note": "[1]"}', {"note": "[1]"}),
        (note, '{"note": "{\\"a\\": 1}"}', {"note": '{"a": 1}'}),
        (number, '{"n": "5"}', {"n": 5}),
        (number, '{"n": 5.0}', {"n": 5}),
        (either, '{"value": "[1]"}', {"value": "[1]"}),
        (nothing, '{"dummy": "x"}', {}),
        (limit, '{"made_up": null}', {"limit": 10}),
    ],
)
def test_the_habits_of_models_are_put_right(function: Any, text: str, given: dict[str, Any]) -> None:
    assert parse(function, text) == given


def test_one_level_of_json_in_a_string_is_undone_where_a_container_is_wanted() -> None:
    text = json.dumps({"one": "[1]", "two": "[1, 2]", "three": "[3]", "four": '{"value": 7}'})
    assert parse(containers, text) == {"one": [1], "two": (1, 2), "three": frozenset({3}), "four": Checked(value=7)}
    assert "tags: " in refusal(tags, json.dumps({"tags": json.dumps('["a"]')}))
    assert "valid JSON" in refusal(city, json.dumps(json.dumps("hello"))) or "object" in refusal(city, '"\\"x\\""')


@pytest.mark.parametrize(
    ("function", "text", "says"),
    [
        (city, '{"city": null}', "city: required"),
        (number, '{"n": 5.5}', "n: Input should be a valid integer"),
        (number, '{"n": "five"}', "n: Input should be a valid integer"),
        (note, '{"note": 5}', "note: Input should be a valid string"),
        (tags, '{"tags": "a, b"}', "tags: Input should be a valid list"),
        (city, "[]", "must be a JSON object, not list"),
        (city, "5", "must be a JSON object, not int"),
        (city, '{"{"ids":[1]}', "not valid JSON"),
        (city, '{"city": "Os', "not valid JSON"),
        (city, "hello", "not valid JSON"),
        (number, '{"n": NaN}', "NaN is not JSON"),
        (number, '{"n": 1e999}', "1e999 is too large a number"),
        (number, '{"n": ' + "9" * 5000 + "}", "not valid JSON"),
        (number, "[" * 100_000, "nested too deeply"),
        (many, json.dumps({"items": "[" * 100_000}), "items: "),
        (checked, '{"item": {"value": null}}', "item.value: Input should be a valid integer"),
        (checked, '{"item": {"value": 2}}', "item.value: Value error, two is not allowed"),
        (checked, '{"item": {"value": 3}}', "KeyError: 'three'"),
        (checked, '{"item": {}, "amount": -1}', "amount: Input should be greater than 0"),
    ],
)
def test_what_cannot_be_put_right_is_named(function: Any, text: str, says: str) -> None:
    assert says in refusal(function, text)


def test_a_misspelt_argument_is_not_taken_for_one_that_was_left_out() -> None:
    assert refusal(limit, '{"limt": 3}') == "limt: there is no such parameter\nThe parameters are: limit"


def test_each_problem_has_a_line() -> None:
    assert refusal(checked, '{"amount": "x"}').splitlines() == [
        "item: required",
        "amount: Input should be a valid number, unable to parse string as a number",
    ]


def test_problems_hold_neither_exceptions_nor_values_nor_links() -> None:
    text = refusal(checked, '{"item": {"value": 2}, "amount": "secret"}')
    for word in ("ValueError(", "<class", "object at", "secret", "https://", "input_value"):
        assert word not in text


def test_problems_stay_short_however_much_is_wrong() -> None:
    text = refusal(many, json.dumps({"items": [{"value": "x" * 1000}] * 10_000}))
    assert text.count("\n") == 20
    assert text.endswith("and 9980 more")
    long = refusal(limit, json.dumps({"k" * 1_000_000: 1}))
    assert len(long) < 1_000


def test_an_odd_key_makes_no_unclean_text() -> None:
    assert "\x00" not in refusal(limit, '{"a\\u0000b": 1}')
