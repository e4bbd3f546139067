"""A run whose agent has another definition here than the one it goes on with: what ``on_change`` says. No I/O."""

from agentq.agent import AgentSpec
from agentq.errors import ErrorInfo
from agentq.run import Snapshot
from agentq.values import replace


def is_changed(snapshot: Snapshot, agent: AgentSpec) -> bool:
    """Whether the run goes on with another version than this process has."""
    return snapshot.agent_version not in (None, agent.version)


def is_for_others(snapshot: Snapshot, agent: AgentSpec) -> bool:
    """Whether this process must leave the run to those that have its version."""
    return agent.on_change == "hold" and is_changed(snapshot, agent)


def with_version(snapshot: Snapshot, agent: AgentSpec) -> Snapshot:
    """The run with the version that its next commit is to note: at its first step, and where it goes on in spite."""
    if snapshot.agent_version == agent.version:
        return snapshot
    if snapshot.agent_version is not None and agent.on_change != "continue":
        return snapshot
    return replace(snapshot, new_version=agent.version)


def refusal(snapshot: Snapshot, agent: AgentSpec) -> ErrorInfo | None:
    """What the run ends with where it may not go on; None where it may."""
    if agent.on_change != "fail" or not is_changed(snapshot, agent):
        return None
    was, now = snapshot.agent_version, agent.version
    return ErrorInfo(
        code="agent_changed",
        message=f"agent {agent.name!r} has changed since the run began, from version {was} to {now}",
        details={"from": was, "to": now},
    )
