"""Which open runs some code could not go on with: asked before it is deployed. No I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentq.agent import AgentSpec
from agentq.arguments import ArgumentsError
from agentq.run import ApprovalKind, CallKind
from agentq.tools import Tool

Reason = Literal["agent_missing", "agent_changed", "tool_missing", "arguments_refused"]


@dataclass(frozen=True)
class WaitingCall:
    """A call that has not come back; ``arguments`` are those it would run with.

    ``asks`` is what a person is asked about it now; ``has_run``: it is a sub-agent's, whose run has been started.
    """

    tool: str
    arguments: str
    kind: CallKind = "tool"
    asks: ApprovalKind | None = None
    has_run: bool = False

    @property
    def needs_tool(self) -> bool:
        """Whether its tool has something to do yet, or may have."""
        return self.asks != "deferred" and not self.has_run and self.kind != "output"


@dataclass(frozen=True)
class OpenRun:
    """What is stored of a run that has not ended. ``agent_version`` is None before its first step."""

    run_id: str
    agent: str
    agent_version: str | None = None
    calls: tuple[WaitingCall, ...] = ()


@dataclass(frozen=True)
class Problem:
    """Why the code could not go on with a run: the same for all runs of which the same is to be said."""

    reason: Reason
    agent: str
    message: str
    fix: str
    tool: str | None = None


@dataclass
class Affected:
    """How many runs have a problem, and the first of them."""

    problem: Problem
    runs: int = 0
    run_ids: list[str] = field(default_factory=list)


@dataclass
class Report:
    """What was found so far; ``looked_at`` runs are open, of which ``affected`` have a problem, or more than one."""

    shown: int
    looked_at: int = 0
    affected: int = 0
    found: dict[Problem, Affected] = field(default_factory=dict)

    def add(self, run: OpenRun, agents: Mapping[str, AgentSpec]) -> None:
        """Look at one more run. Only the first ids of each problem are kept, however many runs there are."""
        run_problems = set(problems(run, agents))
        self.looked_at += 1
        self.affected += bool(run_problems)
        for problem in run_problems:
            affected = self.found.setdefault(problem, Affected(problem))
            affected.runs += 1
            if len(affected.run_ids) < self.shown:
                affected.run_ids.append(run.run_id)

    @property
    def worst_first(self) -> list[Affected]:
        """By how many runs they have."""
        return sorted(self.found.values(), key=lambda each: (-each.runs, each.problem.agent, each.problem.message))


def problems(run: OpenRun, agents: Mapping[str, AgentSpec]) -> Iterator[Problem]:
    """Why code with these agents could not go on with the run; a run that waits to be begun only needs its agent."""
    agent = agents.get(run.agent)
    if agent is None:
        fix = "name the place of the agent in --agents, or let a worker with it live until they have ended"
        yield Problem("agent_missing", run.agent, f"there is no agent {run.agent!r}", fix)
        return
    if run.agent_version not in (None, agent.version) and agent.on_change != "continue":
        yield _changed(run, agent)
    for call in run.calls:
        if call.needs_tool:
            yield from _of_call(call, agent)


def _changed(run: OpenRun, agent: AgentSpec) -> Problem:
    versions = f"{agent.name!r} has changed, from version {run.agent_version} to {agent.version}"
    if agent.on_change == "hold":
        fix = (
            f"let workers with the old code live until they have ended, or then: agentq runs adopt --agent {agent.name}"
        )
        return Problem("agent_changed", agent.name, f"{versions}: they are held", fix)
    fix = "deploy when they have ended"
    return Problem("agent_changed", agent.name, f"{versions}: they fail with agent_changed", fix)


def _of_call(call: WaitingCall, agent: AgentSpec) -> Iterator[Problem]:
    found = agent.tools.get(call.tool)
    if found is None or not _is_of_kind(found, call):
        what = "no tool" if call.kind == "tool" else "no sub-agent"
        message = f"{agent.name!r} has {what} {call.tool!r}, which a call waits for"
        yield Problem("tool_missing", agent.name, message, "keep it until they have ended", call.tool)
        return
    try:
        found.parameters.parse(call.arguments)
    except ArgumentsError:
        message = f"the arguments of a call that waits do not fit {call.tool!r} of {agent.name!r} any more"
        fix = "give new parameters a default, and keep the old ones until they have ended"
        yield Problem("arguments_refused", agent.name, message, fix, call.tool)


def _is_of_kind(tool: Tool, call: WaitingCall) -> bool:
    return (tool.agent is not None) == (call.kind == "agent")
