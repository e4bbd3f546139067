"""Where a conversation may be cut: behind any message, but never between a reply's calls and their results. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentq.messages import AssistantMessage, Message, ToolMessage, ToolResult

# Results that say that the call was not run; see the table of the README.
NOT_RUN = frozenset(
    {"skipped", "unknown_tool", "invalid_arguments", "rejected", "expired", "cancelled", "limit_exceeded"}
)


@dataclass(frozen=True)
class Effect:
    """A call behind the cut that was run, or may have been: what it did outside is not undone.

    ``arguments`` is the JSON text the model sent; ``result`` is None of a call that had not come back.
    """

    run_id: str
    call_id: str
    tool: str
    arguments: str
    result: ToolResult | None


@dataclass(frozen=True)
class Rewound:
    """What a rewind did: how many messages the thread has left, and the effects that those behind the cut had."""

    messages: int
    effects: tuple[Effect, ...]


def border(messages: Sequence[Message], to: int) -> int:
    """The nearest legal border at or before ``to``, a number of messages (of the last ones where it is negative).

    Raises IndexError where the conversation is not so long.
    """
    at = to if to >= 0 else len(messages) + to
    if not 0 <= at <= len(messages):
        raise IndexError(f"the conversation has {len(messages)} messages")
    reply = next((place for place in range(at - 1, -1, -1) if isinstance(messages[place], AssistantMessage)), None)
    if reply is None:
        return at
    back = sum(isinstance(message, ToolMessage) for message in messages[reply + 1 : at])
    said = messages[reply]
    return at if isinstance(said, AssistantMessage) and back >= len(said.calls) else reply


def effects(run_ids: Sequence[str], messages: Sequence[Message], at: int) -> tuple[Effect, ...]:
    """The calls behind the cut that were run, or may have been; ``run_ids`` are the runs the messages are of."""
    found = []
    for place in range(at, len(messages)):
        reply = messages[place]
        if not isinstance(reply, AssistantMessage):
            continue
        back = {m.result.call_id: m.result for m in messages[place + 1 :] if isinstance(m, ToolMessage)}
        for call in reply.calls:
            result = back.get(call.id)
            if result is None or result.code not in NOT_RUN:
                found.append(Effect(run_ids[place], call.id, call.name, call.arguments, result))
    return tuple(found)
