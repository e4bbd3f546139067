"""D1, D3: replies without anything in them, and signed blocks that go back as they came."""

import json
from typing import Any

import pytest

from agentq import Agent, RunFailedError, UserMessage, tool
from agentq.limits import MAX_EMPTY_REPLIES
from agentq.providers.anthropic import Anthropic
from agentq.storage.database import Database
from tests.cases.stored import assert_over
from tests.cases.wire import APIS, KEY, Api, each_api, played, run
from tests.providers.fake_server import Asked, response
from tests.providers.stubs import chat_reply, messages_reply

THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "S+/="}
EMPTY: dict[str, list[dict[str, Any]]] = {
    "chat": [
        chat_reply(None),
        chat_reply(""),
        chat_reply(" \n"),
        chat_reply(None) | {"choices": [{"index": 0, "message": {"content": []}, "finish_reason": "stop"}]},
        chat_reply(None) | {"choices": [{"index": 0, "message": {"reasoning": "hm"}, "finish_reason": "stop"}]},
    ],
    "messages": [
        messages_reply(""),
        messages_reply("", before=[THOUGHT]),
        messages_reply(" \n"),
        messages_reply("", before=[{"type": "text", "text": ""}]),
        messages_reply("", before=[{"type": "redacted_thinking", "data": "R"}]),
    ],
}


def replies(api: Api, empty: int) -> dict[str, Any]:
    return EMPTY[api.name][empty]


# A stream of chat has no other forms than the first three.
@pytest.mark.parametrize(
    ("api", "empty"),
    [(api, empty) for api in APIS for empty in range(3 if api == Api("chat", streamed=True) else 5)],
    ids=str,
)
def test_d1_an_empty_reply_is_asked_for_again_with_a_word_on_it(database: Database, api: Api, empty: int) -> None:
    with played([replies(api, empty), api.reply("done")]) as server:
        handle = run(database, Agent("test", model=api.provider(server.url)))
    assert handle.result().text == "done"
    assert handle.run().model_calls == 2
    asked = json.dumps(server.asked[1].body["messages"])
    assert "Your last reply was empty" in asked
    assert '"assistant"' not in asked
    assert_over(database, handle)


@each_api
def test_d1_a_model_that_has_nothing_to_say_ends_the_run_as_failed(database: Database, api: Api) -> None:
    with played([replies(api, 0)]) as server:
        handle = run(database, Agent("test", model=api.provider(server.url)))
        assert len(server.asked) == handle.run().model_calls == MAX_EMPTY_REPLIES + 1
    assert handle.status() == "failed"
    with pytest.raises(RunFailedError) as caught:
        handle.result()
    assert caught.value.code == "provider_reply_invalid"
    assert_over(database, handle)


SECRET = "sk-secret-0123456789"
SIGNED: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "", "signature": f"S+/= {SECRET} \ud800 \x00"},
    {"type": "redacted_thinking", "data": f"R {SECRET}"},
    {"type": "text", "text": "Let me look."},
]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_d3_signed_blocks_go_back_as_they_came_ahead_of_the_call(database: Database, *, streamed: bool) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    api = Api("messages", streamed)
    asks = messages_reply("", [("a", "look", "{}")], before=SIGNED)
    tries = [lambda _: response(b"", 529), api.reply("done")]
    with played([asks, *tries]) as server:
        agent = Agent("test", model=api.provider(server.url), tools=[look])
        handle = run(database, agent, thread="t")
        assert handle.result().text == "done"
        again = run(database, agent, thread="t")
        assert again.result().text == "done"
    # After a try that failed, and on the next run of the thread, the same.
    for asked in server.asked[1:]:
        assert asked.body["messages"][1]["content"] == asks["content"]
    assert len(server.asked) == 4


def test_d3_thinking_without_a_signature_is_never_sent(database: Database) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    thoughts = [{"type": "thinking", "thinking": "hm"}, {"type": "thinking", "thinking": "hm", "signature": ""}]
    asks = messages_reply("", [("a", "look", "{}")], before=thoughts)
    with played([asks, messages_reply("done")]) as server:
        model = Anthropic(base_url=server.url, api_key=KEY, model="m")
        assert run(database, Agent("test", model=model, tools=[look])).result().text == "done"
    assert "thinking" not in json.dumps(server.asked[1].body["messages"])


def test_d3_blocks_of_another_model_stay_at_home(database: Database) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    def busy(_: Asked) -> Any:
        return response(b"", 529)

    asks = messages_reply("", [("a", "look", "{}")], before=SIGNED)
    with played([asks, busy]) as first, played([messages_reply("done")]) as second:
        models = [Anthropic(base_url=s.url, api_key=KEY, model=m) for s, m in ((first, "m"), (second, "other"))]
        handle = run(database, Agent("test", model=models[0], fallback=[models[1]], tools=[look]))
    assert handle.result().text == "done"
    kinds = [block["type"] for block in second.asked[0].body["messages"][1]["content"]]
    assert kinds == ["text", "tool_use"]
    assert isinstance(handle.messages()[0], UserMessage)
