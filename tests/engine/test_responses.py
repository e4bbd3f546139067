"""The whole loop on the Responses API: what a model has made goes through the database and back to it as it came."""

from collections.abc import Callable
from typing import Any

from agentq import Agent, Image, tool
from agentq.providers.anthropic import Anthropic
from agentq.providers.openai_chat import OpenAIChat
from agentq.providers.openai_responses import OpenAIResponses
from agentq.storage.database import Database
from tests.engine.drain import Drain
from tests.images import png
from tests.providers.fake_server import Answer, Asked, response, serve
from tests.providers.test_responses import BY_ID, output_of, replay

CALLED = "openai-responses-c7ad07-t0"
ENDED = "openai-responses-99c3a8-t0"


@tool
def get_file() -> list[Any]:
    """Get a file."""
    return ["here:", Image.from_bytes(png(1))]


def in_turn(*answers: Answer) -> Callable[[Asked], Answer]:
    """One after the other, the last one again and again."""
    waiting = list(answers)
    return lambda _: waiting.pop(0) if len(waiting) > 1 else waiting[0]


def test_reasoning_calls_and_phases_go_through_the_database_and_back_unchanged(database: Database) -> None:
    answers = [replay(BY_ID[row_id]) for row_id in (CALLED, ENDED, ENDED)]
    with serve(in_turn(*answers)) as server:
        agent = Agent("a", model=OpenAIResponses(base_url=server.url, api_key="k", model="m"), tools=[get_file])
        drain = Drain(database, agent)
        assert drain.run(agent, thread="t").text == '{"amount":12.34}'
        drain.run(agent, "more", thread="t")
    called, ended = output_of(BY_ID[CALLED]), output_of(BY_ID[ENDED])
    first, second, third = (asked.body["input"] for asked in server.asked)
    assert first == [{"role": "user", "content": "go"}]
    assert second[:3] == [*first, *called]
    assert [part["type"] for part in second[3]["output"]] == ["input_text", "input_image"]
    assert third == [*second, *ended, {"role": "user", "content": "more"}]


def test_a_result_that_is_refused_is_told_in_words(database: Database) -> None:
    refused = BY_ID["openai-responses-c7ad07-t1"]
    with serve(in_turn(*(replay(BY_ID[CALLED] | row) for row in ({}, refused, BY_ID[ENDED])))) as server:
        agent = Agent("a", model=OpenAIResponses(base_url=server.url, api_key="k", model="m"), tools=[get_file])
        assert Drain(database, agent).run(agent).text == '{"amount":12.34}'
    shown, told = (asked.body["input"][-1]["output"] for asked in server.asked[1:])
    assert isinstance(shown, list)
    assert "this model cannot take it" in told


def test_a_run_that_changes_its_provider_twice_in_the_middle_goes_on(database: Database) -> None:
    """Each model has credit for one call; the next one sees all that was done before."""
    busy = {"error": {"code": "insufficient_quota", "message": "no credit"}}
    claude = {
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "SIGNED"},
            {"type": "tool_use", "id": "toolu_1", "name": "get_file", "input": {}},
        ],
        "stop_reason": "tool_use",
    }
    final = {"choices": [{"finish_reason": "stop", "message": {"content": "done"}}]}
    with (
        serve(in_turn(response(claude), response(busy, 429))) as one,
        serve(in_turn(replay(BY_ID[CALLED]), response(busy, 429))) as two,
        serve(in_turn(response(final))) as three,
    ):
        models: list[Any] = [
            Anthropic(base_url=one.url, api_key="k", model="m"),
            OpenAIResponses(base_url=two.url, api_key="k", model="m"),
            OpenAIChat(base_url=three.url, api_key="k", model="m"),
        ]
        agent = Agent("a", model=models[0], fallback=models[1:], tools=[get_file])
        assert Drain(database, agent).run(agent).text == "done"
    seen = two.asked[0].body["input"]
    assert [item.get("type") for item in seen] == [None, "function_call", "function_call_output"]
    assert seen[1] == {"type": "function_call", "call_id": "toolu_1", "name": "get_file", "arguments": "{}"}
    called = output_of(BY_ID[CALLED])
    last = three.asked[0].body["messages"]
    assert [message["role"] for message in last] == ["user", *["assistant", "tool", "user"] * 2]
    assert [message["tool_call_id"] for message in last if message["role"] == "tool"] == [
        "toolu_1",
        called[1]["call_id"],
    ]
    assert called[0]["encrypted_content"] not in str(last)
    assert "SIGNED" not in str(last)
