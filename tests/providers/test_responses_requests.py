"""Responses requests: what official types and the order of items want, for recorded conversations and our own."""

import itertools
import json
from base64 import b64encode
from typing import Any

import pytest
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from pydantic import TypeAdapter

from agentq import File, Image
from agentq.content import joined
from agentq.errors import ProviderError
from agentq.inputs import checked_message
from agentq.messages import AssistantMessage, Message, ToolCall, ToolMessage, ToolResult, UserMessage
from agentq.output import OutputSchema
from agentq.providers import anthropic, openai_chat
from agentq.providers.anthropic_reply import read_reply as read_messages
from agentq.providers.base import ModelRequest, ToolSpec
from agentq.providers.chat_reply import read_reply as read_chat
from agentq.providers.openai_responses import OpenAIResponses, request_body
from agentq.providers.profiles import PROFILES
from agentq.providers.registry import missing_key, resolve
from agentq.providers.responses_reply import read_reply
from agentq.results import to_content
from tests.images import PDF, png
from tests.providers.fake_server import Asked, response, serve
from tests.providers.rows import BY_ID as OTHERS
from tests.providers.test_official_types import FILES, IMAGES, SEEN, TRANSCRIPT, Ticket, walk
from tests.providers.test_responses import BY_ID, ROWS, kept, output_of, sent

# Kept here: an adapter that is freed while its lazy lists are read brings pydantic down.
PLAIN: TypeAdapter[Any] = TypeAdapter(ResponseCreateParamsNonStreaming)
STREAMING: TypeAdapter[Any] = TypeAdapter(ResponseCreateParamsStreaming)
REQUESTS = [row for row in ROWS if row["request"]]
OURS = {"model", "input", "instructions", "tools", "store", "stream"}
TOOLS = [ToolSpec("look", "Look.", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})]
PNG = b64encode(png()).decode()


def check(body: dict[str, Any]) -> None:
    """A request that is one to the official client, and whose items are in an order that the API takes."""
    assert walk(PLAIN.validate_python(body)) == body
    assert walk(STREAMING.validate_python(body | {"stream": True})) == body | {"stream": True}
    assert body["store"] is False
    assert all("strict" in tool for tool in body.get("tools", ()) if tool["type"] == "function")
    check_order(body["input"])


def check_order(items: list[dict[str, Any]]) -> None:
    open_calls: list[str] = []
    for item, later in itertools.pairwise([*items, {"role": "user"}]):
        match item.get("type", item.get("role")):
            case "function_call":
                open_calls.append(item["call_id"])
            case "function_call_output":
                open_calls.remove(item["call_id"])
            case "user":
                assert not open_calls
            case "reasoning":
                # What it led to is the model's own item, and no text that was said in its place.
                assert "id" in later
                assert later.get("role") != "user"
                assert later["type"] != "function_call_output"
    assert not open_calls
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    assert len(set(calls)) == len(calls)
    assert all(0 < len(call_id) <= 64 for call_id in calls)


# ---------------------------------------------------------------------------------------------- recorded conversations


def transcript_of(row: dict[str, Any]) -> list[Message]:
    """The recorded request in neutral words, the model's own items as we had read them."""
    given, messages, own = row["request"]["body"]["input"], list[Message](), list[dict[str, Any]]()
    names = {item["call_id"]: item["name"] for item in given if isinstance(item, dict) and "name" in item}

    def close() -> None:
        if own:
            messages.append(kept(read_reply({"output": own[:]}, f"{row['provider']}-responses", "m").message))
            own.clear()

    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        if item.get("type", "message") not in ("message", "function_call_output"):
            own.append(item)
            continue
        close()
        if item.get("type") == "function_call_output":
            text, media = content_of(item["output"])
            call_id = item["call_id"]
            result = ToolResult(call_id=call_id, name=names[call_id], text=text, media=media)
            messages.append(ToolMessage(result=result))
        elif item["role"] == "assistant":
            # Put there by the client: nobody's own.
            messages.append(AssistantMessage(text=content_of(item["content"])[0]))
        else:
            text, media = content_of(item["content"])
            messages.append(UserMessage(text=text, media=media))
    close()
    return messages


def content_of(content: Any) -> tuple[str, Any]:
    if isinstance(content, str):
        return content, ()
    made = {
        "input_text": lambda part: part["text"],
        "output_text": lambda part: part["text"],
        "input_image": lambda part: Image.from_url(part["image_url"]),
        "input_file": lambda part: File.from_url(part["file_url"]),
    }
    return joined([made[part["type"]](part) for part in content])


