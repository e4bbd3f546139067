"""Schemas of answers as the native modes take them: narrower, by the vendors' rules, or not at all."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema
import pytest
from anthropic.lib._parse._transform import transform_schema
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from agentq.output import OutputSchema
from agentq.providers.schemas import ANTHROPIC, GEMINI, OPENAI, Dialect, narrowed


class Line(BaseModel):
    sku: str = Field(min_length=2, pattern="^[A-Z]+$", description="what was bought")
    count: int = Field(default=1, ge=1, le=99)


class Order(BaseModel):
    """An order."""

    id: UUID
    lines: list[Line] = Field(min_length=1, max_length=9)
    first: Line = Field(description="the first one")
    note: str | None = None
    day: date
    kind: Literal["new", "old"] = "new"
    mixed: Literal[1, "x", True, None] = 1
    tags: list[str] = Field(default_factory=list)


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool


class Pet(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Node(BaseModel):
    value: int
    below: list["Node"] = []


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 1


class Empty(BaseModel):
    pass


@dataclass
class Point:
    x: float
    labels: set[str] = field(default_factory=set)


class Holds(BaseModel):
    value: Any


class Mapped(BaseModel):
    counts: dict[str, int]


EXPRESSIBLE = [Order, Pet, Point, Empty, list[Line], Line | Point, int, Literal["a", "b"]]
BOTH: list[Dialect] = [OPENAI, ANTHROPIC]


def schema_of(kind: Any) -> dict[str, Any]:
    return OutputSchema(kind).schema


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Each schema in it, properties' names apart."""
    if isinstance(schema, dict):
        yield schema
        for key, below in schema.items():
            for item in below.values() if key in ("properties", "$defs") else [below]:
                yield from nodes(item)
    elif isinstance(schema, list):
        for item in schema:
            yield from nodes(item)


@pytest.mark.parametrize("kind", EXPRESSIBLE)
@pytest.mark.parametrize("dialect", BOTH, ids=["openai", "anthropic"])
def test_what_is_sent_keeps_to_the_rules_of_strict_modes(kind: Any, dialect: Dialect) -> None:
    sent = narrowed(schema_of(kind), dialect)
    assert sent is not None
    assert sent["type"] == "object"
    jsonschema.Draft202012Validator.check_schema(sent)
    for node in nodes(sent):
        assert not node.keys() & {"default", "title", "oneOf", "allOf", "minLength", "uniqueItems", "discriminator"}
        if "$ref" in node:
            assert node.keys() == {"$ref"}
        if node.get("type") == "object":
            assert node["additionalProperties"] is False
            if dialect.all_required:
                assert node["required"] == list(node["properties"])


@pytest.mark.parametrize("kind", [Order, Pet, list[Line]])
def test_openai_gets_what_its_own_client_would_send_but_for_what_is_only_told(kind: Any) -> None:
    sent, official = narrowed(schema_of(kind), OPENAI), to_strict_json_schema(TypeAdapter(kind))
    if "properties" not in official:
        official = {**official, "properties": {"value": official}}
    assert sent is not None
    assert sent["properties"].keys() == official["properties"].keys()
    for name, node in {"#": official, **official.get("$defs", {})}.items():
        own = sent if name == "#" else sent["$defs"][name]
        if node.get("type") == "object":
            assert own["required"] == node["required"]
            assert own["additionalProperties"] == node["additionalProperties"]


@pytest.mark.parametrize("kind", [Order, Pet, Empty])
def test_anthropic_gets_the_structure_that_its_own_client_would_send(kind: Any) -> None:
    def bare(node: Any) -> Any:
        """Without words, and a type where values say it."""
        match node:
            case {"enum": values} | {"const": values}:
                return values
            case {"anyOf": [{"$ref": ref}]}:
                return {"$ref": ref}
            case dict():
                kept = {key: bare(item) for key, item in node.items() if key not in ("description", "title", "items")}
                kept |= {"items": bare(node["items"])} if "items" in node else {}
                return {key: item for key, item in kept.items() if (key, item) != ("required", [])}
            case list():
                return [bare(item) for item in node]
        return node

    sent, official = narrowed(schema_of(kind), ANTHROPIC), transform_schema(TypeAdapter(kind).json_schema())
    assert bare(sent) == bare(official)


VALUES: list[tuple[Any, Any]] = [
    (Pet, {"pet": {"kind": "cat", "lives": 9}}),
    (Point, {"x": 1, "labels": ["a"]}),
    (list[Line], {"value": [{"sku": "AB", "count": 2}]}),
    (
        Order,
        {
            "id": "12345678-1234-5678-1234-567812345678",
            "lines": [{"sku": "AB", "count": 1}],
            "first": {"sku": "AB", "count": 1},
            "note": None,
            "day": "2026-01-02",
            "kind": "old",
            "mixed": None,
            "tags": [],
        },
    ),
]


