"""A tool's parameters as a JSON schema, and the model's argument text checked against them."""

import functools
import inspect
import json
import types
import warnings
from collections.abc import Callable, Iterable
from math import isinf
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import PydanticJsonSchemaWarning
from pydantic_core import ErrorDetails

from agentq.context import RunContext
from agentq.errors import ConfigError
from agentq.results import to_json
from agentq.text import clean, cut, told

_CONTAINER_WANTED = {
    *("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type", "sequence_str"),
    *("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"),
}
_MAX_PROBLEMS = 20
_MAX_PROBLEM_CHARS = 500


class ArgumentsError(Exception):
    """The arguments do not fit; the text names each field and its problem."""


class Parameters:
    """The checked parameters of one function; ``schema`` is what the model sees."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.context_name, fields, extra = _fields(function, name)
        self.names = tuple(fields)
        # Parameters may be called model_config or _path, which pydantic would not take as field names.
        numbered = {f"p{i}": field for i, field in enumerate(fields.values())}
        # A misspelt argument is a problem to report, not a default to take in silence. But models like to send
        # something to a tool that wants nothing.
        config = ConfigDict(extra="allow" if extra else "forbid" if fields else "ignore")
        try:
            self._model = create_model(f"{name}_arguments", __config__=config, **numbered)
            self.schema = json_schema(TypeAdapter(self._model))
        except Exception as error:
            raise ConfigError(f"tool {name!r}: {_culprit(fields, error)}") from error

    def parse(self, text: str) -> dict[str, Any]:
        """Keyword arguments for the function. Raises ArgumentsError with one line a problem."""
        given = as_object(text)
        try:
            return self._validate(given)
        except ValidationError as error:
            repaired = _repair(given, error.errors(include_url=False, include_context=False))
            if repaired is None:
                raise ArgumentsError(self._problems(error)) from error
        try:
            return self._validate(repaired)
        except ValidationError as error:
            raise ArgumentsError(self._problems(error)) from error

    def _validate(self, given: dict[str, Any]) -> dict[str, Any]:
        try:
            checked = self._model.model_validate(given)
        except ValidationError:
            raise
        except Exception as error:
            # A validator of the user's own that raised neither ValueError nor AssertionError.
            raise ArgumentsError(unchecked("arguments", error)) from error
        values = {name: getattr(checked, f"p{i}") for i, name in enumerate(self.names)}
        return {**(checked.__pydantic_extra__ or {}), **values}

    def _problems(self, error: ValidationError) -> str:
        listed = problems(error)
        unknown = any(item["type"] == "extra_forbidden" for item in error.errors(include_context=False))
        return f"{listed}\nThe parameters are: {', '.join(self.schema['properties'])}" if unknown else listed


def json_schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """The schema without generated titles. Raises PydanticJsonSchemaWarning or ValueError if a default is not JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", PydanticJsonSchemaWarning)
        schema = adapter.json_schema(by_alias=True)
    _check_json(schema)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
    schema.pop("title", None)
    return {"properties": {}, **schema} if schema.get("type") == "object" else schema


def _check_json(schema: dict[str, Any]) -> None:
    try:
        json.dumps(schema, allow_nan=False, ensure_ascii=False).encode()
    except ValueError as error:
        raise ValueError("NaN, infinity or half a character in a default or description is not JSON") from error


def problems(error: ValidationError) -> str:
    """One line a problem, ``amount: required``; never the value itself, which may be long or private."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = []
    for item in found[:_MAX_PROBLEMS]:
        where = ".".join(str(part) for part in item["loc"]) or "answer"
        lines.append(cut(clean(f"{where}: {_problem(item)}"), _MAX_PROBLEM_CHARS))
    if len(found) > _MAX_PROBLEMS:
        lines.append(f"and {len(found) - _MAX_PROBLEMS} more")
    return "\n".join(lines)


def load_json(text: str) -> Any:
    """The JSON value of a text, its own texts cleaned. Raises ValueError for anything else, NaN and 1e999 included."""
    try:
        value = _JSON.decode(text)
        return value if _is_plain(text) else to_json(value)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except TypeError as error:
        raise ValueError(str(error)) from error


def _is_plain(text: str) -> bool:
    """Whether JSON text has nothing for ``to_json`` to clean or refuse: no escape, no long number, no deep nesting."""
    is_short = len(text) <= 4_000 and text.count("[") + text.count("{") <= 100
    return is_short and text.isascii() and "\\" not in text


def unchecked(what: str, error: Exception) -> str:
    """What to say when a validator of the user's own raised something of its own."""
    return cut(clean(f"the {what} could not be checked: {told(error)}"), _MAX_PROBLEM_CHARS)


