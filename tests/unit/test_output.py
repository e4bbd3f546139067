"""Structured answers: fences, the check, what is stored, and the schema the model sees."""

import json
import sys
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_validator

from agentq.errors import ConfigError
from agentq.output import OutputInvalidError, OutputSchema


class Ticket(BaseModel):
    a: int
    note: str = "none"


class Message(BaseModel):
    msg: str


class Node(BaseModel):
    value: int
    below: list["Node"] = []


@dataclass
class Point:
    x: float
    tags: list[str] = field(default_factory=list)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = 1

    @computed_field
    def double(self) -> int:
        return self.a * 2


class Renamed(BaseModel):
    a: int = Field(validation_alias="in", serialization_alias="out")


class Euros(BaseModel):
    amount: float

    @field_validator("amount", mode="before")
    @classmethod
    def _text(cls, value: Any) -> float:
        if not isinstance(value, str):
            raise RuntimeError("only texts")
        return float(value.removesuffix(" EUR"))


TICKET = OutputSchema(Ticket)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        ' \n{"a": 1}\n',
        '```json\n{"a": 1}\n```',
        '```\n{"a": 1}\n```',
        '```JSON\r\n{"a": 1}\r\n```\n',
        '```json {"a": 1} ```',
        '```{"a": 1}```',
        '\ufeff{"a": 1}',
        '\ufeff```json\n{"a": 1}\n```',
        '```json\n\ufeff{"a": 1}\n```',
        '{"a": "1"}',
    ],
)
def test_one_fence_around_the_whole_answer_is_taken_off(text: str) -> None:
    assert TICKET.parse(text) == {"a": 1, "note": "none"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('Sure! {"a": 1}', "not valid JSON"),
        ('{"a": 1} Anything else?', "not valid JSON"),
        ('```bash\nls\n```\n```json\n{"a": 1}\n```', "not valid JSON"),
        ('```json\n{"a": 1}', "not valid JSON"),
        ("", "not valid JSON"),
        ("```\n```", "not valid JSON"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1', "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "a: required"),
        ('{"a": "x"}', "a: Input should be a valid integer"),
        ("null", "answer: "),
        ('{"a": 1, "x": 1e999}', "1e999 is too large a number"),
    ],
)
def test_anything_else_is_one_invalid_answer_with_a_precise_message(text: str, says: str) -> None:
    with pytest.raises(OutputInvalidError) as made:
        TICKET.parse(text)
    assert says in str(made.value)


@pytest.mark.parametrize("fence", ["{}", "```json\n{}\n```"])
def test_backticks_inside_a_string_are_left_alone(fence: str) -> None:
    value = {"msg": "run ```bash\nls\n```"}
    assert OutputSchema(Message).parse(fence.format(json.dumps(value))) == value


@pytest.mark.parametrize(
    ("kind", "text", "stored", "loaded"),
    [
        (Ticket, '{"a": 1}', {"a": 1, "note": "none"}, Ticket(a=1)),
        (Ticket, '{"a": 1, "note": "\\ud800"}', {"a": 1, "note": "\ufffd"}, Ticket(a=1, note="\ufffd")),
        (Point, '{"x": 1}', {"x": 1.0, "tags": []}, Point(1.0)),
        (list[Ticket], '[{"a": 1}]', [{"a": 1, "note": "none"}], [Ticket(a=1)]),
        (list[Ticket], '{"value": [{"a": 1}]}', [{"a": 1, "note": "none"}], [Ticket(a=1)]),
        (Ticket | Message, '{"value": {"msg": "x"}}', {"msg": "x"}, Message(msg="x")),
        (Ticket | Message, '{"a": 1}', {"a": 1, "note": "none"}, Ticket(a=1)),
        (int, "5", 5, 5),
        (date, '"2025-01-02"', "2025-01-02", date(2025, 1, 2)),
        (dict[str, int], '{"value": 1}', {"value": 1}, {"value": 1}),
        (Strict, '{"a": 2}', {"a": 2}, Strict(a=2)),
        (Renamed, '{"in": 2}', {"in": 2}, Renamed.model_validate({"in": 2})),
        (Euros, '{"amount": "5 EUR"}', {"amount": "5 EUR"}, Euros.model_validate({"amount": "5 EUR"})),
    ],
)
def test_what_is_stored_gives_the_same_object_again(kind: Any, text: str, stored: Any, loaded: Any) -> None:
    schema = OutputSchema(kind)
    assert schema.parse(text) == stored
    assert schema.load(json.loads(json.dumps(stored))) == loaded


def test_a_validator_that_raises_anything_makes_an_invalid_answer() -> None:
    with pytest.raises(OutputInvalidError, match="RuntimeError: only texts"):
        OutputSchema(Euros).parse('{"amount": 5}')


def test_a_number_beyond_json_is_no_answer() -> None:
    with pytest.raises(OutputInvalidError):
        OutputSchema(float).parse("1e999")


@pytest.mark.parametrize("kind", [Ticket, Point, Node, list[Node], Ticket | Message, dict[str, int], int, str])
def test_the_schema_is_an_object_whose_references_lead_somewhere(kind: Any) -> None:
    schema = OutputSchema(kind).schema
    assert schema["type"] == "object"
    assert "properties" in schema
    text = json.dumps(schema)
    for name in ("Node", "Ticket", "Message"):
        if f"#/$defs/{name}" in text:
            assert name in schema["$defs"]


@pytest.mark.parametrize("kind", ["Ticket", lambda: 1, type("Odd", (), {}), object()])
def test_a_type_without_a_schema_is_refused_in_one_line(kind: Any) -> None:
    with pytest.raises(ConfigError) as made:
        OutputSchema(kind, "agent 'test'")
    assert str(made.value).startswith("agent 'test': output=")
    assert "\n" not in str(made.value)


