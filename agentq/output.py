"""Structured output: the schema a final answer must fit, and the check."""

import json
import re
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentq.arguments import problems
from agentq.errors import ConfigError

OUTPUT_TOOL = "final_answer"
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*\n(.*)\n```\s*\Z", re.DOTALL)


class OutputInvalidError(Exception):
    """The answer does not fit the schema; the text says where."""


class OutputSchema:
    """A pydantic model, dataclass or any type pydantic knows. The value is kept as JSON and rebuilt by ``load``."""

    def __init__(self, kind: Any) -> None:
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
            schema = self._adapter.json_schema()
        except Exception as error:
            raise ConfigError(f"output={kind!r} has no JSON schema: {error}") from error
        # Tool parameters are objects everywhere; anything else travels under one key.
        self._wrapped = schema.get("type") != "object" and "$ref" not in schema
        self.schema: dict[str, Any] = (
            {"type": "object", "properties": {"value": schema}, "required": ["value"]} if self._wrapped else schema
        )

    def parse(self, text: str) -> Any:
        """The JSON value of a valid answer; one code fence around the whole text is taken off. Raises OutputInvalidError."""
        fenced = _FENCE.match(text)
        try:
            value = json.loads((fenced.group(1) if fenced else text).lstrip("\ufeff"))
        except ValueError as error:
            raise OutputInvalidError(f"the answer is not valid JSON: {error}") from error
        if self._wrapped and isinstance(value, dict) and set(value) == {"value"}:
            value = value["value"]
        try:
            checked = self._adapter.validate_json(json.dumps(value))
        except ValidationError as error:
            raise OutputInvalidError(problems(error)) from error
        return self._adapter.dump_python(checked, mode="json", by_alias=True)

    def load(self, value: Any) -> Any:
        """The typed object of a stored value."""
        return self._adapter.validate_json(json.dumps(value))
