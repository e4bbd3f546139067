"""C3: whatever a tool returns is one result that is not empty, and a request that each provider takes."""

import dataclasses
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from agentq import Agent, tool
from agentq.storage.database import Database
from tests.cases.stored import assert_over, assert_strict_and_clean, results
from tests.cases.wire import Api, each_api, played, run, sent_results


class Color(Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int


class Model(BaseModel):
    price: Decimal


def endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["me"] = value
    return value


def numbers() -> Iterator[int]:
    yield 1


RETURNED: list[tuple[Any, str | None]] = [
    (datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
    (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05+00:00"),
    (Decimal("1.10"), "1.10"),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (Path("/a/b"), "/a/b"),
    (Color.RED, "red"),
    (Point(1), '{"x": 1}'),
    (Model(price=Decimal("1.10")), '{"price": "1.10"}'),
    ({3, 1, 2}, "[1, 2, 3]"),
    (b"\xff\x00", None),
    (Fraction(1, 3), None),
    (complex(1, 2), None),
    (numbers, None),
    ({(1, 2): "t", 1: "i", "1": "s"}, None),
    (endless, None),
    (None, None),
    ([], None),
    ({}, None),
    ("", None),
    (" ", None),
]


@each_api
def test_c3_each_value_has_one_text_that_is_not_empty(database: Database, api: Api) -> None:
    @tool
    def give(n: int) -> Any:
        """Give."""
        value = RETURNED[n][0]
        return value() if callable(value) else value

    calls = [(f"call_{n}", "give", f'{{"n": {n}}}') for n in range(len(RETURNED))]
    with played([api.reply("", calls), api.reply("done")]) as server:
        handle = run(database, Agent("test", model=api.provider(server.url), tools=[give]))
    assert handle.result().text == "done"
    back = results(handle)
    for result, (value, text) in zip(back, RETURNED, strict=True):
        assert result.text.strip(), repr(value)
        if text is not None:
            assert (result.status, result.text.replace(",", ", ").replace(":", ": ").replace("  ", " ")) == (
                "success",
                text.replace(",", ", ").replace(":", ": ").replace("  ", " "),
            )
    sent = sent_results(server.asked[1])
    assert [(call, call) for call, _, _ in sent] == [(call, result) for call, result, _ in sent]
    assert all(text.strip() for _, _, text in sent)
    assert_strict_and_clean(database)
    assert_over(database, handle)
