"""What our fake servers say is checked by the official clients at their strictest; and we read it as they do."""

import json
from typing import Any

import anthropic
import openai
import pytest

from agentq.messages import AssistantMessage, UserMessage
from agentq.providers.anthropic import Anthropic
from agentq.providers.base import ModelRequest, Provider
from agentq.providers.openai_chat import OpenAIChat
from tests.providers.fake_server import Asked, serve
from tests.providers.stubs import answer, chat_reply, messages_reply

KEY = "sk-test-0123456789"
CALLS = [("call_1", "look", '{"n": 1}'), ("call_2", "see", "{}")]
THINKING = {"type": "thinking", "thinking": "hm", "signature": "S+/="}
CHAT = {"text": chat_reply("hé!"), "calls": chat_reply(None, CALLS), "cut": chat_reply("h", finish_reason="length")}
MESSAGES = {
    "text": messages_reply("hé!"),
    "calls": messages_reply("", CALLS, before=[THINKING]),
    "cut": messages_reply("h", stop_reason="max_tokens"),
}
each_way = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
each_kind = pytest.mark.parametrize("kind", ["text", "calls", "cut"])


def ours(provider: Provider, *, streamed: bool) -> AssistantMessage:
    show = {"on_delta": lambda _: None} if streamed else {}
    return provider.complete(ModelRequest("m", "", [UserMessage(text="hi")], timeout_secs=20, **show)).message


@each_kind
@each_way
def test_a_chat_reply_is_one_to_the_official_client(kind: str, *, streamed: bool) -> None:
    with serve(lambda asked: answer(asked.path, CHAT[kind], streamed=bool(asked.body.get("stream")))) as server:
        client = openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0, _strict_response_validation=True)
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        if streamed:
            with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
                theirs = next_final(stream, kind)
        else:
            theirs = client.chat.completions.create(**asked)
        reply = ours(OpenAIChat(base_url=server.url, api_key=KEY), streamed=streamed)
    if theirs is not None:
        message = theirs.choices[0].message
        calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        assert reply.text == (message.content or "")
        assert [(call.id, call.name, call.arguments) for call in reply.calls] == calls
    assert reply.stop == {"text": "final", "calls": "tool_calls", "cut": "length"}[kind]


def next_final(stream: Any, kind: str) -> Any:
    """The whole of it; their helper refuses to give one that was cut."""
    if kind == "cut":
        with pytest.raises(openai.LengthFinishReasonError):
            stream.get_final_completion()
        return None
    return stream.get_final_completion()


@each_kind
@each_way
def test_a_messages_reply_is_one_to_the_official_client(kind: str, *, streamed: bool) -> None:
    with serve(lambda asked: answer(asked.path, MESSAGES[kind], streamed=bool(asked.body.get("stream")))) as server:
        client = anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0, _strict_response_validation=True)
        asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        if streamed:
            with client.messages.stream(**asked) as stream:
                theirs = stream.get_final_message()
        else:
            theirs = client.messages.create(**asked)
        reply = ours(Anthropic(base_url=server.url, api_key=KEY), streamed=streamed)
    text = "".join(block.text for block in theirs.content if block.type == "text")
    calls = [(block.id, block.name, block.input) for block in theirs.content if block.type == "tool_use"]
    kept = [block.to_dict() for block in theirs.content if block.type == "thinking"]
    assert reply.text == text
    assert [(call.id, call.name, json.loads(call.arguments)) for call in reply.calls] == calls
    assert [reasoning.data["block"] for reasoning in reply.reasoning] == kept
    assert reply.stop == {"text": "final", "calls": "tool_calls", "cut": "length"}[kind]


def test_what_we_send_is_what_the_official_clients_send() -> None:
    bodies = list[Asked]()

    def note(asked: Asked) -> Any:
        bodies.append(asked)
        return answer(asked.path, (MESSAGES if asked.path.endswith("/messages") else CHAT)["text"], streamed=False)

    with serve(note) as server:
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY).chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], max_completion_tokens=9, stop=["x"]
        )
        anthropic.Anthropic(base_url=server.url, api_key=KEY).messages.create(
            model="m",
            messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            max_tokens=9,
            stop_sequences=["x"],
        )
        request = ModelRequest("m", "", [UserMessage(text="hi")], settings={"max_tokens": 9, "stop": ["x"]})
        OpenAIChat(base_url=f"{server.url}/v1", api_key=KEY).complete(request)
        Anthropic(base_url=server.url, api_key=KEY).complete(request)
    chat, messages, our_chat, our_messages = bodies
    for theirs, own in ((chat, our_chat), (messages, our_messages)):
        assert (own.path, own.body) == (theirs.path, theirs.body)
    assert our_chat.headers["authorization"] == chat.headers["authorization"]
    # Their client goes to newer versions of the API by itself, which say it in another header; ours stays with one.
    assert our_messages.headers["anthropic-version"] == "2023-06-01"
    assert our_messages.headers["x-api-key"] == KEY
