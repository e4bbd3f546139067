"""L2, O1: usage that is not as it should be does no harm; the key is in nothing that is kept or logged."""

import json
import logging
from typing import Any

import pytest

from agentq import Agent
from agentq.storage.database import Database
from tests.cases.stored import assert_over, rows
from tests.cases.wire import APIS, KEY, Api, played, run
from tests.providers.fake_server import head, response

CHAT: list[tuple[Any, int | None, int | None]] = [
    (None, None, None),
    ({}, None, None),
    ({"prompt_tokens": None, "completion_tokens": 3}, None, 3),
    ({"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": None}, 5, 3),
    ({"prompt_tokens": 5, "completion_tokens": 3, "completion_tokens_details": None}, 5, 3),
    ({"prompt_tokens": "12", "completion_tokens": 3}, None, 3),
    ({"prompt_tokens": -1, "completion_tokens": True}, None, None),
    ({"prompt_tokens": 1.5, "completion_tokens": 3}, None, 3),
    ({"total_tokens": 8}, None, None),
    ("12", None, None),
    ([1], None, None),
]
NAMES = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}


# The start of a stream of Messages has an object, always.
@pytest.mark.parametrize(
    ("api", "case"),
    [
        (api, case)
        for api in APIS
        for case, (usage, _, _) in enumerate(CHAT)
        if isinstance(usage, dict) or api != Api("messages", streamed=True)
    ],
    ids=str,
)
def test_l2_usage_that_is_missing_or_odd_does_no_harm(database: Database, api: Api, case: int) -> None:
    usage, read, written = CHAT[case]
    if api.name == "messages":
        usage = {NAMES.get(k, k): v for k, v in usage.items()} if isinstance(usage, dict) else usage
    reply = api.reply("done") | {"usage": usage}
    if api.name == "messages" and api.streamed and written is None:
        # The start of a stream has counted one token.
        written = 1 if usage.get("output_tokens") is None else written
    with played([reply]) as server:
        handle = run(database, Agent("test", model=api.provider(server.url)))
    found = handle.result()
    assert found.text == "done"
    assert (found.usage.input_tokens, found.usage.output_tokens) == (read, written)
    assert handle.run().model_calls == 1
    assert_over(database, handle)


ECHOES = {
    "401": lambda key: response({"error": {"message": f"Incorrect API key provided: {key}", "code": "x"}}, 401),
    "503": lambda key: response(f"upstream https://x.invalid/?key={key} failed".encode(), 503),
    "200": lambda key: response({"error": {"message": f"bad {key}", "code": 500}}),
    "html": lambda key: response(f"<html><title>{key}</title></html>".encode()),
    "stream": lambda key: [
        head(200, {"content-type": "text/event-stream", "connection": "close", "x-request-id": key}),
        f'data: {{"error": {{"message": "no {key}"}}}}\n\n'.encode(),
    ],
    "junk": lambda key: [
        head(200, {"content-type": "text/event-stream", "connection": "close"}),
        f"data: {key}\n\n".encode(),
    ],
}


@pytest.mark.parametrize(
    ("api", "echo"),
    [(api, echo) for api in APIS for echo in ECHOES if api.streamed or echo not in ("stream", "junk")],
    ids=str,
)
def test_o1_the_key_is_in_nothing_that_is_kept_or_logged(
    database: Database, api: Api, echo: str, caplog: pytest.LogCaptureFixture
) -> None:
    # What httpcore says at its DEBUG level is the user's own doing.
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, logger="agentq")
    with played([lambda _: ECHOES[echo](KEY)]) as server:
        handle = run(database, Agent("test", model=api.provider(server.url)))
    header = server.asked[0].headers["authorization" if api.name == "chat" else "x-api-key"]
    assert header.endswith(KEY)
    assert handle.status() == "failed"
    error = handle.run().error
    assert error is not None
    assert "[key]" in error.message
    kept = [repr(handle.run()), json.dumps([event.data for event in handle.events(follow=False)])]
    tables = rows(database, "select table_name from information_schema.tables where table_schema = 'agentq'")
    for (table,) in tables:
        kept += [str(row) for row in rows(database, f'select row_to_json(t)::text from agentq."{table}" t')]
    kept += [record.getMessage() + str(record.exc_text) for record in caplog.records]
    assert len(kept) > 4
    assert not [text for text in kept if KEY in text]
