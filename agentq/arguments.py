"""A tool's parameters as a JSON schema, and the model's argument text checked against them."""

import inspect
import json
import warnings
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, PydanticJsonSchemaWarning
from pydantic_core import ErrorDetails

from agentq.context import RunContext
from agentq.errors import ConfigError

_CONTAINER_WANTED = {"list_type", "tuple_type", "set_type", "dict_type", "model_type", "model_attributes_type"}


class ArgumentsError(Exception):
    """The arguments do not fit; the text names each field and its problem."""


class Parameters:
    """The checked parameters of one function; ``schema`` is what the model sees."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.context_name, fields, extra = _fields(function, name)
        self._aliases = dict(enumerate(fields))
        # Parameters may be called model_config or _path, which pydantic would not take as field names.
        numbered = {f"p{i}": field for i, field in enumerate(fields.values())}
        config = ConfigDict(extra="allow" if extra else "ignore", arbitrary_types_allowed=False)
        try:
            self._model = create_model(f"{name}_arguments", __config__=config, **numbered)  # type: ignore[call-overload]
            self.schema = json_schema(self._model)
        except (PydanticUserError, PydanticJsonSchemaWarning, TypeError, ValueError) as error:
            raise ConfigError(f"tool {name!r}: its parameters have no JSON schema: {_first_line(error)}") from error

    def parse(self, text: str) -> dict[str, Any]:
        """Keyword arguments for the function. Raises ArgumentsError with one line a problem."""
        given = _as_object(text)
        try:
            return self._validate(given)
        except ValidationError as error:
            repaired = _repair(given, error.errors(include_url=False, include_context=False))
            if repaired is None:
                raise ArgumentsError(problems(error)) from error
        try:
            return self._validate(repaired)
        except ValidationError as error:
            raise ArgumentsError(problems(error)) from error

    def _validate(self, given: dict[str, Any]) -> dict[str, Any]:
        checked = self._model.model_validate(given)
        values = {alias: getattr(checked, f"p{i}") for i, alias in self._aliases.items()}
        return values | (checked.__pydantic_extra__ or {})


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The model's schema without generated titles. Raises PydanticJsonSchemaWarning for a default that is not JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", PydanticJsonSchemaWarning)
        schema = model.model_json_schema(by_alias=True, schema_generator=GenerateJsonSchema)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
    schema.pop("title", None)
    return {"properties": {}, **schema}


def problems(error: ValidationError) -> str:
    """One line a problem, ``amount: required``; never the value itself, which may be long or private."""
    lines = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(str(part) for part in item["loc"]) or "answer"
        lines.append(f"{where}: {'required' if item['type'] == 'missing' else item['msg']}")
    return "\n".join(lines)


def _fields(function: Callable[..., Any], name: str) -> tuple[str | None, dict[str, Any], bool]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigError(f"tool {name!r}: {error}; import that type where the tool is defined") from error
    context_name, fields, extra = None, {}, False
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints.get(parameter.name, Any)
        if annotation is RunContext:
            context_name = parameter.name
        elif parameter.kind is parameter.VAR_KEYWORD:
            extra = True
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"tool {name!r}: parameter {parameter.name!r} cannot be given by name; make it a keyword")
        else:
            fields[parameter.name] = _field(annotation, parameter)
    return context_name, fields, extra


def _field(annotation: Any, parameter: inspect.Parameter) -> Any:
    alias = Field(alias=parameter.name)
    if isinstance(parameter.default, FieldInfo):
        return (Annotated[annotation, parameter.default, alias], parameter.default)
    if parameter.default is parameter.empty:
        return (Annotated[annotation, alias], ...)
    return (Annotated[annotation, alias], parameter.default)


def _as_object(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
        # Some servers send the whole object once more as a string.
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ArgumentsError(f"the arguments are not valid JSON: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ArgumentsError(f"the arguments must be a JSON object, not {type(value).__name__}")
    return value


def _repair(given: dict[str, Any], errors: list[ErrorDetails]) -> dict[str, Any] | None:
    """Undo two habits of models: null for "not given", and a list or object sent as a JSON string."""
    repaired = dict(given)
    for error in errors:
        if len(error["loc"]) != 1 or error["loc"][0] not in repaired:
            continue
        key = str(error["loc"][0])
        value = repaired[key]
        if value is None:
            del repaired[key]
        elif isinstance(value, str) and error["type"] in _CONTAINER_WANTED:
            try:
                repaired[key] = json.loads(value)
            except ValueError:
                continue
    return repaired if repaired != given else None


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]
