"""A JSON schema as a provider's native mode takes it: narrowed, never widened, or not at all."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentq.providers.base import OutputFormat

# Structure that every mode has; what else is in a schema is a check, a word for people, or beyond them.
_STRUCTURE = {
    *("$defs", "$ref", "type", "enum", "const", "anyOf", "oneOf", "allOf"),
    *("properties", "required", "additionalProperties", "items"),
}
_RANGES = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems"}
_CHECKS = _RANGES | {"minLength", "maxLength", "pattern", "format", "uniqueItems", "minProperties", "maxProperties"}
_WORDS = {
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("discriminator", "$comment", "$schema", "$id"),
}
# What is no schema itself.
_VALUES = frozenset(["default", "enum", "const", "examples", "required"])
_TYPES = frozenset(["object", "array", "string", "integer", "number", "boolean", "null"])
_FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"])
_TYPE_OF: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


@dataclass(frozen=True)
class Dialect:
    """What one native mode takes. ``checks`` it keeps; what it does not is told in the description.

    ``listed`` are the types whose values may be in an enum; without ``const`` one value is an enum too.
    """

    checks: frozenset[str]
    formats: frozenset[str]
    all_required: bool
    recursion: bool
    listed: frozenset[str] = _TYPES
    const: bool = True


# https://developers.openai.com/api/docs/guides/structured-outputs: what is not required cannot be said.
OPENAI = Dialect(frozenset(_RANGES | {"pattern"}), _FORMATS, all_required=True, recursion=True)
# https://platform.claude.com/docs/en/build-with-claude/structured-outputs
ANTHROPIC = Dialect(frozenset(), _FORMATS | {"uri"}, all_required=False, recursion=False)
# https://ai.google.dev/gemini-api/docs/structured-output, and responseJsonSchema in the reference of GenerationConfig.
GEMINI = Dialect(
    frozenset(["minimum", "maximum", "minItems", "maxItems"]),
    frozenset(["date-time", "date", "time"]),
    all_required=False,
    recursion=False,
    listed=frozenset(["string", "integer", "number"]),
    const=False,
)


def output_format(schema: dict[str, Any], dialect: Dialect, *, forced: bool) -> OutputFormat | None:
    """See HasOutputFormat. Forced, a schema beyond the dialect goes out as it is, and is not strict."""
    strict = narrowed(schema, dialect)
    if strict is not None:
        return OutputFormat(strict)
    return OutputFormat(schema, strict=False) if forced else None


class _BeyondError(Exception):
    """The mode has no words for it."""


def narrowed(schema: dict[str, Any], dialect: Dialect) -> dict[str, Any] | None:
    """A schema whose values all fit ``schema``, but for checks that are only told; None where there is none."""
    try:
        made = _node(schema, dialect)
        shared = {name: _node(below, dialect) for name, below in schema.get("$defs", {}).items()}
        if not dialect.recursion and _is_recursive({"#": made, **shared}):
            return None
    except (_BeyondError, RecursionError):
        return None
    return {**made, "$defs": shared} if shared else made


def with_items(schema: Any) -> Any:
    """The same schema with ``items`` in each array, which say nothing: OpenAI refuses a tool with one without."""
    if isinstance(schema, list):
        return [with_items(below) for below in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for key, below in schema.items():
        if key in ("properties", "$defs") and isinstance(below, dict):
            made[key] = {name: with_items(each) for name, each in below.items()}
        else:
            made[key] = below if key in _VALUES else with_items(below)
    kinds = made.get("type")
    is_array = "array" in (kinds if isinstance(kinds, list) else [kinds])
    return {**made, "items": {}} if is_array and "items" not in made else made


def _node(schema: Any, dialect: Dialect) -> dict[str, Any]:
    if not isinstance(schema, dict) or not schema.keys() <= _CHECKS | _WORDS | _STRUCTURE:
        raise _BeyondError
    if "allOf" in schema:
        # Of one, with nothing but words beside it, as some libraries write a reference.
        if len(schema["allOf"]) != 1 or not schema.keys() <= _WORDS | {"allOf", "$defs"}:
            raise _BeyondError
        return _described(_node(schema["allOf"][0], dialect), schema.get("description"), {})
    made = _shape(schema, dialect)
    told = {}
    for key in schema.keys() & _CHECKS:
        if _keeps(key, schema[key], dialect):
            made[key] = schema[key]
        else:
            told[key] = schema[key]
    return _described(made, schema.get("description"), told)


def _keeps(key: str, value: Any, dialect: Dialect) -> bool:
    if key == "format":
        return value in dialect.formats
    return key in dialect.checks or (key == "minItems" and value in (0, 1))


def _described(made: dict[str, Any], description: Any, told: dict[str, Any]) -> dict[str, Any]:
    words = [description] if isinstance(description, str) and description else []
    words += [", ".join(f"{key}: {json.dumps(told[key], ensure_ascii=False)}" for key in sorted(told))] if told else []
    if not words:
        return made
    # Nothing may stand beside a reference.
    return {**({"anyOf": [made]} if "$ref" in made else made), "description": "\n".join(words)}


def _shape(schema: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    if "$ref" in schema:
        is_own = schema["$ref"] == "#" or str(schema["$ref"]).startswith("#/$defs/")
        if not is_own or not schema.keys() <= _WORDS | {"$ref", "$defs"}:
            raise _BeyondError
        return {"$ref": schema["$ref"]}
    for key in ("anyOf", "oneOf"):
        if key in schema:
            if schema.keys() & (_STRUCTURE - {key, "$defs"}):
                raise _BeyondError
            return {"anyOf": [_node(form, dialect) for form in schema[key]]}
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    if values is not None:
        return _one_of(schema, values, dialect)
    kinds = schema.get("type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    if not listed or not all(isinstance(kind, str) and kind in _TYPES for kind in listed):
        raise _BeyondError
    made: dict[str, Any] = {"type": kinds}
    if "object" in listed:
        made |= _object(schema, dialect)
    if "array" in listed:
        made["items"] = _node(schema.get("items"), dialect)
    return made


def _one_of(schema: dict[str, Any], values: list[Any], dialect: Dialect) -> dict[str, Any]:
    if not values or not all(_TYPE_OF.get(type(value)) in dialect.listed for value in values):
        raise _BeyondError
    kinds = list(dict.fromkeys(_TYPE_OF[type(value)] for value in values))
    given = {"const": schema["const"]} if "enum" not in schema and dialect.const else {"enum": values}
    return {"type": schema.get("type", kinds[0] if len(kinds) == 1 else kinds), **given}


def _object(schema: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    # An object with names of its own is more than what its properties say.
    if schema.get("additionalProperties", False) is not False or "properties" not in schema:
        raise _BeyondError
    properties = {name: _node(below, dialect) for name, below in schema["properties"].items()}
    required = list(properties) if dialect.all_required else list(schema.get("required", ()))
    if not set(schema.get("required", ())) <= properties.keys():
        raise _BeyondError
    return {"properties": properties, "required": required, "additionalProperties": False}


def _is_recursive(nodes: dict[str, Any]) -> bool:
    """Whether any of them leads back to itself."""
    leads = {name: {ref.removeprefix("#/$defs/") for ref in _references(node)} for name, node in nodes.items()}
    for _ in leads:
        leads = {name: below | {far for near in below for far in leads.get(near, ())} for name, below in leads.items()}
    return any(name in below for name, below in leads.items())


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for below in node.values():
            yield from _references(below)
    elif isinstance(node, list):
        for below in node:
            yield from _references(below)
