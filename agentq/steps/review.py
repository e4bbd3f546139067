"""Review: which calls of the turn wait for a person before any of them runs."""

from agentq.agent import AgentSpec
from agentq.outcomes import Reviewed
from agentq.run import Snapshot
from agentq.services import Services
from agentq.steps.base import Done
from agentq.storage import steps as storage


def review(snapshot: Snapshot, _: AgentSpec, services: Services) -> Done:
    """Put every call that needs approval before a person, with the arguments the model sent."""
    gated = tuple(call for call in snapshot.pending if call.needs_approval)
    with services.database.autocommit() as connection:
        reply = storage.reply(connection, snapshot.run_id)
    return Done(
        Reviewed(tuple(call.index for call in gated)),
        {"waiting_for": [call.tool for call in gated]},
        arguments={call.index: reply.calls[call.index].arguments for call in gated},
    )
