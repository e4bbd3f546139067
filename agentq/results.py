"""What a tool returned, as the text a model sees: every value has one documented form or is an error."""

import base64
import dataclasses
import json
from collections import deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import islice
from math import isfinite, isnan
from pathlib import PurePath
from types import GeneratorType
from typing import Any
from uuid import UUID

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic_core import PydanticSerializationError

from agentq.content import WITHOUT_MEDIA, File, Image, check_together, joined
from agentq.errors import ContentError
from agentq.limits import MAX_RESULT_CHARS
from agentq.text import clean, cut

_AS_TEXT = (UUID, PurePath, Fraction, complex, SecretStr, SecretBytes)
_MAX_DEPTH = 100
_MAX_BITS = 13_288


def to_text(value: Any, limit: int = MAX_RESULT_CHARS) -> str:
    """Text as it is, anything else as JSON, cut to ``limit`` characters. Raises TypeError for a value without a form.

    Decimals, UUIDs and paths become strings; dates ISO 8601, durations seconds; sets sorted lists; bytes UTF-8 text or
    base64; NaN and infinities the strings "NaN", "Infinity", "-Infinity"; dataclasses and pydantic models objects.
    A text without a visible character becomes a JSON string: providers refuse it bare.
    """
    form = to_json(value)
    text = form if isinstance(form, str) and form.strip() else clean(_dumps(form))
    return cut(text, limit)


def to_content(value: Any) -> tuple[str, tuple[Image | File, ...]]:
    """The text of ``to_text``, and the images and files of a value that is one, or a list with some in it.

    In such a list each other value has its own form. Raises TypeError for a value without a form, or one that has an
    image deeper inside; ContentError for more of them than a message may have.
    """
    parts = [value] if isinstance(value, Image | File) else value
    if not isinstance(parts, list | tuple) or not any(isinstance(part, Image | File) for part in parts):
        return to_text(value), ()
    text, media = joined(part if isinstance(part, Image | File) else to_text(part) for part in parts)
    check_media(media)
    text = cut(text or " ".join(map(str, media)), MAX_RESULT_CHARS)
    return text, tuple(one.placed(min(one.at, len(text))) for one in media)


def check_media(media: Sequence[Image | File]) -> None:
    """Raises ContentError where a result cannot have them."""
    check_together(media, "the result")
    for one in media:
        if one.data is None and not one.url:
            raise ContentError(f"{one} has no bytes; give those that Client.read returns", problem="empty")


def to_json(value: Any, _above: tuple[int, ...] = ()) -> Any:
    """``value`` in JSON types, texts cleaned. Raises TypeError where it has no form, or holds itself."""
    if not isinstance(value, Enum):
        if value is None or isinstance(value, bool | int):
            return _readable(value)
        if isinstance(value, str):
            return clean(value)
    if id(value) in _above or len(_above) > _MAX_DEPTH:
        raise TypeError("the value holds itself or is nested too deeply")
    above = (*_above, id(value))
    for kinds, form in _FORMS:
        if isinstance(value, kinds):
            return form(value, above)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _mapping({f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, above)
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


class _NoNumber(str):
    """The name of a number that JSON does not have, in its place."""

    __slots__ = ()


def given_json(value: Any) -> Any:
    """``to_json`` of what somebody gives with a run or a decision, which is read as data and not as text.

    Raises TypeError for NaN and infinities as well: a tool would get their names where it takes a number.
    """
    form = to_json(value)
    for path, name in _no_numbers(form):
        raise TypeError(f"{path or 'the value'} is {name}, and JSON has no such number")
    return form


def _no_numbers(form: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(form, _NoNumber):
        yield path, form
    elif isinstance(form, dict):
        for key, item in form.items():
            yield from _no_numbers(key, f"a key of {path or 'the value'}")
            yield from _no_numbers(item, f"{path}.{key}" if path else key)
    elif isinstance(form, list):
        for number, item in enumerate(form):
            yield from _no_numbers(item, f"{path}[{number}]")


def _readable(value: int | None) -> int | None:
    # Python writes and reads no number of more than 4,300 digits: stored, it would make its row unreadable.
    if value is not None and value.bit_length() > _MAX_BITS:
        raise TypeError("a number of more than 4,000 digits has no JSON form")
    return value


def _dumps(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except ValueError as error:
        # Python writes no number of more than 4,300 digits.
        raise TypeError(f"the value has no JSON form: {error}") from error


def _float(value: float, _: tuple[int, ...]) -> Any:
    if isfinite(value):
        return value
    return _NoNumber("NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity")


def _decimal(value: Decimal, _: tuple[int, ...]) -> str:
    return str(value) if value.is_finite() else _NoNumber(value)


def _bytes(value: bytes | bytearray | memoryview, _: tuple[int, ...]) -> str:
    try:
        return clean(bytes(value).decode())
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(value).decode()}"


def _mapping(value: Mapping[Any, Any], above: tuple[int, ...]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in value.items():
        form = to_json(key, above)
        name = form if isinstance(form, str) else _dumps(form)
        # 1 and "1" are two keys in Python and one in JSON: neither may vanish.
        while name in result:
            name = f"{name} ({type(key).__name__})"
        result[name] = to_json(item, above)
    return result


def _list(value: Iterable[Any], above: tuple[int, ...]) -> list[Any]:
    return [to_json(item, above) for item in value]


def _generator(value: Iterable[Any], above: tuple[int, ...]) -> list[Any]:
    # One that never ends fills the memory; what lies beyond this would be cut anyway.
    items = _list(islice(value, MAX_RESULT_CHARS), above)
    if len(items) == MAX_RESULT_CHARS:
        raise TypeError(f"the generator gave {MAX_RESULT_CHARS:,} values and no end")
    return items


def _set(value: Iterable[Any], above: tuple[int, ...]) -> list[Any]:
    return sorted(_list(value, above), key=_order)


def _order(item: Any) -> tuple[str, float, str]:
    number = item if isinstance(item, int | float) and abs(item) < 2**53 else 0
    return (type(item).__name__, number, json.dumps(item, sort_keys=True))


def _model(value: BaseModel, above: tuple[int, ...]) -> Any:
    try:
        dumped = value.model_dump(context=WITHOUT_MEDIA)
    except PydanticSerializationError as error:
        if isinstance(error.__cause__, TypeError):
            raise error.__cause__ from None
        raise
    return to_json(dumped, above)


_FORMS: tuple[tuple[Any, Callable[[Any, tuple[int, ...]], Any]], ...] = (
    (Enum, lambda value, above: to_json(value.value, above)),
    (float, _float),
    (Decimal, _decimal),
    ((datetime, date, time), lambda value, _: value.isoformat()),
    (timedelta, lambda value, _: value.total_seconds()),
    (_AS_TEXT, lambda value, _: str(value)),
    ((bytes, bytearray, memoryview), _bytes),
    # A root model, or one with a serializer of its own, is whatever that gives.
    (BaseModel, _model),
    (Mapping, _mapping),
    ((Sequence, deque, KeysView, ValuesView, ItemsView), _list),
    (GeneratorType, _generator),
    (Set, _set),
)
