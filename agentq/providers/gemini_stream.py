"""The chunks of a streamed generateContent answer put together to the document that it would be unstreamed."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

from agentq.errors import ProviderError
from agentq.providers.base import Delta
from agentq.providers.gemini_reply import is_blocked, parts_of

_PLAIN = {"text", "thought"}
_VALUES = ("stringValue", "numberValue", "boolValue", "nullValue")
_STEP = re.compile(r"""\.([^.\[\]'"]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")


def read_stream(
    events: Iterable[tuple[str, Mapping[str, Any]]], provider: str, on_delta: Callable[[Delta], None]
) -> dict[str, Any]:
    """The document. Raises ProviderError ``network`` for a stream that ends before it has said why it does.

    ``reply_invalid`` it is for arguments in pieces that do not fit together.
    """
    whole = _Whole(provider, on_delta)
    for name, chunk in events:
        if name == "document":
            return dict(chunk)
        whole.add(chunk)
    if not whole.is_complete:
        raise ProviderError("network", f"the stream of {provider} ended in the middle of its reply")
    return whole.document()


class _Whole:
    def __init__(self, provider: str, on_delta: Callable[[Delta], None]) -> None:
        self._provider, self._on_delta = provider, on_delta
        self._seen: dict[str, Any] = {}
        self._candidate: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._parts: list[dict[str, Any]] = []
        self._calls = 0
        self._open: _OpenCall | None = None

    @property
    def is_complete(self) -> bool:
        return bool(self._candidate.get("finishReason")) or is_blocked(self._seen)

    def add(self, chunk: Mapping[str, Any]) -> None:
        self._seen |= {name: value for name, value in chunk.items() if value is not None}
        # Its numbers are totals, and later ones may be left out.
        self._usage |= _dict(chunk.get("usageMetadata"))
        candidates = chunk.get("candidates")
        candidate = _dict(candidates[0]) if isinstance(candidates, list) and candidates else {}
        self._candidate |= {name: value for name, value in candidate.items() if value is not None}
        for part in parts_of(candidate):
            self._add_part(dict(_dict(part)))

    def document(self) -> dict[str, Any]:
        document = {**self._seen, "usageMetadata": self._usage}
        if self._candidate:
            content = {"role": "model", "parts": self._parts}
            document["candidates"] = [{**self._candidate, "content": content}]
        return document

    def _add_part(self, part: dict[str, Any]) -> None:
        if "functionCall" in part:
            self._add_call(part, dict(_dict(part["functionCall"])))
        elif isinstance(part.get("text"), str):
            self._add_text(part)
        else:
            self._parts.append(part)

    def _add_text(self, part: dict[str, Any]) -> None:
        if part["text"]:
            self._on_delta(Delta("reasoning" if part.get("thought") else "text", part["text"]))
        # A part with a signature keeps its borders.
        if part.keys() <= _PLAIN:
            last = self._parts[-1] if self._parts else {}
            if "text" in last and last.keys() <= _PLAIN and bool(last.get("thought")) == bool(part.get("thought")):
                last["text"] += part["text"]
                return
            if not part["text"]:
                return
        self._parts.append(part)

    def _add_call(self, part: dict[str, Any], call: dict[str, Any]) -> None:
        if self._open is not None and not call.get("name"):
            self._open.grow(part, call)
        else:
            self._open = _OpenCall(self._provider, part, call)
            self._parts.append(self._open.part)
            self._calls += 1
        if self._open.is_whole:
            self._show(self._open.part["functionCall"])
            self._open = None

    def _show(self, call: Mapping[str, Any]) -> None:
        # Whole: the pieces are values of a path each, and no text that could be put together.
        text = json.dumps(call.get("args") or {}, ensure_ascii=False)
        self._on_delta(Delta("arguments", text, self._calls - 1, str(call.get("name") or "")))


class _OpenCall:
    """A call whose arguments come in pieces, as ``streamFunctionCallArguments`` gives them; most come whole.

    https://docs.cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling
    """

    def __init__(self, provider: str, part: dict[str, Any], call: dict[str, Any]) -> None:
        self.part = {**part, "functionCall": call}
        self._provider = provider
        self._growing: set[str] = set()
        self._take(call, into=call)

    @property
    def is_whole(self) -> bool:
        return not self.part["functionCall"].get("willContinue")

    def grow(self, part: dict[str, Any], piece: dict[str, Any]) -> None:
        call = self.part["functionCall"]
        self._take(piece, into=call)
        call.pop("willContinue", None)
        call |= piece
        self.part |= {name: value for name, value in part.items() if name != "functionCall"}

    def _take(self, piece: dict[str, Any], *, into: dict[str, Any]) -> None:
        """Move the values that a piece has into the arguments of the call."""
        for value in piece.pop("partialArgs", None) or ():
            into["args"] = self._with(into.get("args") or {}, _dict(value))

    def _with(self, arguments: Any, piece: dict[str, Any]) -> Any:
        path = piece.get("jsonPath")
        kind = next((kind for kind in _VALUES if kind in piece), None)
        steps = _steps(path) if isinstance(path, str) else []
        if not isinstance(path, str) or not steps:
            raise self._broken()
        value = None if kind in (None, "nullValue") else piece[kind]
        try:
            _put(arguments, steps, value, append=path in self._growing)
        except (TypeError, KeyError, IndexError):
            raise self._broken() from None
        if piece.get("willContinue"):
            self._growing.add(path)
        else:
            self._growing.discard(path)
        return arguments

    def _broken(self) -> ProviderError:
        return ProviderError("reply_invalid", f"{self._provider} streamed arguments that do not fit together")


def _steps(path: str) -> list[str | int]:
    """The names and numbers of a JSONPath to one value, such as ``$.items[0]['a b']``; none of what is no such path."""
    steps: list[str | int] = []
    at = 1
    while found := _STEP.match(path, at):
        plain, number, *quoted = found.groups()
        name = next((re.sub(r"\\(.)", r"\1", name) for name in quoted if name is not None), None)
        steps.append(int(number) if number else plain if plain is not None else name or "")
        at = found.end()
    return steps if path[:1] == "$" and at == len(path) else []


def _put(root: Any, steps: list[str | int], value: Any, *, append: bool) -> None:
    """Set or lengthen the value; raises TypeError, KeyError or IndexError where there is no place for it."""
    holder = root
    for step, following in pairwise(steps):
        empty: Any = [] if isinstance(following, int) else {}
        holder = _made(holder, step, empty)
    last = steps[-1]
    if append and isinstance(value, str) and isinstance(_made(holder, last, ""), str):
        holder[last] += value
    else:
        _made(holder, last, value)
        holder[last] = value


def _made(holder: Any, step: str | int, empty: Any) -> Any:
    """What is at a step, put there first if it is the next one. A list grows by one at a time."""
    if isinstance(step, int) != isinstance(holder, list) or not isinstance(holder, dict | list):
        raise TypeError
    if isinstance(holder, list) and step == len(holder):
        holder.append(empty)
    elif isinstance(holder, dict):
        holder.setdefault(step, empty)
    return holder[step]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