# ---------------------------------------------------------------------------------------------- JSON schemas

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "minItems": 1},
        "state": {"enum": ["new", "old"]},
        "to": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["id", "lines"],
    "additionalProperties": False,
    "$defs": {"line": {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]}},
    "$schema": "https://json-schema.org/draft/2020-12/schema",
}


def test_the_answer_of_a_json_schema_is_plain_json() -> None:
    schema = OutputSchema(ORDER)
    value = {"id": 1, "lines": [{"sku": "a", "more": [1.5]}], "to": None}
    assert schema.parse(f"```json\n{json.dumps(value)}\n```") == value
    assert schema.load(value) == value
    assert "$schema" not in schema.schema
    assert schema.schema["$defs"] == ORDER["$defs"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({}, ["id: required", "lines: required"]),
        ({"id": "secret", "lines": [{"sku": "a"}]}, ["id: must be of type integer"]),
        ({"id": 0, "lines": [{"sku": "a"}]}, ["id: does not fit minimum 1"]),
        ({"id": 1, "lines": []}, ["lines: does not fit minItems 1"]),
        ({"id": 1, "lines": [{"sku": "a"}, {}]}, ["lines.1.sku: required"]),
        ({"id": 1, "lines": [{"sku": "a"}], "odd": "secret"}, ["odd: there is no such property"]),
        ({"id": 1, "lines": [{"sku": "a"}], "state": "secret"}, ['state: must be one of ["new", "old"]']),
        ({"id": 1, "lines": [{"sku": "a"}], "to": 5}, ["to: fits none of the 2 forms"]),
        ([], ["answer: must be of type object"]),
        ({"id": 1, "lines": [{}] * 30}, [f"lines.{n}.sku: required" for n in sorted(range(30), key=str)[:20]]),
    ],
)
def test_what_does_not_fit_a_json_schema_is_named_by_its_place_and_not_repeated(value: Any, says: list[str]) -> None:
    with pytest.raises(OutputInvalidError) as made:
        OutputSchema(ORDER).parse(json.dumps(value))
    assert str(made.value).splitlines()[:20] == says
    assert "secret" not in str(made.value)


def test_a_json_schema_of_no_object_travels_under_a_key() -> None:
    schema = OutputSchema({"type": "array", "items": {"type": "integer"}})
    assert schema.schema["required"] == ["value"]
    assert schema.parse('{"value": [1, 2]}') == schema.parse("[1, 2]") == [1, 2]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "odd"}, "'odd' is not valid"),
        ({"type": "object", "properties": []}, "is not of type 'object'"),
        ({"$ref": "https://example.com/schema"}, "refers to 'https://example.com/schema'"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "refers to 'other.json'"),
        ({"$ref": "#/$defs/missing"}, "not a JSON schema"),
        ({"type": "object", "default": object()}, "not a JSON schema"),
        ({"minimum": float("nan")}, "not a JSON schema"),
    ],
)
def test_a_json_schema_that_is_none_is_refused_in_one_line(schema: Any, says: str) -> None:
    with pytest.raises(ConfigError) as made:
        OutputSchema(schema, "agent 'test'")
    assert str(made.value).startswith("agent 'test': output")
    assert says in str(made.value)
    assert "\n" not in str(made.value)


def test_a_json_schema_needs_its_extra_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(ConfigError, match=r"extra \[jsonschema\]"):
        OutputSchema({"type": "object"}, "agent 'test'")
    assert OutputSchema(Ticket).parse('{"a": 1}') == {"a": 1, "note": "none"}


# ---------------------------------------------------------------------------------------------- changed by a check


@pytest.mark.parametrize(
    ("kind", "stored", "changed", "expected"),
    [
        (Ticket, {"a": 1, "note": "none"}, Ticket(a=2), {"a": 2, "note": "none"}),
        (Ticket, {"a": 1, "note": "none"}, Ticket(a=1), {"a": 1, "note": "none"}),
        (Point, {"x": 1.0, "tags": []}, Point(2.0, ["x"]), {"x": 2.0, "tags": ["x"]}),
        (Strict, {"a": 2}, Strict(a=2), {"a": 2}),
        (Renamed, {"in": 2}, Renamed.model_validate({"in": 2}), {"in": 2}),
        (
            ORDER,
            {"id": 1, "lines": [{"sku": "a"}]},
            {"id": 2, "lines": ({"sku": "b"},)},
            {"id": 2, "lines": [{"sku": "b"}]},
        ),
    ],
)
def test_a_changed_object_is_stored_as_one_of_its_type(kind: Any, stored: Any, changed: Any, expected: Any) -> None:
    assert OutputSchema(kind).changed(stored, changed) == expected


@pytest.mark.parametrize(
    ("kind", "stored", "changed"),
    [
        (Ticket, {"a": 1, "note": "none"}, "a text"),
        (Ticket, {"a": 1, "note": "none"}, Ticket.model_construct(a="x", note="")),
        (ORDER, {"id": 1, "lines": [{"sku": "a"}]}, {"id": 0}),
        (ORDER, {"id": 1, "lines": [{"sku": "a"}]}, object()),
    ],
)
def test_what_a_check_makes_of_an_answer_has_to_fit_as_well(kind: Any, stored: Any, changed: Any) -> None:
    with pytest.raises(OutputInvalidError):
        OutputSchema(kind).changed(stored, changed)


def test_a_value_that_is_changed_in_place_leaves_what_is_stored() -> None:
    stored = {"id": 1, "lines": [{"sku": "a"}]}
    OutputSchema(ORDER).load(stored)["id"] = "broken"
    assert stored["id"] == 1
