"""An agent's definition: model, tools, instructions and rules, checked when it is made."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from agentq.arguments import problems
from agentq.errors import ConfigError
from agentq.hooks import Hooks
from agentq.limits import Limits
from agentq.memory import Memory
from agentq.output import OUTPUT_TOOL, OutputSchema
from agentq.tools import Tool, check_name, tool

ToolExceptionRule = Literal["report", "fail"] | Callable[[Exception], str]


class AgentSpec:
    """What a worker needs to know of an agent. Made by ``Agent``; see there for the arguments."""

    def __init__(
        self,
        name: str,
        *,
        model: Any,
        fallback: Sequence[Any] = (),
        instructions: str = "",
        tools: Sequence[Tool | Callable[..., Any]] = (),
        approve: Sequence[str] = (),
        output: Any = None,
        limits: Limits | Mapping[str, Any] | None = None,
        on_tool_exception: ToolExceptionRule = "report",
        hooks: Sequence[Hooks] = (),
        memory: Memory | None = None,
        model_settings: Mapping[str, Any] | None = None,
        model_timeout_secs: float = 600.0,
        description: str = "",
    ) -> None:
        check_name("agent", name)
        self.name = name
        self.models: tuple[Any, ...] = (model, *fallback)
        self.instructions = instructions
        self.tools = _toolset(name, tools)
        self.approve = _approve(name, approve, self.tools)
        self.output = None if output is None else OutputSchema(output)
        self.limits = limits if isinstance(limits, Limits) else make_limits(Limits(), limits or {}, f"agent {name!r}")
        if on_tool_exception not in ("report", "fail") and not callable(on_tool_exception):
            raise ConfigError(f"agent {name!r}: on_tool_exception is 'report', 'fail' or a function of the exception")
        self.on_tool_exception = on_tool_exception
        self.hooks = tuple(hooks)
        self.memory = memory
        self.model_settings = dict(model_settings or {})
        self.model_timeout_secs = model_timeout_secs
        self.description = description

    @property
    def has_recall(self) -> bool:
        """Whether the recall step has anything to do."""
        return self.memory is not None or any(type(h).before_model is not Hooks.before_model for h in self.hooks)

    def as_tool(self, *, name: str | None = None, description: str | None = None) -> Tool:
        """A tool that hands its ``input`` to this agent as a run of its own and returns that run's answer."""

        def ask(input: str) -> str:  # noqa: A002 - the word the model sees
            raise AssertionError("a sub-agent runs as a run of its own")

        wrapped = tool(name=name or self.name, description=description or self.description or f"Ask {self.name}.")(ask)
        return Tool(wrapped.name, wrapped.description, wrapped.function, wrapped.parameters, agent=self)

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"


def make_limits(base: Limits, changes: Mapping[str, Any], where: str) -> Limits:
    """``base`` with ``changes``. Raises ConfigError that names the wrong limit and the nearest right one."""
    for key in changes:
        if key not in Limits.model_fields:
            near = difflib.get_close_matches(key, Limits.model_fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(Limits.model_fields)}"
            raise ConfigError(f"{where}: unknown limit {key!r}{hint}")
    try:
        return Limits.model_validate(base.model_dump() | dict(changes))
    except ValidationError as error:
        raise ConfigError(f"{where}: limit {problems(error)}") from error


def _toolset(agent: str, tools: Sequence[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    toolset: dict[str, Tool] = {}
    for item in tools:
        made = item if isinstance(item, Tool) else tool(item)
        if made.name in toolset or made.name == OUTPUT_TOOL:
            taken = "is kept for structured output" if made.name == OUTPUT_TOOL else "is there twice"
            raise ConfigError(f"agent {agent!r}: the tool name {made.name!r} {taken}; give one of them another name")
        toolset[made.name] = made
    return toolset


def _approve(agent: str, approve: Sequence[str], tools: Mapping[str, Tool]) -> frozenset[str]:
    if isinstance(approve, str):
        raise ConfigError(f"agent {agent!r}: approve is a list of tool names, such as [{approve!r}]")
    for name in approve:
        if name not in tools:
            known = ", ".join(tools) or "none"
            raise ConfigError(f"agent {agent!r}: approve names {name!r}, which is not one of its tools: {known}")
    return frozenset(approve)
