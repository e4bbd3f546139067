"""The two ways in which agentq can carry a run, and what its workers and tools are told for each."""

import os
from collections.abc import Callable
from typing import Any, Literal, get_args

from agentq import tool
from agentq.tools import Tool

# Steps and tools in the process that did the step before; or a message for each.
Mode = Literal["local", "broker"]
MODES: tuple[Mode, ...] = get_args(Mode)
LOCAL_STEPS = "AGENTQ_LOCAL_STEPS"


def variables(mode: Mode) -> dict[str, str]:
    """What a worker of this mode is told; local is the default."""
    return {} if mode == "local" else {LOCAL_STEPS: "0"}


def mode_here() -> Mode:
    """The mode of this worker, as ``variables`` told it."""
    return "broker" if os.environ.get(LOCAL_STEPS) == "0" else "local"


def make_tool(function: Callable[..., Any], *, inline: bool, idempotent: bool) -> Tool:
    """The function as a tool, which runs with the steps (inline) or in the tools' own pool."""
    return tool(idempotent=idempotent, inline=inline)(function)
