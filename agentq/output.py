"""Structured output: the schema a final answer must fit, and the check."""

import copy
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol

from pydantic import TypeAdapter, ValidationError

from agentq.arguments import first_line, json_schema, load_json, problems, unchecked
from agentq.errors import ConfigError
from agentq.json_schemas import JsonSchema, ProblemsError
from agentq.results import to_json

OUTPUT_TOOL = "final_answer"
# How the model gives its answer: by the provider's own mode, or by calling a tool.
OutputMode = Literal["auto", "native", "tool"]
# ``(ctx, value)``, sync or async; see Agent.
OutputCheck = Callable[..., Any]
_FENCE = re.compile(r"```(?:[ \t]*[\w+-]*[ \t]*\r?\n|[ \t]*json[ \t]*)?(.*)```", re.DOTALL)


class AskAgain(Exception):
    """Raise it in an ``output_check``: the model reads the text and answers again. It counts as an invalid answer."""


class OutputInvalidError(Exception):
    """The answer does not fit the schema; the text says where."""


class _Kind(Protocol):
    schema: dict[str, Any]

    def checked(self, value: Any) -> Any:
        """A JSON value as it is stored. Raises OutputInvalidError."""

    def load(self, value: Any) -> Any:
        """The object of a stored value."""

    def dump(self, value: Any) -> Any:
        """The JSON value of an object, not checked yet. May raise anything."""


class OutputSchema:
    """A pydantic model, dataclass or any type pydantic knows, or a JSON schema.

    The value is kept as JSON and rebuilt by ``load``: of a JSON schema it is JSON all the time.
    """

    def __init__(self, kind: Any, where: str = "agent") -> None:
        self._kind: _Kind = _OfSchema(kind, where) if isinstance(kind, Mapping) else _OfType(kind, where)
        self.schema, self._wrapped = _as_object_schema(self._kind.schema)

    def parse(self, text: str) -> Any:
        """The JSON value of a valid answer; a code fence around it all is taken off. Raises OutputInvalidError."""
        try:
            value = load_json(_unfenced(text))
        except ValueError as error:
            raise OutputInvalidError(f"the answer is not valid JSON: {error}") from error
        if self._wrapped and isinstance(value, dict) and set(value) == {"value"}:
            value = value["value"]
        return self._kind.checked(value)

    def load(self, value: Any) -> Any:
        """The typed object of a stored value."""
        return self._kind.load(value)

    def changed(self, stored: Any, value: Any) -> Any:
        """What is stored in the place of ``stored`` for an object of the user's. Raises OutputInvalidError."""
        if value == self.load(stored):
            return stored
        try:
            dumped = self._kind.dump(value)
        except Exception as error:
            raise OutputInvalidError(unchecked("answer", error)) from error
        return self._kind.checked(dumped)


class _OfType:
    def __init__(self, kind: Any, where: str) -> None:
        try:
            if inspect.isroutine(kind):
                raise TypeError("it is a function")  # pydantic would call it
            self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
            self.schema = json_schema(self._adapter)
        except Exception as error:
            raise ConfigError(f"{where}: output={kind!r} has no JSON schema: {first_line(error)}") from error

    def checked(self, value: Any) -> Any:
        try:
            return self._stored(value)
        except ValidationError as error:
            raise OutputInvalidError(problems(error)) from error
        except Exception as error:
            # A validator of the user's own, or a number too big for JSON.
            raise OutputInvalidError(unchecked("answer", error)) from error

    def load(self, value: Any) -> Any:
        return self._adapter.validate_json(json.dumps(value))

    def dump(self, value: Any) -> Any:
        return self._adapter.dump_python(value, mode="json", by_alias=True, warnings="error")

    def _stored(self, value: Any) -> Any:
        """The value with its defaults, as long as that gives the same object again; else what the model sent.

        It does not where a type has computed fields and forbids others, or other names for writing than for reading.
        """
        checked = self.load(value)
        stored = self._adapter.dump_python(checked, mode="json", by_alias=True)
        json.dumps(stored, allow_nan=False)
        try:
            same = bool(self.load(stored) == checked)
        except Exception:
            same = False
        return stored if same else value


class _OfSchema:
    def __init__(self, schema: Mapping[str, Any], where: str) -> None:
        self._checks = JsonSchema(schema, where)
        self.schema = {key: value for key, value in self._checks.schema.items() if key not in ("$schema", "$id")}

    def checked(self, value: Any) -> Any:
        try:
            self._checks.check(value)
        except ProblemsError as error:
            raise OutputInvalidError(str(error)) from error
        return value

    def load(self, value: Any) -> Any:
        return copy.deepcopy(value)

    def dump(self, value: Any) -> Any:
        return to_json(value)


def _unfenced(text: str) -> str:
    text = text.strip().lstrip("\ufeff").strip()
    fenced = _FENCE.fullmatch(text)
    return (fenced.group(1) if fenced else text).strip().lstrip("\ufeff")


def _as_object_schema(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The schema of an object, as tool parameters are everywhere; any other value travels under one key."""
    shared: dict[str, Any] = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    own = {key: value for key, value in schema.items() if key not in shared}
    if set(own) == {"$ref"} and own["$ref"].removeprefix("#/$defs/") in shared.get("$defs", {}):
        # A type that contains itself. Providers want to see at the top that it is an object.
        own = shared["$defs"][own["$ref"].removeprefix("#/$defs/")]
    if own.get("type") == "object":
        return {"properties": {}, **own, **shared}, False
    return {"type": "object", "properties": {"value": own}, "required": ["value"], **shared}, True


def checks_of(where: str, given: Any, output: OutputSchema | None) -> tuple[OutputCheck, ...]:
    """The functions of ``output_check``. Raises ConfigError."""
    checks = tuple(given) if isinstance(given, Iterable) and not callable(given) else (given,)
    for check in checks:
        if not callable(check):
            raise ConfigError(
                f"{where}: output_check is a function of context and value, or a list of such, not {check!r}"
            )
    if checks and output is None:
        raise ConfigError(f"{where}: output_check looks at typed answers; give an output too, such as output=str")
    return checks