def request_of(row: dict[str, Any]) -> ModelRequest:
    body = row["request"]["body"]
    settings = {key: value for key, value in body.items() if key not in OURS}
    specs = []
    for tool in body.get("tools", ()):
        if tool["type"] == "function":
            specs.append(ToolSpec(tool["name"], tool.get("description") or "", tool["parameters"]))
        else:
            settings.setdefault("tools", []).append(tool)
    return ModelRequest("m", body.get("instructions") or "", transcript_of(row), specs, settings)


@pytest.mark.parametrize("row", REQUESTS, ids=[row["id"] for row in REQUESTS])
def test_a_recorded_request_as_we_make_it_is_one_to_the_official_client(row: dict[str, Any]) -> None:
    body = request_body(request_of(row), f"{row['provider']}-responses")
    recorded = row["request"]["body"]
    check(body)
    assert body["include"][-1] == "reasoning.encrypted_content"
    for key in ("instructions", "tool_choice", "reasoning", "text", "parallel_tool_calls", "previous_response_id"):
        if recorded.get(key) and (key != "tool_choice" or recorded.get("tools")):
            assert body[key] == recorded[key]
    named = [{(tool["type"], tool.get("name")) for tool in each.get("tools", ())} for each in (body, recorded)]
    assert named[0] == named[1]


def test_a_request_that_was_refused_for_its_order_is_refused_by_our_rules_too() -> None:
    with pytest.raises(AssertionError):
        check_order(BY_ID["openai-responses-923963-t1"]["request"]["body"]["input"])
    for items in (CALLS, [CALLS[0], {"role": "user"}], [REASONING], [REASONING, {"role": "user", "id": ""}]):
        with pytest.raises(AssertionError):
            check_order(items)


# What the recorded client left out of the items it sent back, or said in their place.
LEFT_OUT = {"openai-responses-44c33d": {"id", "status"}, "openai-responses-c7ad07": {"status"}}


@pytest.mark.parametrize(
    "conversation", ["openai-responses-44c33d", "openai-responses-c7ad07", "openai-responses-f582a4"]
)
def test_a_recorded_conversation_goes_on_as_it_did(conversation: str) -> None:
    first, later = BY_ID[f"{conversation}-t0"], BY_ID[f"{conversation}-t1"]
    reply = kept(read_reply(first["response"]["body"], "openai-responses", "m").message)
    results = [message for message in transcript_of(later) if isinstance(message, ToolMessage)]
    again = sent("openai-responses", "m", UserMessage(text="u"), reply, *results)[1:]
    left_out = LEFT_OUT.get(conversation, set())
    recorded = [item for item in later["request"]["body"]["input"][1:] if item.get("role") != "assistant"]
    if conversation == "openai-responses-c7ad07":
        # The sound file is refused there; we tell of it in words.
        assert again[-1]["output"][0]["type"] == "input_text"
        again[-1]["output"] = recorded[-1]["output"]
    assert [{k: v for k, v in item.items() if k not in left_out} for item in again] == recorded


def test_reasoning_goes_back_byte_for_byte_with_what_it_led_to() -> None:
    items = output_of(BY_ID["openai-responses-923963-t0"])
    reply = kept(read_reply({"output": items}, "openai-responses", "m").message)
    again = sent("openai-responses", "m", UserMessage(text="u"), reply, UserMessage(text="more"))
    assert json.dumps(again[1:3]) == json.dumps(items)


# ---------------------------------------------------------------------------------------------- a change of provider


def answered(reply: AssistantMessage) -> list[Message]:
    results = [ToolResult(call_id=call.id, name=call.name, text=f"of {call.name}") for call in reply.calls]
    return [reply, *(ToolMessage(result=result) for result in results)]