def first_line(error: BaseException) -> str:
    """The start of its text; pydantic goes on with advice for its own users."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].split(". Set `")[0]


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a ``functools.partial``, or the ``__call__`` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__.__get__(function)


def _problem(item: ErrorDetails) -> str:
    return {"missing": "required", "extra_forbidden": "there is no such parameter"}.get(item["type"], item["msg"])


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _finite(number: str) -> float:
    if isinf(value := float(number)):
        raise ValueError(f"{cut(number, 50)} is too large a number")
    return value


_JSON = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)

# ---------------------------------------------------------------------------------------------- the signature


def _fields(function: Callable[..., Any], name: str) -> tuple[str | None, dict[str, Any], bool]:
    hints = _hints(function, name)
    context_name, fields, extra = None, {}, False
    for parameter in _parameters(function, name):
        annotation = hints.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = True
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"tool {name!r}: parameter {parameter.name!r} cannot be given by name; make it a keyword")
        elif not _is_context(annotation):
            fields[parameter.name] = _field(annotation, parameter)
        elif context_name is not None:
            both = f"{context_name!r} and {parameter.name!r}"
            raise ConfigError(f"tool {name!r}: {both} are the RunContext; keep one")
        else:
            context_name = parameter.name
    return context_name, fields, extra


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    inner = unwrapped(function)
    try:
        annotations = {key: hint for key, hint in inspect.get_annotations(inner).items() if key != "return"}
        # What it returns may well be a type that only type checkers import.
        shown = types.SimpleNamespace(__annotations__=annotations)
        return get_type_hints(shown, globalns=getattr(inspect.unwrap(inner), "__globals__", {}), include_extras=True)
    except NameError as error:
        raise ConfigError(f"tool {name!r}: {error}; import that type where the tool is defined") from error
    except Exception as error:
        raise ConfigError(f"tool {name!r}: its annotations make no types: {first_line(error)}") from error


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """The parameters a caller may give; what a ``functools.partial`` has set already is not the model's to change."""
    preset = set()
    inner: Any = function
    while isinstance(inner, functools.partial):
        preset |= set(inner.keywords)
        inner = inner.func
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"tool {name!r}: it has no signature to make a schema of; wrap it in a function") from error
    return [parameter for parameter in signature.parameters.values() if parameter.name not in preset]


def _is_context(annotation: Any) -> bool:
    if annotation is RunContext:
        return True
    if get_origin(annotation) is Annotated:
        return _is_context(get_args(annotation)[0])
    return get_origin(annotation) in (Union, types.UnionType) and any(map(_is_context, get_args(annotation)))


def _field(annotation: Any, parameter: inspect.Parameter) -> Any:
    # Ours comes first, so that an alias of the user's own wins, wherever it is written.
    inner, *more = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    annotated = Annotated[(inner, Field(alias=parameter.name), *more)]  # type: ignore[valid-type]
    if isinstance(parameter.default, FieldInfo):
        return (Annotated[annotated, parameter.default], parameter.default)
    return (annotated, ... if parameter.default is parameter.empty else parameter.default)


def _culprit(fields: dict[str, Any], error: Exception) -> str:
    """Why the parameters have no schema, with the one whose fault it is."""
    for name, (annotation, default) in fields.items():
        if _has_schema(annotation, default):
            continue
        if default is ... or not _has_schema(annotation, ...):
            return f"parameter {name!r} has no JSON schema: {first_line(error)}"
        # The address in an object's repr says nothing.
        shown = f"{type(default).__name__}()" if repr(default).startswith("<") else " ".join(repr(default).split())
        return f"parameter {name!r}: its default {shown[:100]} is not JSON; use None or a JSON value"
    return f"its parameters have no JSON schema: {first_line(error)}"


def _has_schema(annotation: Any, default: Any) -> bool:
    try:
        json_schema(TypeAdapter(create_model("one", p0=(annotation, default))))
    except Exception:
        return False
    return True


# ---------------------------------------------------------------------------------------------- the model's text


def as_object(text: str) -> dict[str, Any]:
    """The object that argument text is. Raises ArgumentsError."""
    try:
        value = load_json(text) if text.strip() else None
        # Some servers send the whole object once more as a string.
        if isinstance(value, str):
            value = load_json(value) if value.strip() else None
    except ValueError as error:
        raise ArgumentsError(f"the arguments are not valid JSON: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ArgumentsError(f"the arguments must be a JSON object, not {type(value).__name__}")
    return value


def _repair(given: dict[str, Any], errors: Iterable[ErrorDetails]) -> dict[str, Any] | None:
    """Undo two habits of models: null for "not given", and a list or object sent as a JSON string."""
    repaired = dict(given)
    for error in errors:
        # Below a null or a string there is nothing: what follows the key in ``loc`` are members of a union.
        key = str(error["loc"][0]) if error["loc"] else ""
        value = repaired.get(key, error)
        if value is None:
            del repaired[key]
        elif isinstance(value, str) and error["type"] in _CONTAINER_WANTED:
            try:
                repaired[key] = load_json(value)
            except ValueError:
                continue
    return repaired if repaired != given else None
