"""An agent's definition: model, tools, instructions and rules, checked when it is made."""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, wraps
from inspect import signature
from typing import Any, Literal, ParamSpec, get_args

from pydantic import ValidationError

from agentq.approvals import ApprovalRule, Predicate, checked_rules
from agentq.arguments import Parameters, problems
from agentq.errors import ConfigError
from agentq.fingerprint import fingerprint
from agentq.hooks import Hooks, by_moment
from agentq.limits import MAX_HOOKS_SECS, Limits, is_duration
from agentq.memory import Memory
from agentq.output import OUTPUT_TOOL, OutputCheck, OutputMode, OutputSchema, checks_of
from agentq.results import to_json
from agentq.text import clean
from agentq.tools import Tool, check_name, tool

ToolExceptionRule = Literal["report", "fail"] | Callable[[Exception], str]
# What becomes of a run whose agent is another one than it began with, by its version; see Agent.
OnChange = Literal["continue", "hold", "fail"]
_VERSION_CHARS = 100
P = ParamSpec("P")


def _checked_keywords(init: Callable[P, None]) -> Callable[P, None]:
    """For who has no type checker: ConfigError with the nearest name instead of TypeError."""
    shape = signature(init)

    @wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            shape.bind(*args, **kwargs)
        except TypeError as error:
            unknown = next((name for name in kwargs if name not in shape.parameters), None)
            near = difflib.get_close_matches(unknown or "", shape.parameters, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            problem = f"there is no argument {unknown!r}{hint}" if unknown else str(error)
            raise ConfigError(f"agent {(*args, None)[1]!r}: {problem}") from error
        init(*args, **kwargs)

    return checked


def _ask(input: str) -> str:  # noqa: ARG001 - the word the model sees
    raise AssertionError("a sub-agent runs as a run of its own")


# What is handed to any sub-agent.
TASK = Parameters(_ask, "ask")


class AgentSpec:
    """What a worker needs to know of an agent. Made by ``Agent``; see there for the arguments."""

    @_checked_keywords
    def __init__(  # noqa: PLR0913 - a definition is a list of names and values
        self,
        name: str,
        *,
        model: Any,
        fallback: Sequence[Any] = (),
        instructions: str = "",
        tools: Sequence[Tool | Callable[..., Any]] = (),
        approve: Sequence[str] | Mapping[str, bool | Predicate | ApprovalRule] = (),
        output: Any = None,
        output_mode: OutputMode = "auto",
        output_check: OutputCheck | Sequence[OutputCheck] = (),
        limits: Limits | Mapping[str, Any] | None = None,
        on_tool_exception: ToolExceptionRule = "report",
        hooks: Sequence[Hooks] = (),
        memory: Memory | None = None,
        model_settings: Mapping[str, Any] | None = None,
        model_timeout_secs: float = 600.0,
        hook_timeout_secs: float = 30.0,
        stream: bool = False,
        description: str = "",
        version: str | None = None,
        on_change: OnChange = "continue",
    ) -> None:
        check_name("agent", name)
        where = f"agent {name!r}"
        if output_mode not in get_args(OutputMode):
            raise ConfigError(f"{where}: output_mode is 'auto', 'native' or 'tool', not {output_mode!r}")
        _check_lists(where, fallback=fallback, tools=tools, hooks=hooks)
        _check_texts(where, instructions=instructions, description=description)
        _check_change(where, version, on_change)
        if not callable(on_tool_exception) and on_tool_exception not in ("report", "fail"):
            raise ConfigError(f"{where}: on_tool_exception is 'report', 'fail' or a function of the exception")
        if not is_duration(model_timeout_secs):
            raise ConfigError(f"{where}: model_timeout_secs is a positive number, not {model_timeout_secs!r}")
        if not (is_duration(hook_timeout_secs) and hook_timeout_secs <= MAX_HOOKS_SECS):
            bound = f"a positive number of at most {MAX_HOOKS_SECS:g}"
            raise ConfigError(f"{where}: hook_timeout_secs is {bound}, not {hook_timeout_secs!r}")
        if memory is not None and not callable(getattr(memory, "recall", None)):
            raise ConfigError(f"{where}: memory is an object with a recall method, not {memory!r}")
        self.name = name
        self.models: tuple[Any, ...] = (model, *fallback)
        for each in self.models:
            self._check_model(each)
        self.instructions = clean(instructions)
        self.tools = _toolset(where, tools)
        self.approve = checked_rules(where, approve, self.tools)
        self.output = None if output is None else OutputSchema(output, where)
        self.output_mode = output_mode
        self.output_checks = checks_of(where, output_check, self.output)
        self.limits = limits if isinstance(limits, Limits) else make_limits(Limits(), limits or {}, where)
        self.on_tool_exception = on_tool_exception
        self.hooks = _hooks(where, hooks)
        self.memory = memory
        self.model_settings = _settings(where, model_settings or {})
        self.model_timeout_secs = model_timeout_secs
        self.hook_timeout_secs = hook_timeout_secs
        self.stream = bool(stream)
        self.description = clean(description)
        self.on_change: OnChange = on_change
        self._version = version
        self._check_prices()

    @property
    def version(self) -> str:
        """What a run remembers of its agent, to notice a change: as it was given, or the fingerprint."""
        return self.fingerprint if self._version is None else self._version

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what the definition shows to the model and decides; see agentq/fingerprint.py."""
        return fingerprint(self)

    def _check_model(self, model: Any) -> None:
        """Nothing here, below the providers: ``Agent`` knows them."""

    def _check_prices(self) -> None:
        """Nor here."""

    @property
    def hooks(self) -> tuple[Hooks, ...]:
        return self._hooks

    @hooks.setter
    def hooks(self, hooks: tuple[Hooks, ...]) -> None:
        self._hooks = hooks
        self.listeners = by_moment(hooks)
        self.__dict__.pop("fingerprint", None)

    @property
    def has_recall(self) -> bool:
        """Whether the recall step has anything to do."""
        return self.memory is not None

    @property
    def hears_ends(self) -> bool:
        """Whether its hooks want to hear of the ends of its runs."""
        return bool(self.listeners["on_end"])

    def as_tool(self, *, name: str | None = None, description: str | None = None) -> Tool:
        """A tool that hands its ``input`` to this agent as a run of its own and returns that run's answer."""

        wrapped = tool(name=name or self.name, description=description or self.description or f"Ask {self.name}.")(_ask)
        return Tool(wrapped.name, wrapped.description, wrapped.function, wrapped.parameters, agent=self)

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"


def make_limits(base: Limits, changes: Any, where: str) -> Limits:
    """``base`` with ``changes``. Raises ConfigError that names the wrong limit and the nearest right one."""
    if not isinstance(changes, Mapping):
        raise ConfigError(f"{where}: limits map names to numbers; {changes!r} does not")
    for key in changes:
        if key not in Limits.model_fields:
            near = difflib.get_close_matches(str(key), Limits.model_fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(Limits.model_fields)}"
            raise ConfigError(f"{where}: unknown limit {key!r}{hint}")
    try:
        return Limits.model_validate(base.model_dump() | dict(changes))
    except ValidationError as error:
        listed = problems(error).replace("\n", "; ")
        raise ConfigError(f"{where}: limit {listed}") from error


def _check_lists(where: str, **given: object) -> None:
    for what, value in given.items():
        if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
            raise ConfigError(f"{where}: {what} is a list, such as [{value!r}]")


def _check_texts(where: str, **given: object) -> None:
    for what, value in given.items():
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {what} is a text, not {value!r}")


def _check_change(where: str, version: object, on_change: object) -> None:
    if version is not None and not (isinstance(version, str) and 0 < len(version) <= _VERSION_CHARS):
        raise ConfigError(f"{where}: version is a text of 1 to {_VERSION_CHARS} characters, not {version!r}")
    if version is not None and (clean(version) != version or not version.isprintable()):
        raise ConfigError(f"{where}: version {version!r} has characters that cannot be shown")
    if on_change not in get_args(OnChange):
        raise ConfigError(f"{where}: on_change is 'continue', 'hold' or 'fail', not {on_change!r}")


def _toolset(where: str, tools: Iterable[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    toolset: dict[str, Tool] = {}
    for item in tools:
        made = item if isinstance(item, Tool) else tool(item)
        if made.name in toolset or made.name == OUTPUT_TOOL:
            taken = "is kept for structured output" if made.name == OUTPUT_TOOL else "is there twice"
            raise ConfigError(f"{where}: the tool name {made.name!r} {taken}; give one of them another name")
        toolset[made.name] = made
    return toolset


def _hooks(where: str, hooks: Iterable[Any]) -> tuple[Hooks, ...]:
    given = tuple(hooks)
    for hook in given:
        if not isinstance(hook, Hooks):
            made = f"; write {hook.__name__}()" if isinstance(hook, type) and issubclass(hook, Hooks) else ""
            raise ConfigError(f"{where}: hooks are objects of a class derived from Hooks, not {hook!r}{made}")
    return given


def _settings(where: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return dict(to_json(json.loads(json.dumps(dict(settings), allow_nan=False))))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: model_settings are not a JSON object: {error}") from error