def test_a_thread_goes_from_provider_to_provider_and_each_gets_its_own_reasoning_only() -> None:
    claude = read_messages(OTHERS["anthropic-a988d8-t0"]["response"]["body"], "anthropic", "m").message
    gpt = read_reply({"output": output_of(BY_ID["openai-responses-c7ad07-t0"])}, "openai-responses", "m").message
    chat = read_chat(OTHERS["openai-chat-94fa27-t0"]["response"]["body"], "openai", "m").message
    odd = AssistantMessage(calls=tuple(ToolCall(id=i, name="look", arguments="{}") for i in ("a:0", "x" * 900)))
    replies = [kept(reply) for reply in (claude, gpt, chat, odd)]
    thread: list[Message] = [UserMessage(text="go"), *itertools.chain.from_iterable(map(answered, replies))]
    before = [message.model_dump() for message in thread]
    tools = [ToolSpec(name, "", {"type": "object"}) for name in {call.name for r in replies for call in r.calls}]
    request = ModelRequest("m", "Be kind.", thread, tools)

    body = request_body(request, "openai-responses")
    check(body)
    calls = [item for item in body["input"] if item.get("type") == "function_call"]
    assert [call["name"] for call in calls] == [call.name for reply in replies for call in reply.calls]
    results = {i["call_id"]: i["output"] for i in body["input"] if i.get("type") == "function_call_output"}
    assert [results[call["call_id"]] for call in calls] == [f"of {call['name']}" for call in calls]
    assert [i for i in body["input"] if i.get("type") == "reasoning"] == output_of(BY_ID["openai-responses-c7ad07-t0"])[
        :1
    ]
    assert [call["call_id"] for call in calls[:-2]] == [call.id for r in replies[:-1] for call in r.calls]

    to_claude = json.dumps(anthropic.request_body(request, "anthropic"))
    to_chat = json.dumps(openai_chat.request_body(request, "openai", PROFILES["openai"]))
    thinking = OTHERS["anthropic-a988d8-t0"]["response"]["body"]["content"][0]["signature"]
    encrypted = output_of(BY_ID["openai-responses-c7ad07-t0"])[0]["encrypted_content"]
    found = [[secret in text for secret in (thinking, encrypted)] for text in (to_claude, json.dumps(body), to_chat)]
    assert found == [[True, False], [False, True], [False, False]]
    assert [message.model_dump() for message in thread] == before


# ---------------------------------------------------------------------------------------------- our own


@pytest.mark.parametrize("transcript", [TRANSCRIPT, SEEN, [*SEEN, UserMessage(text="more")]])
def test_a_request_is_one_to_the_official_client(transcript: list[Message]) -> None:
    body = request_body(ModelRequest("m", "Be kind.", transcript, TOOLS, {"max_tokens": 100}), "openai-responses")
    check(body)
    assert (body["instructions"], body["max_output_tokens"]) == ("Be kind.", 100)


@pytest.mark.parametrize("schema", [OutputSchema(Ticket).schema, OutputSchema(dict[str, int]).schema])
def test_a_request_for_a_typed_answer_is_one_to_the_official_client(schema: Any) -> None:
    output = OpenAIResponses().output_format(schema, forced=True)
    settings = {"text": {"verbosity": "low"}}
    body = request_body(ModelRequest("m", "", TRANSCRIPT, TOOLS, settings, output=output), "openai-responses")
    check(body)
    assert body["text"]["format"]["strict"] == (schema["properties"] != {})
    assert body["text"]["verbosity"] == "low"
    assert OpenAIResponses("xai").output_format(schema, forced=False) is None


def test_nothing_is_sent_that_was_not_asked_for_but_what_makes_it_stateless() -> None:
    assert request_body(ModelRequest("m", " ", [UserMessage(text="hi")]), "openai-responses") == {
        "model": "m",
        "input": [{"role": "user", "content": "hi"}],
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    settings = {"store": True, "include": ["message.output_text.logprobs"], "stream": True, "temperature": 0}
    body = request_body(ModelRequest("m", "", [UserMessage(text="hi")], settings=settings), "openai-responses")
    assert (body["store"], body["temperature"], "stream" in body) == (True, 0, False)
    assert body["include"] == ["message.output_text.logprobs", "reasoning.encrypted_content"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_tokens": 5}, {"max_output_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_output_tokens": 5}),
        ({"max_output_tokens": 5}, {"max_output_tokens": 5}),
        ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
        (
            {"reasoning_effort": "low", "reasoning": {"summary": "auto"}},
            {"reasoning": {"effort": "low", "summary": "auto"}},
        ),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        ({"tool_choice": "none"}, {"tool_choice": "none"}),
        ({"tool_choice": "look"}, {"tool_choice": {"type": "function", "name": "look"}}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "look"}}},
            {"tool_choice": {"type": "function", "name": "look"}},
        ),
        ({"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, {"parallel_tool_calls": False}),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
    ],
)
def test_settings_have_the_names_and_forms_of_this_api(settings: Any, said: Any) -> None:
    body = request_body(ModelRequest("m", "", [UserMessage(text="go")], TOOLS, settings), "openai-responses")
    check(body)
    assert body | said == body
    names = {"reasoning_effort", "max_tokens", "max_completion_tokens"}
    assert not names & body.keys()


