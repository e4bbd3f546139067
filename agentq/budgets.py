"""Whether a limit in dollars can be held: each model that may be called for it needs a price. No I/O but for prices."""

from agentq.agent import AgentSpec
from agentq.errors import ConfigError, ErrorInfo
from agentq.prices import without_price
from agentq.run import Snapshot


def unpriced(agent: AgentSpec) -> str | None:
    """A sentence on the first model without a price, of the agent or of those it calls; None where there is none."""
    seen: dict[str, AgentSpec] = {}
    waiting = [agent]
    while waiting:
        each = waiting.pop(0)
        if each.name in seen:
            continue
        seen[each.name] = each
        if problem := without_price(each.models):
            return problem if each is agent else f"its sub-agent {each.name!r}: {problem}"
        waiting += [tool.agent for tool in each.tools.values() if tool.agent is not None]
    return None


def without_budget(snapshot: Snapshot, agent: AgentSpec) -> ErrorInfo | None:
    """The error of a run with a limit in dollars that cannot be held; None where it can, or there is none."""
    if snapshot.limits.usd is None:
        return None
    try:
        problem = without_price(agent.models)
    except ConfigError as error:
        problem = error.message
    return None if problem is None else ErrorInfo(code=ConfigError.code, message=f"agent {agent.name!r}: {problem}")
