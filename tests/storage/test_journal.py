"""What the journal keeps is what is read from it, though an event does not repeat what the message beside it says."""

import json
from collections.abc import Sequence

import pytest
from psycopg.types.json import Json

from agentq.messages import AssistantMessage, Message, ToolCall, ToolMessage, ToolResult, UserMessage, dump_message
from agentq.storage import journal
from agentq.storage.database import Database
from agentq.storage.journal import NewEvent, Placed

ASKS = AssistantMessage(
    calls=(ToolCall(id="a", name="look", arguments="{}"),), stop="tool_calls", provider="p", model="m"
)
MESSAGES = [
    UserMessage(text="hi"),
    ASKS,
    AssistantMessage(text="done"),
    ToolMessage(result=ToolResult(call_id="a", name="look", text="seen")),
    ToolMessage(result=ToolResult(call_id="a", name="look", status="error", code="tool_failed", text="no")),
    ToolMessage(result=ToolResult(call_id="a", name="look", status="rejected", code="rejected", text="no")),
]


@pytest.mark.parametrize("kind", ["step", "call", "run.ended"])
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_an_event_leaves_to_its_message_is_the_same_here_and_in_the_database(
    database: Database, kind: str, message: Message
) -> None:
    with database.autocommit() as connection:
        found = connection.execute("SELECT agentq.facts(%s, %s)", (kind, Json(None, lambda _: dump_message(message))))
        expected = journal._facts(kind, message)
        assert found.scalar() == (expected or ({"phase": "model"} if kind == "step" else {}))


def written(
    database: Database, events: Sequence[NewEvent], messages: Sequence[Placed] = ()
) -> list[tuple[object, ...]]:
    """The events of one row, as they are read."""
    with database.autocommit() as connection:
        connection.execute("""
            INSERT INTO agentq.runs (id, agent, status, phase, seq, turn, depth, progress, context, tags, queue)
            VALUES ('r', 'test', 'running', 'tools', 1, 1, 0, '{}', '{}', '{}', 'agentq')
        """)
        number = connection.execute("SELECT number FROM agentq.runs").scalar()
        journal.add(connection, number, len(events), events, messages)
        return [(event.number, event.type, event.data) for event in journal.events(connection, "r", after=0)]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_an_event_is_read_as_it_was_written(database: Database, message: Message) -> None:
    told = journal._facts("step", message) | {"seq": 3, "ms": 0}
    events = [NewEvent("step", told), NewEvent("run.ended", {"status": "failed", "reason": "x"})]
    assert written(database, events, [(7, message)]) == [(1, "step", told), (2, *vars(events[1]).values())]


COUNTED = {"seq": 3, "input_tokens": 12, "output_tokens": 0, "ms": 4}


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        ({"seq": 3, "ms": 0}, [3, 0]),
        (COUNTED, [3, 4, 12, 0]),
        # All that is not as plain is said in full.
        ({"ms": 0, "seq": 3}, None),
        ({"seq": 3, "input_tokens": 12, "ms": 4}, None),
        (COUNTED | {"cache_read_tokens": 5}, None),
        ({"seq": 3, "worker": "w", "ms": 0}, None),
        ({"seq": 3, "ms": 0, "retry": {"reason": "x"}}, None),
    ],
)
@pytest.mark.parametrize("message", [ASKS, MESSAGES[4]], ids=["model", "tools"])
def test_a_plain_step_is_kept_as_its_numbers_and_read_in_full(
    database: Database, message: Message, data: dict[str, object], kept: list[int] | None
) -> None:
    told = journal._facts("step", message) | data
    assert json.loads(journal.happened([NewEvent("step", told)], message)) == [kept or ["step", data, 0]]
    assert written(database, [NewEvent("step", told)], [(7, message)]) == [(1, "step", told)]


def test_an_event_that_says_less_than_the_message_beside_it_is_not_added_to(database: Database) -> None:
    event = NewEvent("step", {"seq": 3, "phase": "tools"})
    assert written(database, [event], [(2, MESSAGES[3])]) == [(1, "step", event.data)]


def test_only_events_after_a_number_are_read_also_from_the_middle_of_a_row(database: Database) -> None:
    written(database, [NewEvent("step", {"seq": n}) for n in range(3)])
    with database.autocommit() as connection:
        assert [event.data["seq"] for event in journal.events(connection, "r", after=1)] == [1, 2]
        assert journal.events(connection, "r", after=3) == []