def test_images_and_files_have_parts_of_their_own_and_an_error_says_so_in_words() -> None:
    seen = UserMessage(**checked_message(["look", IMAGES[0], FILES[1], File.from_url("https://x.invalid/r.pdf")]))
    text, media = to_content(["see", IMAGES[0], File.from_bytes(b"PK", media_type="application/zip", name="a.zip")])
    call = AssistantMessage(calls=(ToolCall(id="a", name="look", arguments="{}"),))
    result = ToolResult(call_id="a", name="look", text=text, media=media, status="error")
    items = sent("openai-responses", "m", seen, call, ToolMessage(result=result))
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
    pdf = f"data:application/pdf;base64,{b64encode(PDF).decode()}"
    assert items[0]["content"] == [
        {"type": "input_text", "text": "look"},
        image,
        {"type": "input_file", "filename": "r.pdf", "file_data": pdf},
        {"type": "input_file", "file_url": "https://x.invalid/r.pdf"},
    ]
    error, see, shown, told = items[2]["output"]
    assert (error["text"], see["text"], shown) == ("Error:", "see", image)
    assert "a.zip" in told["text"]
    assert "cannot take it" in told["text"]
    archive = UserMessage(**checked_message([File.from_bytes(b"PK", media_type="application/zip")]))
    with pytest.raises(ProviderError) as caught:
        sent("openai-responses", "m", archive)
    assert caught.value.kind == "content_unsupported"


@pytest.mark.parametrize(("status", "said"), [("error", "Error: no"), ("rejected", "Rejected: no"), ("success", "no")])
def test_a_result_says_in_words_that_it_is_an_error(status: Any, said: str) -> None:
    call = AssistantMessage(calls=(ToolCall(id="a", name="look", arguments="{}"),))
    result = ToolResult(call_id="a", name="look", text="no", status=status)
    assert sent("openai-responses", "m", call, ToolMessage(result=result))[-1]["output"] == said


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
TEXT = {"type": "message", "id": "msg_1", "role": "assistant", "phase": "commentary", "status": "completed"}
SAID = {**TEXT, "content": [{"type": "output_text", "annotations": [], "text": "One."}]}
CALLS = [
    {"type": "function_call", "id": f"fc_{n}", "call_id": n, "name": "look", "arguments": f'{{"n": {n}}}'} for n in "12"
]


def own(*items: dict[str, Any], server: str = "openai", **document: Any) -> AssistantMessage:
    return kept(read_reply({"output": list(items), **document}, f"{server}-responses", "m").message)


def test_reasoning_that_led_to_nothing_does_not_go_back() -> None:
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert sent("openai-responses", "m", own(REASONING, **cut)) == []
    assert sent("openai-responses", "m", own(SAID, REASONING, **cut)) == [SAID]


@pytest.mark.parametrize("change", [{"text": "Another text."}, {"calls": ()}])
def test_a_reply_that_a_hook_has_changed_goes_back_as_text_and_calls(change: Any) -> None:
    reply = own(REASONING, SAID, CALLS[0]).model_copy(update=change)
    items = sent("openai-responses", "m", reply)
    assert items[0] == {"type": "message", "role": "assistant", "content": reply.text}
    assert [(item["call_id"], item["arguments"]) for item in items[1:]] == [(c.id, c.arguments) for c in reply.calls]
    assert all("id" not in item for item in items)


def test_a_call_whose_id_or_arguments_were_changed_is_still_the_item_it_was() -> None:
    call = ToolCall(id="1_7_0", name="look", arguments='{"n": 9}')
    items = sent("openai-responses", "m", own(REASONING, CALLS[0]).model_copy(update={"calls": (call,)}))
    assert items == [REASONING, {**CALLS[0], "call_id": "1_7_0", "arguments": '{"n": 9}'}]


def test_items_keep_their_order_but_for_deepseek_which_wants_calls_last() -> None:
    mixed = [REASONING, CALLS[0], {**REASONING, "id": "rs_2"}, SAID, CALLS[1]]
    assert sent("openai-responses", "m", own(*mixed)) == mixed
    grouped = sent("deepseek-responses", "m", own(*mixed, server="deepseek"))
    assert grouped == [mixed[0], mixed[2], mixed[3], mixed[1], mixed[4]]


