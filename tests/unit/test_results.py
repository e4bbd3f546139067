"""Every value a tool may return has one form in text, or is an error; never a crash, never too long."""

import json
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from itertools import count
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel, SecretStr, computed_field

from agentq.limits import MAX_RESULT_CHARS
from agentq.results import to_json, to_text


class Colour(Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(IntEnum):
    HIGH = 3


class Word(str, Enum):  # noqa: UP042 - the older way to write it
    YES = "yes"


class Pair(NamedTuple):
    left: int
    right: int


@dataclass
class Score:
    m: float
    when: date | None = None


class Ticket(BaseModel):
    title: str
    price: Decimal = Decimal("1.10")
    key: SecretStr = SecretStr("hunter2")

    @computed_field
    def shout(self) -> str:
        return self.title.upper()


class Names(RootModel[list[str]]):
    pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain text", "plain text"),
        ('{"already": "json"}', '{"already": "json"}'),
        ("", '""'),
        (" \n", '" \\n"'),
        (None, "null"),
        (True, "true"),
        (0, "0"),
        (1.5, "1.5"),
        ([], "[]"),
        ({}, "{}"),
        (set(), "[]"),
        ([None, "ü", 1], '[null, "ü", 1]'),
        (datetime(2025, 1, 2, 3, 4), "2025-01-02T03:04:00"),
        (datetime(2025, 1, 2, 3, 4, tzinfo=UTC), "2025-01-02T03:04:00+00:00"),
        (date(2025, 1, 2), "2025-01-02"),
        (time(3, 4), "03:04:00"),
        (timedelta(minutes=1.5), "90.0"),
        (Decimal("1.10"), "1.10"),
        (Decimal("NaN"), "NaN"),
        (UUID(int=0), "00000000-0000-0000-0000-000000000000"),
        (PurePosixPath("/tmp/x"), "/tmp/x"),
        (Fraction(1, 3), "1/3"),
        (1 + 2j, "(1+2j)"),
        (SecretStr("hunter2"), "**********"),
        (Colour.RED, "red"),
        (Colour.PAIR, "[1, 2]"),
        (Level.HIGH, "3"),
        (Word.YES, "yes"),
        ({3, 1, 2}, "[1, 2, 3]"),
        ({10, 9, 1.5, "b", None}, '[null, 1.5, 9, 10, "b"]'),
        (frozenset({"b", "a"}), '["a", "b"]'),
        (b"text", "text"),
        (b"\xff\x00", "base64:/wA="),
        (bytearray(b"text"), "text"),
        (memoryview(b"text"), "text"),
        ((1, "a"), '[1, "a"]'),
        (Pair(1, 2), "[1, 2]"),
        (range(3), "[0, 1, 2]"),
        (deque([1]), "[1]"),
        ({"a": 1}.values(), "[1]"),
        ({"b": 1, "a": 1}.keys(), '["b", "a"]'),
        ((n for n in (1, 2)), "[1, 2]"),
        (MappingProxyType({"a": 1}), '{"a": 1}'),
        (OrderedDict(b=1, a=2), '{"b": 1, "a": 2}'),
        (Score(1.5, date(2025, 1, 2)), '{"m": 1.5, "when": "2025-01-02"}'),
        (Ticket(title="a"), '{"title": "a", "price": "1.10", "key": "**********", "shout": "A"}'),
        (Names(["a"]), '["a"]'),
        ([Ticket(title="a")], '[{"title": "a", "price": "1.10", "key": "**********", "shout": "A"}]'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_value_has_one_form(value: Any, text: str) -> None:
    assert to_text(value) == text


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ({"m": Score(m=float("nan")), "l": [float("inf")]}, {"m": {"m": "NaN", "when": None}, "l": ["Infinity"]}),
        ([-float("inf")], ["-Infinity"]),
        ({(1, 2): "t", 1: "i", "1": "s"}, {"[1, 2]": "t", "1": "i", "1 (str)": "s"}),
        ({True: 1, None: 2, 1.5: 3}, {"true": 1, "null": 2, "1.5": 3}),
        ({date(2025, 1, 2): 1, Colour.RED: 2, b"k": 3}, {"2025-01-02": 1, "red": 2, "k": 3}),
        ({1: "a", "1": "b", Word.YES: 1, "yes (Word)": 2, "1 (str)": 3}, None),
    ],
)
def test_no_value_and_no_key_is_lost_at_any_depth(value: dict[Any, Any], form: Any) -> None:
    found = json.loads(to_text(value))
    assert len(found) == len(value)
    assert form is None or found == form


def test_nul_and_half_characters_are_replaced_in_keys_and_values_and_the_written_escape_is_kept() -> None:
    assert to_json({"a\x00k": "x\x00y", "b": "\ud800"}) == {"a\ufffdk": "x\ufffdy", "b": "\ufffd"}
    assert to_text("bad\x00") == "bad\ufffd"
    assert to_text("\\u0000") == "\\u0000"
    assert json.loads(to_text(["\\u0000"])) == ["\\u0000"]
    assert "\\u0000" not in to_text({"a\x00": b"\x00"})
    assert len(to_json({"a\x00": 1, "a\ufffd": 2})) == 2


def cycle() -> Any:
    value: dict[str, Any] = {}
    value["me"] = [value]
    return value


def deep() -> Any:
    value: list[Any] = []
    for _ in range(10_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [cycle(), deep(), object(), Ticket, len, [object()], {1: object()}, 10**5000, {"n": 10**5000}, count(), open],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_a_form_is_a_type_error_and_nothing_else(value: Any) -> None:
    with pytest.raises(TypeError):
        to_text(value)


def test_the_same_value_twice_is_no_cycle() -> None:
    shared = [1]
    assert to_text([shared, shared]) == "[[1], [1]]"


def test_a_generator_without_an_end_is_not_followed_for_ever() -> None:
    with pytest.raises(TypeError, match="no end"):
        to_text(0 for _ in count())


def test_what_a_generator_raises_is_the_tools_fault() -> None:
    with pytest.raises(ZeroDivisionError):
        to_text(1 // n for n in (1, 0))


@pytest.mark.parametrize("value", ["x" * 5_000_000, ["x" * 5_000_000], {"k": "ü" * 200_000}, "\x00" * 200_000])
def test_a_long_result_is_cut_with_a_note_within_the_limit(value: Any) -> None:
    text = to_text(value)
    assert len(text) <= MAX_RESULT_CHARS
    assert "[cut: " in text[-100:]


def test_a_result_of_exactly_the_limit_is_whole() -> None:
    assert to_text("x" * MAX_RESULT_CHARS) == "x" * MAX_RESULT_CHARS


@settings(max_examples=30, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.decimals(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner),
        max_leaves=10,
    )
)
def test_anything_becomes_strict_json_that_is_never_empty(value: Any) -> None:
    assert to_text(value).strip()
    text = json.dumps(to_json(value), allow_nan=False)
    assert "\\u0000" not in text.replace("\\\\", "")
