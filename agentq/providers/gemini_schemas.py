"""A tool's parameters as Gemini takes them: the same schema, without the words that it has none for."""

import json
from typing import Any

from agentq.providers.schemas import GEMINI

_DROPPED = {
    *("title", "examples", "discriminator", "deprecated", "readOnly", "writeOnly"),
    *("$comment", "$schema", "$id"),
}
# Calls are checked here, so a check may be told to the model in words.
_TOLD = ("exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_ONE = ("items", "additionalProperties", "not", "contains")
_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions", "patternProperties")


def parameters(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema for ``parametersJsonSchema``. https://ai.google.dev/api/caching#FunctionDeclaration"""
    made: dict[str, Any] = {}
    told = {key: schema[key] for key in _TOLD if key in schema}
    if "format" in schema and schema["format"] not in GEMINI.formats:
        told["format"] = schema["format"]
    for key, value in schema.items():
        if key not in _DROPPED and key not in told and key != "const":
            made[key] = _below(key, value)
    if "const" in schema:
        made["enum"] = [schema["const"]]
    if told:
        words = ", ".join(f"{key}: {json.dumps(told[key], ensure_ascii=False)}" for key in sorted(told))
        made["description"] = "\n".join(filter(None, (schema.get("description"), words)))
    if "$ref" in made and any(not key.startswith("$") for key in made):
        # Nothing may stand beside a reference.
        made = {"anyOf": [{"$ref": made.pop("$ref")}], **made}
    return made


def _below(key: str, value: Any) -> Any:
    if key in _NAMED and isinstance(value, dict):
        return {name: _schema(below) for name, below in value.items()}
    if key in _MANY and isinstance(value, list):
        return [_schema(below) for below in value]
    return _schema(value) if key in _ONE else value


def _schema(value: Any) -> Any:
    return parameters(value) if isinstance(value, dict) else value
