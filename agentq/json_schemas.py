"""Values checked against a JSON schema that the user wrote, where there is no Python type to check them with."""

import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from agentq.arguments import first_line
from agentq.errors import ConfigError
from agentq.text import clean, cut

_MAX_PROBLEMS = 20
_MAX_PROBLEM_CHARS = 500


class ProblemsError(Exception):
    """The value does not fit; the text names each place and its problem, never the value itself."""


class JsonSchema:
    """A checked JSON schema, of any draft (2020-12 where it does not say). It refers to nothing but itself."""

    def __init__(self, schema: Mapping[str, Any], where: str, what: str = "output") -> None:
        library = _library(where)
        try:
            self.schema: dict[str, Any] = json.loads(json.dumps(dict(schema), allow_nan=False))
            kind = library.validators.validator_for(self.schema, default=library.Draft202012Validator)
            kind.check_schema(self.schema)
        except Exception as error:
            raise ConfigError(f"{where}: {what} is not a JSON schema: {first_line(error)}") from error
        for ref in _references(self.schema):
            if not ref.startswith("#"):
                raise ConfigError(f"{where}: {what} refers to {ref!r}; put that under $defs and refer to '#/$defs/…'")
        # A registry of its own keeps the library from fetching anything.
        self._validator = kind(self.schema, registry=import_module("referencing").Registry())
        try:
            next(self._validator.iter_errors(None), None)
        except Exception as error:
            raise ConfigError(f"{where}: {what} is not a JSON schema: {first_line(error)}") from error

    def check(self, value: Any) -> None:
        """Raises ProblemsError with one line a problem."""
        try:
            errors = sorted(self._validator.iter_errors(value), key=lambda error: [str(part) for part in error.path])
        except Exception as error:
            # A reference that leads nowhere, or nesting beyond Python's.
            raise ProblemsError(f"the answer could not be checked: {type(error).__name__}") from error
        # The same property may be missing for several reasons.
        lines = list(dict.fromkeys(line for error in errors for line in _lines(error)))
        if lines:
            more = [f"and {len(lines) - _MAX_PROBLEMS} more"] if len(lines) > _MAX_PROBLEMS else []
            raise ProblemsError("\n".join([*(cut(clean(line), _MAX_PROBLEM_CHARS) for line in lines), *more][:21]))


def _library(where: str) -> Any:
    """Imported when it is needed: types are checked without it."""
    try:
        return import_module("jsonschema")
    except ImportError as error:
        raise ConfigError(
            f"{where}: an output given as a JSON schema is checked by the package jsonschema, which is not installed; "
            "install agentq-celery with its extra [jsonschema], or give a pydantic model or a dataclass"
        ) from error


def _references(schema: Any) -> Iterator[str]:
    match schema:
        case dict():
            for key, item in schema.items():
                if key in ("$ref", "$dynamicRef") and isinstance(item, str):
                    yield item
                yield from _references(item)
        case list():
            for item in schema:
                yield from _references(item)


def _lines(error: Any) -> Iterator[str]:
    """In the words of ``agentq.arguments.problems``."""
    wanted, at = error.validator_value, [str(part) for part in error.absolute_path]
    where = ".".join(at) or "answer"
    match error.validator:
        case "required":
            yield from (f"{'.'.join([*at, name])}: required" for name in wanted if name not in error.instance)
        case "additionalProperties" if wanted is False:
            known = error.schema.get("properties", {})
            yield from (
                f"{'.'.join([*at, name])}: there is no such property" for name in error.instance if name not in known
            )
        case "type":
            yield f"{where}: must be of type {_shown(wanted)}"
        case "enum" | "const":
            yield f"{where}: must be {'one of ' if error.validator == 'enum' else ''}{_shown(wanted)}"
        case "anyOf" | "oneOf":
            yield f"{where}: fits {'more than one' if not error.context else 'none'} of the {len(wanted)} forms"
        case _:
            yield f"{where}: does not fit {error.validator} {_shown(wanted)}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
