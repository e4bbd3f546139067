"""Where a conversation may be cut: behind any message, but never between a reply's calls and their results. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentq.messages import AssistantMessage, Message, ToolMessage, ToolResult

# Results that say that the call was not run; see the table of the README.
NOT_RUN = frozenset(
    {"skipped", "unknown_tool", "invalid_arguments", "rejected", "expired", "cancelled", "limit_exceeded"}
)
# Unless they say this: it had begun, or was handed to others.
_UNSURE = ("may or may not have taken effect", "had done by then stands")


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


@dataclass(frozen=True)
class Below:
    """The run that a sub-agent did for a call, and what was said in it."""

    run_id: str
    messages: Sequence[Message]


def effects(
    run_ids: Sequence[str],
    messages: Sequence[Message],
    at: int,
    below: Mapping[tuple[str, str], Below | None],
) -> tuple[Effect, ...]:
    """The calls behind the cut that were run, or may have been; ``run_ids`` are the runs the messages are of.

    ``below`` has the sub-agents' runs by the run and the id of the call they are for: what those did is behind the cut
    as well. It has None for a call that a person answered in its tool's place.
    """
    found: list[Effect] = []
    for place in range(at, len(messages)):
        reply = messages[place]
        if not isinstance(reply, AssistantMessage):
            continue
        back = _results(messages, place)
        for call in reply.calls:
            run_id, result = run_ids[place], back.get(call.id)
            under = below.get((run_id, call.id), _NOBODY)
            if under is not None and _may_have_run(result):
                found.append(Effect(run_id, call.id, call.name, call.arguments, result))
            if under:
                found += effects([under.run_id] * len(under.messages), under.messages, 0, below)
    return tuple(found)


_NOBODY = Below("", ())


def _results(messages: Sequence[Message], reply: int) -> dict[str, ToolResult]:
    """What the calls of a reply brought; some models use an id again in a later turn."""
    found: dict[str, ToolResult] = {}
    for message in messages[reply + 1 :]:
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, ToolMessage):
            found[message.result.call_id] = message.result
    return found


def _may_have_run(result: ToolResult | None) -> bool:
    return result is None or result.code not in NOT_RUN or any(words in result.text for words in _UNSURE)
