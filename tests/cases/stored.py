"""What a run has left in the database, looked at as a whole: strict JSON, clean text, closed calls, nothing open."""

import json
from collections.abc import Iterator
from typing import Any

from agentq import AssistantMessage, Handle, ToolMessage, ToolResult
from agentq.storage.database import Database
from agentq.text import clean
from tests.waiting import eventually

JSON_COLUMNS = [
    ("runs", "progress"),
    ("runs", "context"),
    ("runs", "tags"),
    ("runs", "output"),
    ("runs", "error"),
    ("messages", "payload"),
    ("events", "data"),
]


def rows(database: Database, query: str, *values: object) -> list[Any]:
    with database.autocommit() as connection:
        return list(connection.execute(query, values))


def results(handle: Handle) -> list[ToolResult]:
    return [message.result for message in handle.messages() if isinstance(message, ToolMessage)]


def codes(handle: Handle) -> list[str | None]:
    return [result.code for result in results(handle)]


def assert_strict_and_clean(database: Database) -> None:
    """Everything stored is JSON that any reader takes, without a text that Postgres or UTF-8 refuses."""
    for table, column in JSON_COLUMNS:
        for (text,) in rows(database, f"select {column}::text from agentq.{table} where {column} is not null"):
            for found in texts(json.loads(text, parse_constant=refuse)):
                assert clean(found) == found, f"{table}.{column}: {found[:200]!r}"


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys included; a provider's own blocks are signed and stay as they came."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from texts(item)
        case dict():
            for key, item in value.items():
                yield key
                if key != "reasoning":
                    yield from texts(item)


def assert_every_call_is_answered_once(handle: Handle) -> None:
    """After each reply come the results of its calls, in the order asked, each once: what providers insist on."""
    messages = list(handle.messages())
    asked: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert asked, "a result without a call"
            assert message.result.call_id == asked.pop(0)
        else:
            assert asked == [], f"calls without a result: {asked}"
            asked = [call.id for call in message.calls] if isinstance(message, AssistantMessage) else []
    assert asked == []


def assert_over(database: Database, handle: Handle) -> None:
    """The run has ended once, and nothing of it is open, held, due or waited for."""
    run = handle.run()
    assert run.is_terminal
    assert [event.type for event in handle.events(follow=False)].count("run.ended") == 1
    assert_every_call_is_answered_once(handle)
    held = """
        select 'run' from agentq.runs where id = %(id)s and (lease_token is not null or sweep_at is not null)
        union all select 'call' from agentq.tool_calls where run_id = %(id)s
            and (lease_token is not null or sweep_at is not null or status <> 'done')
        union all select 'approval' from agentq.approvals where run_id = %(id)s and status = 'pending'
        union all select 'child' from agentq.runs where parent_run_id = %(id)s
            and status not in ('completed', 'failed', 'cancelled')
    """

    def nothing_is_held() -> bool:
        with database.autocommit() as connection:
            return list(connection.execute(held, {"id": handle.id})) == []

    # Its hooks hear of the end after it.
    eventually(nothing_is_held, what=f"{handle.id} is over")
