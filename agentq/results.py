"""What a tool returned, as the text a model sees: every value has one documented form or is an error."""

import base64
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from math import isfinite
from pathlib import PurePath
from types import GeneratorType
from typing import Any
from uuid import UUID

from pydantic import BaseModel, SecretBytes, SecretStr

from agentq.limits import MAX_RESULT_CHARS
from agentq.text import clean, cut

_AS_TEXT = (Decimal, UUID, PurePath, Fraction, complex, SecretStr, SecretBytes)


def to_text(value: Any, limit: int = MAX_RESULT_CHARS) -> str:
    """Text as it is, anything else as JSON, cut to ``limit`` characters. Raises TypeError for a value without a form.

    Decimals, UUIDs and paths become strings; dates ISO 8601; sets sorted lists; bytes UTF-8 text or base64; NaN and
    infinities the strings "NaN", "Infinity", "-Infinity"; dataclasses and pydantic models objects.
    """
    text = value if isinstance(value, str) and value else json.dumps(to_json(value), ensure_ascii=False)
    return cut(clean(text), limit)


def to_json(value: Any, _above: tuple[int, ...] = ()) -> Any:
    """``value`` in JSON types. Raises TypeError where it has no form, or holds itself."""
    if value is None or isinstance(value, bool | int | str) and not isinstance(value, Enum):
        return value
    if id(value) in _above or len(_above) > 100:
        raise TypeError("the value holds itself or is nested too deeply")
    above = (*_above, id(value))
    for kinds, form in _FORMS:
        if isinstance(value, kinds):
            return form(value, above)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _mapping({f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, above)
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


def _float(value: float, _: tuple[int, ...]) -> Any:
    if isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _bytes(value: bytes | bytearray, _: tuple[int, ...]) -> str:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(value).decode()}"


def _mapping(value: Mapping[Any, Any], above: tuple[int, ...]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in value.items():
        name = key if isinstance(key, str) else to_text(key)
        # 1 and "1" are two keys in Python and one in JSON: neither may vanish.
        while name in result:
            name = f"{name} ({type(key).__name__})"
        result[name] = to_json(item, above)
    return result


def _list(value: Iterable[Any], above: tuple[int, ...]) -> list[Any]:
    return [to_json(item, above) for item in value]


def _set(value: Iterable[Any], above: tuple[int, ...]) -> list[Any]:
    return sorted(_list(value, above), key=lambda item: (type(item).__name__, json.dumps(item, sort_keys=True)))


_FORMS: tuple[tuple[Any, Callable[[Any, tuple[int, ...]], Any]], ...] = (
    (Enum, lambda value, above: to_json(value.value, above)),
    (float, _float),
    ((datetime, date, time), lambda value, _: value.isoformat()),
    (timedelta, lambda value, _: value.total_seconds()),
    (_AS_TEXT, lambda value, _: str(value)),
    ((bytes, bytearray), _bytes),
    (BaseModel, lambda value, above: _mapping(value.model_dump(), above)),
    (Mapping, _mapping),
    ((list, tuple, GeneratorType), _list),
    ((set, frozenset), lambda value, above: _set(value, above)),
)
