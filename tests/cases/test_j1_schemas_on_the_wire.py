"""J1: schemas of tools and answers that strict modes refuse are sent as what they are, and defaults still apply."""

from typing import Any, Literal

import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from agentq import Agent, ConfigError, tool
from agentq.output import OUTPUT_TOOL
from agentq.storage.database import Database
from tests.cases.wire import Api, each_api, played, run
from tests.providers.test_official_types import walk

CHAT: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsNonStreaming)
MESSAGES: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)
taken: list[Any] = []


class Inner(BaseModel):
    """Inside."""

    n: int = 1


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")

    title: str = "none"
    inner: Inner = Field(default=Inner(), description="beside its reference")


@tool
def f(
    d: dict[str, int],
    o: int | None = None,
    tags: list[str] = Field(default_factory=lambda: ["new"]),  # noqa: B008
    k: Literal[1, "x", True, None] = 1,
    pair: tuple[int, str] = (1, "a"),
    inner: Inner = Field(default=Inner(), description="beside its reference"),  # noqa: B008
    **extra: Any,
) -> str:
    """Take all kinds."""
    taken.append((d, o, tags, k, pair, inner, extra))
    return "taken"


@each_api
def test_j1_a_tool_of_all_kinds_is_sent_and_what_is_left_out_has_its_default(database: Database, api: Api) -> None:
    taken.clear()
    with played([api.reply("", [("a", "f", '{"d": {"x": 1}, "more": 2}')]), api.reply("done")]) as server:
        handle = run(database, Agent("test", model=api.provider(server.url), tools=[f]))
    assert handle.result().text == "done"
    assert taken == [({"x": 1}, None, ["new"], 1, (1, "a"), Inner(), {"more": 2})]
    body = {key: value for key, value in server.asked[0].body.items() if key not in ("stream", "stream_options")}
    assert walk((CHAT if api.name == "chat" else MESSAGES).validate_python(body)) == body
    (sent,) = body["tools"]
    assert "strict" not in sent.get("function", sent)
    schema = sent["function"]["parameters"] if api.name == "chat" else sent["input_schema"]
    assert schema["additionalProperties"] is True
    # OpenAI refuses an array of which it is not said what is in it.
    assert api.name != "chat" or schema["properties"]["pair"]["items"] == {}


@each_api
@pytest.mark.parametrize("mode", ["auto", "native", "tool"])
def test_j1_an_answer_with_fields_of_its_own_is_not_held_to_less(database: Database, api: Api, mode: Any) -> None:
    text = '{"title": "x", "more": [1]}'
    is_tool = mode != "native" or api.name == "messages"
    reply = api.reply("", [("a", OUTPUT_TOOL, text)]) if is_tool else api.reply(text)
    with played([reply]) as server:
        agent = Agent("test", model=api.provider(server.url), output=Loose, output_mode=mode)
        handle = run(database, agent)
        assert handle.result().output == Loose.model_validate({"title": "x", "more": [1]})
    form = server.asked[0].body.get("response_format")
    assert (form is None) is is_tool
    assert form is None or form["json_schema"]["strict"] is False


def test_j1_a_parameter_without_a_schema_is_told_when_the_tool_is_made() -> None:
    def bad(x: object, y: "Server") -> str:
        return ""

    bad.__annotations__["y"] = Server
    with pytest.raises(ConfigError, match="tool 'bad': parameter 'y'"):
        tool(bad)


class Server:
    """No JSON."""