@pytest.mark.parametrize("dialect", BOTH, ids=["openai", "anthropic"])
@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_a_value_that_fits_what_is_sent_is_an_answer(kind: Any, value: Any, dialect: Dialect) -> None:
    sent = narrowed(schema_of(kind), dialect)
    assert sent is not None
    jsonschema.validate(value, sent)
    OutputSchema(kind).parse(json.dumps(value))
    # And one with more to it fits neither.
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**value, "more": 1}, sent)


def test_checks_that_a_mode_does_not_know_are_told() -> None:
    for dialect, kept, told in (
        (OPENAI, {"pattern"}, "what was bought\nminLength: 2"),
        (ANTHROPIC, set(), 'what was bought\nminLength: 2, pattern: "^[A-Z]+$"'),
    ):
        sent = narrowed(schema_of(Line), dialect)
        assert sent is not None
        sku = sent["properties"]["sku"]
        assert sku.keys() == {"type", "description"} | kept
        assert sku["description"] == told


def test_what_has_a_default_must_be_said_at_openai_and_may_be_at_anthropic() -> None:
    openai, anthropic = (narrowed(schema_of(Line), dialect) for dialect in BOTH)
    assert openai is not None
    assert anthropic is not None
    assert (openai["required"], anthropic["required"]) == (["sku", "count"], ["sku"])


@pytest.mark.parametrize("kind", [Loose, Holds, Mapped, dict[str, int], list[Any], tuple[int, str], dict])
@pytest.mark.parametrize("dialect", BOTH, ids=["openai", "anthropic"])
def test_what_would_change_its_meaning_is_not_sent(kind: Any, dialect: Dialect) -> None:
    assert narrowed(schema_of(kind), dialect) is None


def test_a_type_that_holds_itself_is_one_for_openai_only() -> None:
    assert narrowed(schema_of(Node), OPENAI) is not None
    assert narrowed(schema_of(Node), ANTHROPIC) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"not": {"type": "string"}}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"enum": [{"b": 1}]}}},
        {"type": "object", "properties": {"a": {"enum": []}}},
        {"type": "object", "properties": {"a": {"type": "odd"}}},
        {"type": "object", "properties": {}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"$ref": "#/definitions/a"}}, "definitions": {"a": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/a", "minLength": 1}}},
        {"type": "object", "properties": {"a": {"allOf": [{"type": "string"}, {"minLength": 1}]}}},
        {"type": "object", "properties": {"a": {"allOf": [{"type": "string"}], "type": "integer"}}},
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}], "type": "string"}}},
        {"type": "object", "if": {}, "properties": {}},
        {"anyOf": [{"type": "object", "patternProperties": {}, "properties": {}}]},
    ],
)
@pytest.mark.parametrize("dialect", BOTH, ids=["openai", "anthropic"])
def test_a_schema_beyond_the_mode_is_not_sent(schema: dict[str, Any], dialect: Dialect) -> None:
    assert narrowed(schema, dialect) is None


def test_one_beneath_the_other_without_end_is_not_sent() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(100_000):
        deep = {"type": "array", "items": deep}
    assert narrowed({"type": "object", "properties": {"a": deep}}, OPENAI) is None


class Booking(BaseModel):
    kind: Literal["room"]
    night: date
    mail: str = Field(pattern="@", json_schema_extra={"format": "email"})
    guests: int = Field(ge=1, lt=9)
    stars: Literal[1, 2, 3] = 3
    lines: list[Line] = Field(default_factory=list, max_length=5)
    first: Line | None = Field(None, description="the first one")


def test_gemini_gets_values_as_enums_and_keeps_the_checks_it_knows() -> None:
    sent = narrowed(schema_of(Booking), GEMINI)
    assert sent is not None
    assert sent["properties"] == {
        "kind": {"type": "string", "enum": ["room"]},
        "night": {"type": "string", "format": "date"},
        "mail": {"type": "string", "description": 'format: "email", pattern: "@"'},
        "guests": {"type": "integer", "minimum": 1, "description": "exclusiveMaximum: 9"},
        "stars": {"type": "integer", "enum": [1, 2, 3]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}, "maxItems": 5},
        "first": {"anyOf": [{"$ref": "#/$defs/Line"}, {"type": "null"}], "description": "the first one"},
    }
    assert sent["required"] == ["kind", "night", "mail", "guests"]
    assert sent["additionalProperties"] is False


@pytest.mark.parametrize("kind", [Order, Node, Loose, Holds, Mapped, Literal[True], tuple[int, str]])
def test_what_gemini_has_no_words_for_is_not_sent(kind: Any) -> None:
    assert narrowed(schema_of(kind), GEMINI) is None


def test_a_number_of_money_has_its_forms() -> None:
    class Price(BaseModel):
        amount: Decimal

    assert narrowed(schema_of(Price), OPENAI) is not None