# ---------------------------------------------------------------------------------------------- refused requests

GOOD = {"status": "completed", "output": [SAID]}


def refusal(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": "include", "code": code}}


def test_a_model_without_encrypted_reasoning_is_asked_again_without_it_and_then_never_again() -> None:
    def answer(asked: Asked) -> Any:
        if "include" in asked.body:
            return response(refusal("Encrypted content is not supported with this model."), 400)
        return response(GOOD)

    request = ModelRequest("no-reasoning-1", "", [UserMessage(text="hi")])
    with serve(answer) as server:
        for _ in range(2):
            provider = OpenAIResponses(base_url=server.url, api_key="sk-test-key")
            assert provider.complete(request).message.text == "One."
    assert ["include" in asked.body for asked in server.asked] == [True, False, False]


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (400, "The encrypted content gAAA could not be verified.", "invalid_encrypted_content"),
        (400, "Item 'rs_1' of type 'reasoning' was provided without its required following item.", None),
        (404, "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.", None),
    ],
)
def test_a_thread_whose_items_are_not_taken_back_goes_on_with_texts_and_calls(
    status: int, message: str, code: str | None
) -> None:
    def answer(asked: Asked) -> Any:
        if any(item.get("type") == "reasoning" for item in asked.body["input"]):
            return response(refusal(message, code), status)
        return response(GOOD)

    thread = [UserMessage(text="hi"), own(REASONING, SAID), UserMessage(text="more")]
    with serve(answer) as server:
        reply = OpenAIResponses(base_url=server.url, api_key="k").complete(ModelRequest("m", "", thread))
    assert reply.message.text == "One."
    assert [len(asked.body["input"]) for asked in server.asked] == [4, 3]
    assert server.asked[1].body["input"][1] == {"type": "message", "role": "assistant", "content": "One."}


def test_any_other_refusal_is_not_tried_again() -> None:
    answer = response(refusal("Unsupported parameter: 'temperature' is not supported."), 400)
    with serve(answer) as server, pytest.raises(ProviderError) as caught:
        OpenAIResponses(base_url=server.url, api_key="k").complete(ModelRequest("m", "", [UserMessage(text="hi")]))
    assert caught.value.kind == "request_rejected"
    assert len(server.asked) == 1


# ---------------------------------------------------------------------------------------------- names and addresses


@pytest.mark.parametrize(
    ("model", "variable", "prefix"),
    [("openai-responses:m", "OPENAI", ""), ("xai-responses:m", "XAI", ""), ("ollama-responses:q:1b", "OLLAMA", "/v1")],
)
def test_a_server_is_named_with_the_api_it_is_to_be_asked_by(
    model: str, variable: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(f"{variable}_API_KEY", raising=False)
    if variable != "OLLAMA":
        assert missing_key(model) == f"{variable}_API_KEY"
    provider, name = resolve(model)
    with serve(response(GOOD)) as server:
        monkeypatch.setenv(f"{variable}_BASE_URL", server.url + prefix)
        monkeypatch.setenv(f"{variable}_API_KEY", "sk-test-key")
        assert provider.complete(ModelRequest(name, "", [UserMessage(text="hi")])).message.provider == provider.name
    assert (provider.name, name) == tuple(model.split(":", 1))
    assert server.asked[0].path == f"{prefix}/responses"
    assert server.asked[0].headers["authorization"] == "Bearer sk-test-key"


@pytest.mark.parametrize(
    ("address", "version", "path"),
    [
        ("", "", "/openai/v1/responses"),
        ("/openai/v1", "2025-04-01-preview", "/openai/v1/responses"),
        ("", "2025-04-01-preview", "/openai/responses?api-version=2025-04-01-preview"),
    ],
)
def test_azure_is_called_by_its_address_and_version(
    address: str, version: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_VERSION", version)
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "sk-test-key")
    with serve(response(GOOD)) as server:
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.url + address)
        provider, model = resolve("azure-responses:my-gpt")
        provider.complete(ModelRequest(model, "", [UserMessage(text="hi")]))
    asked = server.asked[0]
    assert (asked.path, asked.headers["api-key"], asked.body["model"]) == (path, "sk-test-key", "my-gpt")


def test_chat_completions_can_be_asked_for_by_name() -> None:
    assert repr(resolve("openai-chat:gpt-5.2")[0]) == repr(resolve("openai:gpt-5.2")[0]) == "OpenAIChat('openai')"
