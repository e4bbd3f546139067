"""The journal: what each commit added to a run, its messages and its events, in one row.

A row is numbered as its last event, and has one at least. It is JSON text, ``[[type, data], …]`` and ``[[position,
message], …]``, which Postgres only passes on. An event does not repeat what the message beside it says: it has the
message's place in the row then, ``[type, data, place]``; a step with nothing else to say is ``[seq, ms]``, or ``[seq,
ms, input_tokens, output_tokens]``. The views ``agentq.messages`` and ``agentq.events`` are for reading: they have a row
for each, with all there is to say.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentq.messages import AssistantMessage, Message, ToolMessage, ToolResult, dump_message, load_messages
from agentq.run import Event
from agentq.storage.rows import dump
from agentq.storage.sql import Connection, text

# A message, and its place among those of its run.
Placed = tuple[int, Message]

_COLUMNS = "agentq.journal (run, number, events, messages)"

# For a statement that has the run's row, with its new count of events, as ``run``.
ADD = f"INSERT INTO {_COLUMNS} SELECT run.number, run.event_count, :happened, :said FROM run"

_ADD = text(f"INSERT INTO {_COLUMNS} VALUES (:run, :number, :happened, :said)")

# Of a run whose id is given.
IS_OF_RUN = "j.run = (SELECT number FROM agentq.runs WHERE id = :run_id)"
# A row whose number is too low has no event that is not.
_EVENTS = text(f"""
    SELECT e.number, e.type, e.data, j.at FROM agentq.journal j CROSS JOIN agentq.events_of(j) e
    WHERE {IS_OF_RUN} AND j.number > :after AND e.number > :after ORDER BY e.number
""")


def updated_at(run: str) -> str:
    """The SQL for when a row of ``runs`` was changed last; ``run`` is its alias in the statement."""
    latest = f"SELECT j.at FROM agentq.journal j WHERE j.run = {run}.number ORDER BY j.number DESC LIMIT 1"
    return f"coalesce(({latest}), {run}.created_at)"


@dataclass(frozen=True)
class NewEvent:
    """What happened; ``data`` never holds a prompt or a result, but for a reply that is shown while it is written."""

    type: str
    data: dict[str, Any]


def entry(events: Sequence[NewEvent], messages: Sequence[Placed] = ()) -> dict[str, Any]:
    """The values of ADD, and how many ``events`` there are."""
    first = messages[0][1] if messages else None
    said = dump_messages(messages) if messages else None
    return {"events": len(events), "happened": happened(events, first), "said": said}


def happened(events: Sequence[NewEvent], beside: Message | None) -> str:
    """The text of events with a message beside them."""
    return dump([_short(event, beside) for event in events])


def _short(event: NewEvent, message: Message | None) -> list[Any]:
    facts = _facts(event.type, message)
    if not facts or not facts.items() <= event.data.items():
        return [event.type, event.data]
    rest = {name: value for name, value in event.data.items() if name not in facts}
    if event.type == "step" and tuple(rest) in _PLAIN:
        return [rest[name] for name in ("seq", "ms", *_TOKENS) if name in rest]
    return [event.type, rest, 0]


_TOKENS = ("input_tokens", "output_tokens")
_PLAIN = (("seq", "ms"), ("seq", *_TOKENS, "ms"))


def _facts(kind: str, message: Message | None) -> dict[str, Any]:
    """What an event says of the message beside it; the same as the function ``agentq.facts`` in the database."""
    is_step = kind == "step"
    match message:
        case AssistantMessage():
            calls = [call.name for call in message.calls]
            phase = {"phase": "model"} if is_step else {}
            return {"provider": message.provider, "model": message.model, "calls": calls} | phase
        case ToolMessage():
            return call_data(message.result) | ({"phase": "tools"} if is_step else {})
        case _:
            return {}


def call_data(result: ToolResult) -> dict[str, Any]:
    """What events say of a call's result."""
    return {"tool": result.name, "status": result.status} | ({"code": result.code} if result.code else {})


def dump_messages(messages: Sequence[Placed]) -> str:
    """The text of messages with their places; see the top."""
    return f"[{','.join(f'[{position},{dump_message(message)}]' for position, message in messages)}]"


def add(
    connection: Connection, run: int, count: int, events: Sequence[NewEvent], messages: Sequence[Placed] = ()
) -> None:
    """Write what happened to the run of this number; the caller's UPDATE has counted the events up to ``count``."""
    values = entry(events, messages)
    connection.execute(_ADD, {"run": run, "number": count, "happened": values["happened"], "said": values["said"]})


def messages_in(texts: Iterable[str]) -> list[Placed]:
    """The messages of some rows."""
    return [placed for said in texts for placed in load_messages(said)]


def events(connection: Connection, run_id: str, *, after: int) -> list[Event]:
    """A run's events whose numbers are higher than ``after``."""
    rows = connection.execute(_EVENTS, {"run_id": run_id, "after": after})
    return [Event(run_id, row.number, row.type, row.at, json.loads(row.data)) for row in rows]
