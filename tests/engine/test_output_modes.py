"""Where the form of an answer goes: to the provider's own mode, or to the model as a tool."""

from typing import Any

import pytest
from pydantic import BaseModel

from agentq import Agent, Result, RunFailedError, tool
from agentq.errors import ProviderError
from agentq.providers.anthropic import Anthropic
from agentq.providers.base import ModelReply, ModelRequest, OutputFormat
from agentq.providers.openai_chat import OpenAIChat
from agentq.providers.scripted import Call, Scripted
from agentq.steps import model
from agentq.storage.database import Database
from tests.engine.drain import Drain
from tests.providers.fake_server import Asked, FakeServer, response, serve


class Ticket(BaseModel):
    title: str
    urgent: bool = False


@tool
def look() -> str:
    """Look."""
    return "seen"


@pytest.fixture(autouse=True)
def nothing_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_REFUSED", set())


class Native(Scripted):
    """A script for a provider with a mode of its own, of models that may refuse it."""

    def __init__(self, *steps: Any, refuses: bool = False, name: str = "scripted") -> None:
        super().__init__(steps, name)
        self.asked: list[ModelRequest] = []
        self._refuses = refuses

    def output_format(self, schema: dict[str, Any], *, forced: bool) -> OutputFormat | None:
        return OutputFormat(schema, strict=not forced)

    def complete(self, request: ModelRequest) -> ModelReply:
        self.asked.append(request)
        if self._refuses and request.output is not None:
            raise ProviderError("request_rejected", "response_format is not supported with this model")
        return super().complete(request)

    def shape(self, number: int = -1) -> tuple[list[str], bool]:
        """The tools of a request, and whether it had a form for the answer."""
        request = self.asked[number]
        return [spec.name for spec in request.tools], request.output is not None


def run(database: Database, provider: Any, **more: Any) -> Result:
    test = Agent("test", model=provider, tools=[look], output=Ticket, **more)
    return Drain(database, test).run(test)


ANSWER = '{"title": "broken"}'


def test_by_itself_a_native_mode_is_used_and_the_tool_is_not_offered(database: Database) -> None:
    provider = Native(Call("look"), ANSWER)
    result = run(database, provider)
    assert (result.stop_reason, result.output) == ("output", Ticket(title="broken"))
    assert [provider.shape(number) for number in range(2)] == [(["look"], True)] * 2


def test_the_tool_is_used_where_the_agent_says_so_or_there_is_nothing_else(database: Database) -> None:
    provider = Native(Call("final_answer", {"title": "broken"}))
    assert run(database, provider, output_mode="tool").output == Ticket(title="broken")
    assert provider.shape() == (["look", "final_answer"], False)
    plain = Scripted([Call("final_answer", {"title": "broken"})])
    assert run(database, plain, output_mode="native").output == Ticket(title="broken")


def test_a_model_that_refuses_the_mode_is_asked_with_the_tool_at_once_and_from_then_on(database: Database) -> None:
    provider = Native(Call("look"), Call("final_answer", {"title": "broken"}), refuses=True)
    assert run(database, provider).output == Ticket(title="broken")
    tools = (["look", "final_answer"], False)
    assert [provider.shape(number) for number in range(len(provider.asked))] == [(["look"], True), tools, tools]
    # What is wrong with any other request is not held against the mode.
    other = Native(ProviderError("request_rejected", "no"), name="other")
    with pytest.raises(RunFailedError):
        run(database, other)
    assert len(other.asked) == 2
    other = Native(ANSWER, name="other")
    assert run(database, other).output == Ticket(title="broken")
    assert other.shape() == (["look"], True)


def test_a_mode_that_is_asked_for_is_not_given_up(database: Database) -> None:
    provider = Native(ANSWER, refuses=True)
    with pytest.raises(RunFailedError) as caught:
        run(database, provider, output_mode="native")
    assert caught.value.code == "provider_request_rejected"
    assert len(provider.asked) == 1


def test_an_answer_by_the_tool_is_taken_in_any_mode(database: Database) -> None:
    provider = Native(Call("final_answer", {"title": "broken"}))
    assert run(database, provider).output == Ticket(title="broken")


