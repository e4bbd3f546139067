"""Structured output: the schema a final answer must fit, and the check."""

import inspect
import json
import re
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentq.arguments import first_line, json_schema, load_json, problems, unchecked
from agentq.errors import ConfigError

OUTPUT_TOOL = "final_answer"
_FENCE = re.compile(r"```(?:[\w+-]*[ \t]*\r?\n|json[ \t]*)?(.*)```", re.DOTALL)


class OutputInvalidError(Exception):
    """The answer does not fit the schema; the text says where."""


class OutputSchema:
    """A pydantic model, dataclass or any type pydantic knows. The value is kept as JSON and rebuilt by ``load``."""

    def __init__(self, kind: Any, where: str = "agent") -> None:
        try:
            if inspect.isroutine(kind):
                raise TypeError("it is a function")  # pydantic would call it
            self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
            schema = json_schema(self._adapter)
        except Exception as error:
            raise ConfigError(f"{where}: output={kind!r} has no JSON schema: {first_line(error)}") from error
        self.schema, self._wrapped = _as_object_schema(schema)

    def parse(self, text: str) -> Any:
        """The JSON value of a valid answer; a code fence around it all is taken off. Raises OutputInvalidError."""
        try:
            value = load_json(_unfenced(text))
        except ValueError as error:
            raise OutputInvalidError(f"the answer is not valid JSON: {error}") from error
        if self._wrapped and isinstance(value, dict) and set(value) == {"value"}:
            value = value["value"]
        try:
            return self._stored(value)
        except ValidationError as error:
            raise OutputInvalidError(problems(error)) from error
        except Exception as error:
            # A validator of the user's own, or a number too big for JSON.
            raise OutputInvalidError(unchecked("answer", error)) from error

    def load(self, value: Any) -> Any:
        """The typed object of a stored value."""
        return self._adapter.validate_json(json.dumps(value))

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


def _unfenced(text: str) -> str:
    text = text.strip().lstrip("\ufeff").strip()
    fenced = _FENCE.fullmatch(text)
    return (fenced.group(1) if fenced else text).strip().lstrip("\ufeff")


def _as_object_schema(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The schema of an object, as tool parameters are everywhere; any other value travels under one key."""
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    own = {key: value for key, value in schema.items() if key != "$defs"}
    if set(own) == {"$ref"}:
        # A type that contains itself. Providers want to see at the top that it is an object.
        own = shared["$defs"][own["$ref"].removeprefix("#/$defs/")]
    if own.get("type") == "object":
        return {"properties": {}, **own, **shared}, False
    return {"type": "object", "properties": {"value": own}, "required": ["value"], **shared}, True
