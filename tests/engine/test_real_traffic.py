"""The whole loop against recorded provider traffic on a real socket: tool calls, parallel calls, errors, fallback."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from agentq import Agent, Handle, RunFailedError, ToolMessage, tool
from agentq.providers.anthropic import Anthropic
from agentq.providers.openai_chat import OpenAIChat
from agentq.storage.database import Database
from tests.engine.drain import Drain
from tests.providers.fake_server import Answer, FakeServer, response, serve
from tests.providers.rows import BY_ID, replay


@tool
def delete_file(path: str) -> bool:
    """Delete a file."""
    return True


@tool
def create_file(path: str) -> str:
    """Create a file."""
    return "Success"


@tool
def get_population(city: str) -> int:
    """Count people."""
    return 8_900_000


@tool
def get_area(city: str) -> str:
    """Measure a city."""
    return "1572 km2"


@tool
def weather(latitude: str, longitude: str) -> dict[str, Any]:
    """Look out of the window."""
    return {"celsius": 15, "wind": 10}


@tool
def best_language_to_learn() -> str:
    """Know better."""
    return "Ruby"


class City(BaseModel):
    city: str
    country: str
    population: int


def rows(*names: str) -> Iterator[Answer]:
    return (replay(BY_ID[name]) for name in names)


def answering(*answers: Answer) -> Any:
    waiting = list(answers)
    return lambda _: waiting.pop(0)


def codes(handle: Handle) -> list[str | None]:
    return [message.result.code for message in handle.messages() if isinstance(message, ToolMessage)]


def openai(server: FakeServer, name: str = "openai") -> OpenAIChat:
    return OpenAIChat(name, base_url=f"{server.url}/v1", api_key="sk-secret", model="gpt-4o")


def anthropic(server: FakeServer) -> Anthropic:
    return Anthropic(base_url=server.url, api_key="sk-secret", model="claude-sonnet-4-5")


def test_parallel_calls_on_openai_chat_come_back_in_order_and_end_in_the_recorded_answer(database: Database) -> None:
    names = ("openai-chat-94fa27-t0", "openai-chat-94fa27-t1")
    with serve(answering(*rows(*names))) as server:
        agent = Agent("files", model=openai(server), tools=[delete_file, create_file])
        result = Drain(database).run(agent, "Delete .env and create test.txt")
    assert result.text == "The file `.env` has been deleted and `test.txt` has been created successfully."
    assert (result.usage.input_tokens or 0) > 133
    sent = server.asked[1].body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]
    recorded = BY_ID[names[0]]["response"]["body"]["choices"][0]["message"]["tool_calls"]
    assert [message["tool_call_id"] for message in sent[2:]] == [call["id"] for call in recorded]
    assert [message["content"] for message in sent[2:]] == ["true", "Success"]


def test_a_tool_loop_on_anthropic_ends_in_a_structured_answer(database: Database) -> None:
    with serve(answering(*rows("anthropic-0cd651-t0", "anthropic-0cd651-t1"), response(final_answer()))) as server:
        agent = Agent("cities", model=anthropic(server), tools=[get_population, get_area], output=City)
        result = Drain(database).run(agent, "London?")
    assert result.stop_reason == "output"
    assert result.output == City(city="London", country="United Kingdom", population=8_900_000)
    # The recorded second reply calls a tool of its own framework's: answered as unknown, and the model goes on.
    results = [m.result for m in result.messages if isinstance(m, ToolMessage)]
    assert [r.code for r in results] == [None, None, "unknown_tool", None]
    turns = server.asked[1].body["messages"]
    assert [block["type"] for block in turns[-1]["content"]] == ["tool_result", "tool_result"]


def final_answer() -> dict[str, Any]:
    reply = dict(BY_ID["anthropic-0cd651-t1"]["response"]["body"])
    (block,) = reply["content"]
    return reply | {"content": [block | {"name": "final_answer"}]}


def test_parallel_calls_on_a_compatible_server(database: Database) -> None:
    with serve(answering(*rows("mistral-9fecba-t0", "mistral-9fecba-t1"))) as server:
        agent = Agent("berlin", model=openai(server, "mistral"), tools=[weather, best_language_to_learn])
        result = Drain(database).run(agent, "Berlin?")
    assert result.text is not None
    assert "best language to learn right now is **Ruby**" in result.text


def test_an_overloaded_model_is_tried_three_times_when_due_and_then_its_fallback_answers(database: Database) -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with (
        serve(lambda _: response(overloaded, 529)) as busy,
        serve(answering(*rows("openai-chat-94fa27-t1"))) as free,
    ):
        agent = Agent("files", model=anthropic(busy), fallback=[openai(free)])
        drain = Drain(database, agent)
        handle = drain.enqueue(agent)
        for _ in range(2):
            drain.work()
            assert handle.status() == "running"
            drain.age(30)
            drain.sweep()
        drain.work()
    assert (len(busy.asked), len(free.asked)) == (3, 1)
    assert handle.result().text is not None
    run = handle.run()
    assert run.model_calls == 1
    steps = [event.data for event in handle.events(follow=False) if event.type == "step"]
    assert [step.get("error") for step in steps] == ["provider_overloaded"] * 3 + [None]
    assert steps[-1]["provider"] == "openai"


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (
            401,
            {"error": {"message": "Incorrect API key provided: sk-secret", "code": "invalid_api_key"}},
            "auth_failed",
        ),
        (429, {"error": {"message": "no credit", "code": "insufficient_quota"}}, "quota_exceeded"),
        (404, {"error": {"message": "no such model", "code": "model_not_found"}}, "model_not_found"),
        (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}, "context_too_long"),
    ],
)
def test_a_refusal_for_good_is_asked_once_and_the_key_is_nowhere(
    database: Database, caplog: pytest.LogCaptureFixture, status: int, body: dict[str, Any], code: str
) -> None:
    with serve(lambda _: response(body, status)) as server:
        drain = Drain(database, agent := Agent("files", model=openai(server)))
        handle = drain.enqueue(agent)
        drain.work()
    assert len(server.asked) == 1
    with pytest.raises(RunFailedError) as caught:
        handle.result()
    assert caught.value.code == f"provider_{code}"
    seen = repr((handle.run(), list(handle.events(follow=False)), caught.value.message, caplog.text))
    assert "sk-secret" not in seen


def test_a_long_retry_after_goes_to_the_fallback_instead_of_waiting(database: Database) -> None:
    limited = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}
    with (
        serve(lambda _: response(limited, 429, retry_after="86400")) as busy,
        serve(answering(*rows("openai-chat-94fa27-t1"))) as free,
    ):
        agent = Agent("files", model=openai(busy), fallback=[openai(free)])
        assert Drain(database).run(agent).text is not None
    assert len(busy.asked) == 1
