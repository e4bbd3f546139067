"""A short hash of what an agent's definition shows to the model and decides: runs remember it, and notice a change.

The same in every process and release of Python: no ``repr``, no ``hash``, no order of names that means nothing. What is
as usual is left out, so that a later release that looks at more says the same of an agent that does not use that.
"""

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Protocol

from agentq.approvals import ApprovalRule
from agentq.hooks import Hooks
from agentq.memory import Memory
from agentq.output import OutputCheck, OutputSchema
from agentq.tools import Tool

_LENGTH = 12
# Below these a schema has names of the user's, which may be those of its own keywords.
_OF_NAMES = ("properties", "$defs")


class Definition(Protocol):
    """What counts of an agent. What does not: how long and how often things may take, and where they run."""

    models: tuple[Any, ...]
    instructions: str
    tools: dict[str, Tool]
    approve: dict[str, ApprovalRule]
    output: OutputSchema | None
    output_mode: Any
    output_checks: tuple[OutputCheck, ...]
    on_tool_exception: Any
    memory: Memory | None
    model_settings: dict[str, Any]

    @property
    def hooks(self) -> tuple[Hooks, ...]: ...


def fingerprint(agent: Definition) -> str:
    """Twelve hexadecimal digits.

    Tools count without their order, hooks and fallbacks with it. Of functions and objects only the name counts, as it
    stands in the source, without that of the module: what they do cannot be seen from outside.
    """
    rule = agent.on_tool_exception
    facts = {
        "models": [_model(model) for model in agent.models],
        "instructions": _words(agent.instructions),
        "tools": {tool.name: _tool(tool, agent.approve.get(tool.name)) for tool in agent.tools.values()},
        "output": _schema(agent.output.schema) if agent.output else None,
        "output_mode": agent.output_mode if agent.output and agent.output_mode != "auto" else None,
        "output_checks": [_name(check) for check in agent.output_checks],
        "on_tool_exception": _name(rule) if callable(rule) else rule if rule != "report" else None,
        "hooks": [_name(hook) for hook in agent.hooks],
        "memory": _name(agent.memory) if agent.memory is not None else None,
        "model_settings": agent.model_settings,
    }
    return sha256(_json(_without_nothing(facts)).encode()).hexdigest()[:_LENGTH]


def _tool(tool: Tool, rule: ApprovalRule | None) -> dict[str, Any]:
    return _without_nothing(
        {
            "description": _words(tool.description),
            "schema": _schema(tool.schema),
            "on_unknown": tool.on_unknown if tool.on_unknown != "report" else None,
            "probe": _name(tool.probe.function) if tool.probe else None,
            "agent": tool.agent.name if tool.agent is not None else None,
            "approve": _rule(rule) if rule else None,
        }
    )


def _rule(rule: ApprovalRule) -> list[str]:
    return ["always" if rule.when is None else _name(rule.when), rule.on_expiry]


def _model(model: Any) -> str:
    """As it is written; of a provider's object its class and the name it goes by."""
    if isinstance(model, str):
        return model
    name = getattr(model, "name", "")
    return f"{_name(model)}:{name if isinstance(name, str) else ''}"


def _name(thing: Callable[..., Any] | object) -> str:
    """The name in the source, of its class where it is an object."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    named = thing if inspect.isroutine(thing) or isinstance(thing, type) else type(thing)
    return str(getattr(named, "__qualname__", type(named).__qualname__))


def _words(text: str) -> str:
    """Without what no reader sees: releases of Python differ in what they leave of a docstring's margins."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def _schema(schema: dict[str, Any]) -> Any:
    # A set of a default or an example may be a list in the order of its hashes, which another process has otherwise.
    return _in_order(schema, sets='"uniqueItems"' in json.dumps(schema))


def _in_order(value: Any, *, sets: bool, in_default: bool = False) -> Any:
    """With each order that means nothing taken out: of what is required, and of sets in defaults and examples."""
    if isinstance(value, Mapping):
        return {key: _member(key, item, sets=sets, in_default=in_default) for key, item in value.items()}
    if isinstance(value, list):
        items = [_in_order(item, sets=sets, in_default=in_default) for item in value]
        return sorted(items, key=_json) if sets and in_default else items
    return value


def _member(key: str, item: Any, *, sets: bool, in_default: bool) -> Any:
    if in_default or key == "default":
        return _in_order(item, sets=sets, in_default=True)
    if key == "examples" and isinstance(item, list):
        return [_in_order(one, sets=sets, in_default=True) for one in item]
    if key in _OF_NAMES and isinstance(item, Mapping):
        return {name: _in_order(each, sets=sets) for name, each in item.items()}
    if key == "required" and isinstance(item, list):
        return sorted(item)
    return _words(item) if key == "description" and isinstance(item, str) else _in_order(item, sets=sets)


def _without_nothing(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if value not in (None, [], {}, "")}


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