def test_an_answer_that_the_mode_did_not_hold_to_the_schema_is_asked_for_again(database: Database) -> None:
    provider = Native('{"titel": "broken"}', ANSWER)
    assert run(database, provider).output == Ticket(title="broken")
    assert "title: required" in str(provider.asked[1].messages[-1])


# ---------------------------------------------------------------------------------------------- on the wire


def chat(text: str) -> dict[str, Any]:
    return {"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": text}}]}


def messages(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": {}}


def asked(fake: FakeServer) -> dict[str, Any]:
    body: dict[str, Any] = fake.asked[-1].body
    return body


def test_openai_is_given_a_strict_response_format(database: Database) -> None:
    with serve(response(chat('{"title": "broken", "urgent": true}'))) as fake:
        result = run(database, OpenAIChat("openai", base_url=fake.url, api_key="k", model="m"))
    assert result.output == Ticket(title="broken", urgent=True)
    form = asked(fake)["response_format"]
    assert form["json_schema"]["strict"] is True
    assert form["json_schema"]["schema"]["required"] == ["title", "urgent"]
    assert [item["function"]["name"] for item in asked(fake)["tools"]] == ["look"]


def test_anthropic_is_given_an_output_format(database: Database) -> None:
    with serve(response(messages(ANSWER))) as fake:
        result = run(database, Anthropic(base_url=fake.url, api_key="k", model="m"))
    assert result.output == Ticket(title="broken")
    form = asked(fake)["output_config"]["format"]
    assert (form["type"], form["schema"]["required"]) == ("json_schema", ["title"])
    assert [item["name"] for item in asked(fake)["tools"]] == ["look"]


@pytest.mark.parametrize("mode", ["auto", "native"])
def test_a_compatible_server_is_given_the_tool_unless_it_is_told_to(database: Database, mode: Any) -> None:
    with serve(response(chat(ANSWER))) as fake:
        run(database, OpenAIChat("vllm", base_url=fake.url, model="m"), output_mode=mode)
    names = [item["function"]["name"] for item in asked(fake)["tools"]]
    assert ("response_format" in asked(fake), "final_answer" in names) == (mode == "native", mode == "auto")


def test_a_schema_beyond_the_mode_goes_out_as_a_tool(database: Database) -> None:
    with serve(response(chat('{"a": 1}'))) as fake:
        provider = OpenAIChat("openai", base_url=fake.url, api_key="k", model="m")
        test = Agent("test", model=provider, output=dict[str, int])
        assert Drain(database, test).run(test).output == {"a": 1}
        assert "response_format" not in asked(fake)
        assert [item["function"]["name"] for item in asked(fake)["tools"]] == ["final_answer"]
        native = Agent("native", model=provider, output=dict[str, int], output_mode="native")
        assert Drain(database, native).run(native).output == {"a": 1}
        assert asked(fake)["response_format"]["json_schema"]["strict"] is False


def test_an_older_model_that_answers_400_is_asked_with_the_tool(database: Database) -> None:
    def answer(asked: Asked) -> list[bytes]:
        if "output_config" in asked.body:
            error = {"type": "invalid_request_error", "message": "output_config: Extra inputs are not permitted"}
            return response({"type": "error", "error": error}, status=400)
        call = {"type": "tool_use", "id": "c1", "name": "final_answer", "input": {"title": "broken"}}
        return response({"content": [call], "stop_reason": "tool_use", "usage": {}})

    with serve(answer) as fake:
        provider = Anthropic(base_url=fake.url, api_key="k", model="m")
        for number in (2, 3):
            result = run(database, provider)
            assert result.output == Ticket(title="broken")
            assert len(fake.asked) == number


def test_a_response_format_in_the_settings_is_the_users_own(database: Database) -> None:
    settings = {"response_format": {"type": "json_object"}}
    with serve(response(chat(ANSWER))) as fake:
        run(database, OpenAIChat("openai", base_url=fake.url, api_key="k", model="m"), model_settings=settings)
    assert asked(fake)["response_format"] == {"type": "json_object"}
