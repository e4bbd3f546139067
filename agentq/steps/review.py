"""Review: which calls of the turn wait for a person before any of them runs."""

from uuid import UUID

from sqlalchemy import Connection

from agentq.agent import AgentSpec
from agentq.messages import AssistantMessage
from agentq.outcomes import Reviewed
from agentq.run import OpenCall, Snapshot
from agentq.services import Services
from agentq.steps.base import Done
from agentq.storage import steps as storage


def review(snapshot: Snapshot, _: AgentSpec, services: Services) -> Done:
    """Put every call that needs approval before a person, with the arguments the model sent."""
    gated = tuple(call for call in snapshot.pending if call.needs_approval)
    with services.database.autocommit() as connection:
        reply = reply_of_turn(connection, snapshot)
    return Done(
        Reviewed(tuple(call.index for call in gated)),
        {"waiting_for": [call.tool for call in gated]},
        arguments={call.index: reply.calls[call.index].arguments for call in gated},
    )


def reply_of_turn(connection: Connection, snapshot: Snapshot, *, token: UUID | None = None) -> AssistantMessage:
    """The reply whose calls are open. See message_at."""
    position = reply_position(snapshot.calls[0])
    message = storage.message_at(connection, snapshot.run_id, position, token=token)
    if not isinstance(message, AssistantMessage):
        raise TypeError(f"run {snapshot.run_id}: message {position} is not a reply")
    return message


def reply_position(call: OpenCall) -> int:
    """Where the reply stands that asked for ``call``: right before the places of its results."""
    return call.position - call.index - 1
