"""Runs with Gemini, by a server that answers as it does: what goes back is what came, and typed answers."""

from typing import Any

import pytest
from pydantic import BaseModel

from agentq import Agent, tool
from agentq.providers.anthropic import Anthropic
from agentq.providers.gemini import Gemini
from agentq.steps import model
from agentq.storage.database import Database
from tests.engine.drain import Drain
from tests.providers.fake_server import response, serve
from tests.providers.gemini_rules import check


class Ticket(BaseModel):
    title: str


@tool
def temperature(city: str) -> str:
    """Measure the temperature."""
    return f"{city}: 20"


@pytest.fixture(autouse=True)
def nothing_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_REFUSED", set())


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP"}]}


def ask(city: str, **more: Any) -> dict[str, Any]:
    own = {"id": more.pop("id")} if "id" in more else {}
    return {"functionCall": {"name": "temperature", "args": {"city": city}, **own}, **more}


def test_calls_without_ids_have_their_own_results_and_what_was_signed_goes_back_as_it_came(database: Database) -> None:
    first = [{"text": "hm", "thought": True}, ask("A", thoughtSignature="U0lH+/8="), ask("B")]
    # The same ids in two turns of one run: each result has that of its own call.
    later = [[ask("C", id="x", thoughtSignature="VA==")], [ask("D", id="x", thoughtSignature="Vg==")]]
    answers = [said(*first), *[said(*parts) for parts in later], said({"text": "done"})]
    with serve(lambda _: response(answers[len(fake.asked) - 1])) as fake:
        test = Agent("test", model=Gemini(base_url=fake.url, api_key="k", model="gemini-3-pro"), tools=[temperature])
        result = Drain(database, test).run(test)
    assert (result.text, result.stop_reason) == ("done", "final_answer")
    for asked in fake.asked:
        check(asked.body)
    sent = fake.asked[-1].body["contents"]
    assert [turn["parts"] for turn in sent if turn["role"] == "model"] == [first, *later]
    back = [part["functionResponse"] for turn in sent for part in turn["parts"] if "functionResponse" in part]
    assert [(each.get("id"), each["response"]["output"]) for each in back] == [
        (None, "A: 20"),
        (None, "B: 20"),
        ("x", "C: 20"),
        ("x", "D: 20"),
    ]


def test_a_run_that_falls_back_in_the_middle_of_its_calls_is_understood_by_the_other(database: Database) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "temperature", "input": {"city": "A"}}
    broke = {"type": "error", "error": {"type": "billing_error", "message": "no credit"}}
    answers = [response({"content": [use], "stop_reason": "tool_use", "usage": {}}), response(broke, 402)]
    with serve(lambda _: answers.pop(0)) as fake, serve(response(said({"text": "20"}))) as gemini:
        test = Agent(
            "test",
            model=Anthropic(base_url=fake.url, api_key="k", model="claude"),
            fallback=[Gemini(base_url=gemini.url, api_key="k", model="gemini-3-pro")],
            tools=[temperature],
        )
        assert Drain(database, test).run(test).text == "20"
    (asked,) = gemini.asked
    check(asked.body)
    assert asked.body["contents"][1]["parts"] == [ask("A", thoughtSignature="skip_thought_signature_validator")]


@pytest.mark.parametrize(("name", "is_native"), [("gemini-3-pro", True), ("gemini-2.5-flash", False)])
def test_a_typed_answer_beside_tools_is_asked_of_newer_models_and_a_tool_to_others(
    database: Database, name: str, is_native: bool
) -> None:
    final = {"functionCall": {"name": "final_answer", "args": {"title": "broken"}}}
    with serve(response(said({"text": '{"title": "broken"}'} if is_native else final))) as fake:
        provider = Gemini(base_url=fake.url, api_key="k", model=name)
        test = Agent("test", model=provider, tools=[temperature], output=Ticket)
        assert Drain(database, test).run(test).output == Ticket(title="broken")
    (asked,) = fake.asked
    names = [each["name"] for each in asked.body["tools"][0]["functionDeclarations"]]
    assert names == (["temperature"] if is_native else ["temperature", "final_answer"])
    assert ("responseJsonSchema" in asked.body.get("generationConfig", {})) == is_native
