"""Agents with generated scripts, and tools and models that keep count of how often they were really asked."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentq import (
    Agent,
    ApprovalRule,
    EndRun,
    Happened,
    Hooks,
    NeedsApproval,
    NotHappened,
    RunContext,
    Tool,
    ToolError,
    ToolResult,
    Usage,
    UserMessage,
    tool,
)
from agentq.providers.base import ModelReply, ModelRequest
from agentq.providers.scripted import Call, Fault, Scripted, Step

NUDGE = "Your last reply was empty"
# Words of a script that are no calls: a reply without content, a provider's faults, a bug in an adapter.
EMPTY, OVERLOADED, REFUSED, BUG = "EMPTY", "OVERLOADED", "REFUSED", "BUG"
TOOLS = (
    *("safe", "unsafe", "gated", "timed", "asking", "failing", "refusing", "ending"),
    *("asked", "probed", "quick", "quick_safe"),
)
# What an agent's rule puts before a person; "timed" runs when nobody decides, and "asking" asks by itself.
GATED = {"gated": ApprovalRule(), "timed": ApprovalRule(deadline_secs=40, on_expiry="approve")}
# What a person answers in the place of a tool.
ANSWER = "said by a person"
# What may run again. Those that are asked or probed only where somebody has looked, which a process that stood still
# may belie.
REPEATED = frozenset({"safe", "failing", "asked", "probed", "quick_safe"})
# Beside them: the sub-agent, a name nobody has, arguments that do not fit.
CALLS = (*TOOLS, "child", "missing", "unfit")

Turn = str | tuple[str, ...]


@dataclass(frozen=True)
class Definition:
    """An agent to be made. Each turn is a word or the names to call; after the last one it answers "done".

    ``child`` is the script of its sub-agent (None: it has none); ``fails`` lets a tool's exception end the run;
    ``places`` is how many runs of its concurrency key may be at work (0: it has none), ``delay_secs`` when it begins.
    """

    turns: tuple[Turn, ...]
    child: tuple[Turn, ...] | None = None
    limits: tuple[tuple[str, int], ...] = ()
    recalls: bool = False
    fails: bool = False
    on_thread: bool = False
    places: int = 0
    delay_secs: int = 0


class Reality:
    """What happened outside of the database: effects by idempotency key, replies by run."""

    def __init__(
        self,
        at_model: Callable[[ModelRequest], str],
        at_tool: Callable[[str, RunContext], None],
        after_effect: Callable[[], None],
    ) -> None:
        self.effects: Counter[str] = Counter()
        self.replies: Counter[str] = Counter()
        self._at_model = at_model
        self._at_tool = at_tool
        self._after_effect = after_effect
        self._tools = [self._tool(name) for name in TOOLS]

    def agent(self, name: str, definition: Definition) -> Agent:
        child = None if definition.child is None else self._agent(f"{name}_child", Definition(definition.child))
        return self._agent(name, definition, child)

    def _agent(self, name: str, definition: Definition, child: Agent | None = None) -> Agent:
        steps = [step for turn in definition.turns for step in _steps(turn, f"{name}_child")]
        return Agent(
            name,
            model=_Counted([*steps, *["done"] * 5], self),
            tools=[*self._tools, *([child.as_tool()] if child else [])],
            approve=GATED,
            limits=dict(definition.limits),
            hooks=[_EndsAfterEnding()],
            memory=_Facts() if definition.recalls else None,
            on_tool_exception="fail" if definition.fails else "report",
        )

    def _tool(self, name: str) -> Tool:
        def act(ctx: RunContext) -> str:
            """Do something outside."""
            self._at_tool(name, ctx)
            if name == "asking" and not ctx.approved:
                raise NeedsApproval("may I", deadline_secs=40)
            self.effects[str(ctx.idempotency_key)] += 1
            self._after_effect()
            if name == "failing":
                raise RuntimeError("boom")
            if name == "refusing":
                raise ToolError("no")
            return f"did {ctx.idempotency_key}"

        def look(ctx: RunContext) -> Happened | NotHappened:
            key = str(ctx.idempotency_key)
            return Happened(f"did {key}") if self.effects[key] else NotHappened()

        rules: dict[str, Any] = {
            "safe": "retry",
            "failing": "retry",
            "asked": "ask",
            "probed": look,
            "quick_safe": "retry",
        }
        return tool(name=name, on_unknown=rules.get(name), inline=name.startswith("quick"))(act)

    def answer(self, request: ModelRequest, complete: Callable[[ModelRequest], ModelReply]) -> ModelReply:
        run_id = self._at_model(request)
        message = complete(request).message
        self.replies[run_id] += 1
        return ModelReply(message, Usage(input_tokens=len(request.messages), output_tokens=1))


class _Counted(Scripted):
    def __init__(self, steps: Sequence[Step | Fault], reality: Reality) -> None:
        super().__init__(steps)
        self._reality = reality

    def complete(self, request: ModelRequest) -> ModelReply:
        return self._reality.answer(request, super().complete)


class _EndsAfterEnding(Hooks):
    def after_tool(self, ctx: RunContext, result: ToolResult) -> None:
        if result.name == "ending":
            raise EndRun("ended")


class _Facts:
    def recall(self, ctx: RunContext, text: str) -> list[str]:
        return ["a fact"]


def _steps(turn: Turn, child: str) -> list[Any]:
    match turn:
        case "EMPTY":
            return [_empty_once]
        case "OVERLOADED":
            return [Fault("overloaded")]
        case "REFUSED":
            return [Fault("quota_exceeded", times=None)]
        case "BUG":
            return [_bug]
        case _:
            return [[_call(name, child) for name in turn] or "done"]


def _call(name: str, child: str) -> Call:
    if name == "unfit":
        return Call("safe", "{")
    return Call(child, {"input": "x"}) if name == "child" else Call(name)


def _empty_once(request: ModelRequest) -> str:
    last = request.messages[-1]
    return "done" if isinstance(last, UserMessage) and last.text.startswith(NUDGE) else ""


def _bug(request: ModelRequest) -> str:
    raise RuntimeError("a bug in an adapter")
