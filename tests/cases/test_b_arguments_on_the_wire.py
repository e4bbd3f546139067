"""B1, B4: arguments that are empty, null, wrapped or of another type; and calls that the output limit has cut."""

import json
from typing import Any

import pytest

from agentq import Agent, ToolResult, tool
from agentq.providers.anthropic import Anthropic
from agentq.providers.openai_chat import OpenAIChat
from agentq.storage.database import Database
from tests.cases.stored import assert_over, results
from tests.cases.wire import KEY, Api, each_api, played, run
from tests.providers.fake_server import response
from tests.providers.stubs import chat_reply, messages_reply

taken: list[Any] = []


@tool
def now() -> str:
    """Tell the time."""
    taken.append("now")
    return "noon"


@tool
def look(city: str) -> str:
    """Look."""
    taken.append(city)
    return city


@tool
def page(limit: int = 10) -> str:
    """Turn a page."""
    taken.append(limit)
    return str(limit)


@tool
def label(tags: list[str]) -> str:
    """Label."""
    taken.append(tags)
    return "labelled"


@tool
def note(note: str) -> str:
    """Note."""
    taken.append(note)
    return "noted"


TOOLS = [now, look, page, label, note]
# The tool, its arguments as the model writes them, what it was called with, and else what its error says.
ARGUMENTS: list[tuple[str, str, Any, str]] = [
    ("now", "", "now", ""),
    ("now", " ", "now", ""),
    ("now", "null", "now", ""),
    ("now", "{}", "now", ""),
    ("look", "", None, "city: required"),
    ("look", " ", None, "city: required"),
    ("look", "null", None, "city: required"),
    ("look", "{}", None, "city: required"),
    ("look", '"{\\"city\\":\\"Oslo\\"}"', "Oslo", ""),
    ("page", '{"limit": null}', 10, ""),
    ("page", '{"limit": "5"}', 5, ""),
    ("page", '{"limit": 5.0}', 5, ""),
    ("page", '{"limit": 5.5}', None, "limit"),
    ("label", '{"tags": "[\\"a\\",\\"b\\"]"}', ["a", "b"], ""),
    ("note", '{"note": "[1]"}', "[1]", ""),
    ("note", '{"note": null}', None, "note"),
]


def with_inputs(document: dict[str, Any], arguments: list[str]) -> dict[str, Any]:
    """A Messages document with these inputs; what is no JSON comes as the text that it is."""
    uses = [block for block in document["content"] if block["type"] == "tool_use"]
    for block, text in zip(uses, arguments, strict=True):
        block["input"] = json.loads(text) if text.strip() else text
    return document


@each_api
def test_b1_arguments_are_taken_by_one_rule_at_each_provider(database: Database, api: Api) -> None:
    taken.clear()
    calls = [(f"call_{n}", name, "{}") for n, (name, _, _, _) in enumerate(ARGUMENTS)]
    given = [arguments for _, arguments, _, _ in ARGUMENTS]
    asks = api.reply("", calls)
    if api.name == "chat":
        for call, text in zip(asks["choices"][0]["message"]["tool_calls"], given, strict=True):
            call["function"]["arguments"] = text
    else:
        asks = with_inputs(asks, given)
    with played([asks, api.reply("done")]) as server:
        handle = run(database, Agent("test", model=api.provider(server.url), tools=TOOLS))
    assert handle.result().text == "done"
    back = results(handle)
    assert [result.status for result in back] == ["error" if text else "success" for _, _, _, text in ARGUMENTS]
    for result, (_, _, _, text) in zip(back, ARGUMENTS, strict=True):
        assert text in result.text
    ran = [value for _, _, value, text in ARGUMENTS if not text]
    assert sorted(map(repr, taken)) == sorted(map(repr, ran))
    assert_over(database, handle)


@tool
def write(path: str, content: str) -> str:
    """Write a file."""
    taken.append((path, content))
    return "written"


HALF, LACKING, WHOLE = '{"path":"a","content":"hel', '{"path":"a"}', '{"path":"a","content":"x"}'
CUT = [
    ("chat", HALF, "length", False),
    ("chat", HALF, "tool_calls", False),
    ("chat", LACKING, "length", False),
    ("chat", WHOLE, "stop", True),
    ("messages", LACKING, "max_tokens", False),
    ("messages", "{}", "max_tokens", False),
    ("messages", WHOLE, "end_turn", True),
]


@pytest.mark.parametrize(("name", "arguments", "reason", "runs"), CUT)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("then", ["the same", "the other"])
def test_b4_a_cut_call_does_not_run_and_the_next_request_is_one_that_any_provider_takes(
    database: Database, name: str, arguments: str, reason: str, *, runs: bool, streamed: bool, then: str
) -> None:
    taken.clear()
    api = Api(name, streamed)
    asks = api.reply("", [("a", "write", "{}")], **{"finish_reason" if name == "chat" else "stop_reason": reason})
    if name == "chat":
        asks["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = arguments
    else:
        asks = with_inputs(asks, [arguments])
    later: Any = api.reply("done") if then == "the same" else lambda _: response(b"", 503)
    other = messages_reply("done") if name == "chat" else chat_reply("done")
    with played([asks, later]) as server, played([other]) as second:
        claude = Anthropic(base_url=second.url, api_key=KEY, model="m")
        fallback = claude if name == "chat" else OpenAIChat(base_url=second.url, api_key=KEY, model="m")
        handle = run(database, Agent("test", model=api.provider(server.url), fallback=[fallback], tools=[write]))
    assert handle.result().text == "done"
    (result,) = results(handle)
    assert taken == ([("a", "x")] if runs else [])
    assert (result.status == "success") is runs
    assert runs or told_why(result, reason)
    assert_over(database, handle)


def told_why(result: ToolResult, reason: str) -> bool:
    if reason in ("length", "max_tokens"):
        return "limit" in result.text or "cut" in result.text
    return "not valid JSON" in result.text
