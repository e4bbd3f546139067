"""A3, A4, A5: calls without ids, ids that another provider refuses, and names that providers refuse."""

import re
import time
from typing import Any

import pytest

from agentq import Agent, AssistantMessage, ConfigError, tool
from agentq.providers.anthropic import Anthropic
from agentq.providers.openai_chat import OpenAIChat
from agentq.storage.database import Database
from tests.cases.stored import assert_over, results
from tests.cases.wire import KEY, Api, each_api, played, run, sent_results
from tests.providers.fake_server import response, serve
from tests.providers.stubs import chat_reply, messages_reply


@tool
def temp(city: str) -> str:
    """Measure."""
    if city == "A":
        time.sleep(0.05)
    return f"warm in {city}"


def without_ids(document: dict[str, Any], call_id: Any) -> dict[str, Any]:
    for call in document["choices"][0]["message"]["tool_calls"]:
        call["id"] = call_id
    return document


@pytest.mark.parametrize("call_id", [None, "", "same"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a3_calls_without_ids_get_their_own_and_each_its_own_result(
    database: Database, call_id: Any, *, streamed: bool
) -> None:
    api = Api("chat", streamed)
    calls = [(f"call_{city}", "temp", f'{{"city": "{city}"}}') for city in "ABC"]
    replies = [without_ids(chat_reply(None, calls), call_id), without_ids(chat_reply(None, calls), call_id)]
    with played([*replies, api.reply("done")]) as server:
        handle = run(database, Agent("test", model=api.provider(server.url), tools=[temp]))
    assert handle.result().text == "done"
    expected = [f"warm in {city}" for city in "ABCABC"]
    assert [result.text for result in results(handle)] == expected
    ids = [call.id for message in handle.messages() if isinstance(message, AssistantMessage) for call in message.calls]
    assert len(set(ids)) == 6
    assert all(ids)
    # Made once: the second and third request say the same of the first calls.
    first, second = sent_results(server.asked[1]), sent_results(server.asked[2])
    assert second[:3] == first
    assert [text for _, _, text in second] == expected
    assert all(call == result for call, result, _ in second)
    assert_over(database, handle)


def test_a4_ids_of_one_provider_are_fit_for_the_next_one_and_stay_as_they_were(database: Database) -> None:
    own = ["functions.look:0", "functions.look_0", "x" * 94, "", "é"]
    first = chat_reply(None, [(call_id, "temp", f'{{"city": "{n}"}}') for n, call_id in enumerate(own)])
    with played([first, lambda _: response(b"", 503)]) as busy, played([messages_reply("done")]) as free:
        chat = OpenAIChat("acme", base_url=busy.url, api_key=KEY, model="m")
        claude = Anthropic(base_url=free.url, api_key=KEY, model="m")
        handle = run(database, Agent("test", model=chat, fallback=[claude], tools=[temp]))
    assert handle.result().text == "done"
    sent = sent_results(free.asked[0])
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", call) and call == result for call, result, _ in sent)
    assert len({call for call, _, _ in sent}) == len(own)
    assert [text for _, _, text in sent] == [f"warm in {n}" for n in range(len(own))]
    stored = next(message for message in handle.messages() if isinstance(message, AssistantMessage))
    assert [call.id for call in stored.calls if call.id in own] == [call_id for call_id in own if call_id]


@pytest.mark.parametrize("name", ["my tool!", "поиск", "a" * 100, "1st", "", "a.b"])
def test_a5_a_name_that_a_provider_refuses_is_refused_when_the_tool_is_made(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tool(name=name)(lambda: "")
    assert repr(name) in str(caught.value)


def test_a5_two_tools_of_one_name_are_refused_when_the_agent_is_made() -> None:
    @tool
    def create_item() -> str:
        return ""

    for other in (create_item, tool(name="create_item")(lambda: "")):
        with pytest.raises(ConfigError, match="create_item"):
            Agent("test", model="openai:m", tools=[create_item, other])
    for name in ("風林", "疾風"):
        with pytest.raises(ConfigError, match=name):
            Agent("test", model="openai:m", tools=[Agent(name, model="openai:m").as_tool()])


@each_api
def test_a5_parameters_called_like_pydantics_own_reach_the_function(database: Database, api: Api) -> None:
    taken: list[Any] = []

    @tool
    def odd(self: int, _path: int, model_config: int, model_dump: int, model_extra: int, schema: int) -> str:
        """Take them."""
        taken.append([self, _path, model_config, model_dump, model_extra, schema])
        return "taken"

    arguments = '{"self": 1, "_path": 2, "model_config": 3, "model_dump": 4, "model_extra": 5, "schema": 6}'
    with played([api.reply("", [("a", "odd", arguments)]), api.reply("done")]) as server:
        handle = run(database, Agent("test", model=api.provider(server.url), tools=[odd]))
    assert handle.result().text == "done"
    assert taken == [[1, 2, 3, 4, 5, 6]]


def test_a5_a_parameter_that_claude_has_no_name_for_is_told_before_it_is_asked(database: Database) -> None:
    @tool
    def find(город: str) -> str:
        """Find."""
        return город

    with serve(response(b"", 500)) as server:
        agent = Agent("test", model=Anthropic(base_url=server.url, api_key=KEY, model="m"), tools=[find])
        handle = run(database, agent)
        assert not server.asked
    error = handle.run().error
    assert error is not None
    assert error.code == "provider_request_rejected"
    assert "tool 'find': rename parameter 'город'" in error.message
