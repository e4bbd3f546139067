"""Responses answers: recorded ones as the official client reads them, streamed or not, and those that went wrong."""

import json
import random
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from agentq.errors import ProviderError
from agentq.messages import AssistantMessage, Message, Usage, UserMessage, dump_message, load_message
from agentq.providers.base import Delta, ModelReply, ModelRequest
from agentq.providers.endpoint import stream_events
from agentq.providers.openai_responses import OpenAIResponses, request_body
from agentq.providers.responses_reply import read_reply
from agentq.providers.responses_stream import read_stream
from tests.providers.fake_server import Answer, response, serve
from tests.providers.rows import ORACLE, is_streamed, load, replay

ROWS = [row for name in ("openai_responses", "openai_compatible") for row in load(name)]
ROWS = [row for row in ROWS if row["api"] == "openai_responses"]
BY_ID = {row["id"]: row for row in ROWS}
GOOD = [row for row in ROWS if ORACLE[row["id"]]["ok"]]
STREAMED = [row for row in ROWS if is_streamed(row)]
KINDS = {
    "openai-responses-c7ad07-t1": "content_unsupported",  # a sound file: of a tool's it is told in words
    "openai-responses-851634-t0": "auth_failed",
    "openai-responses-2a3411-t0": "context_too_long",
    "openai-responses-8a7d8e-t0": "model_not_found",
    "openai-responses-923963-t1": "request_rejected",
    "openai-responses-9b3bbb-t0": "request_rejected",  # xAI's word for a wrong key is invalid-argument
    "openai-responses-9b082e-t0": "quota_exceeded",  # as an event of a stream that began well
    "openai-responses-06ac21-t0": "request_rejected",
}
STOPS = {"max_output_tokens": "length", "content_filter": "blocked"}


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


def ask(answer: Answer, server: str = "openai", on_delta: Callable[[Delta], None] | None = None) -> ModelReply:
    with serve(answer) as fake:
        request = ModelRequest("m", "", [UserMessage(text="hello")], timeout_secs=20, on_delta=on_delta)
        return OpenAIResponses(server, base_url=fake.url, api_key="sk-test-key").complete(request)


def output_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a recorded answer."""
    if not is_streamed(row):
        return list(row["response"]["body"]["output"])
    datas = [line.removeprefix("data: ") for line in row["response"]["sse"].splitlines() if line.startswith("data: {")]
    return list(json.loads(datas[-1])["response"]["output"])


@pytest.mark.parametrize("row", GOOD, ids=ids(GOOD))
def test_a_recorded_reply_is_read_as_the_official_client_reads_it(row: dict[str, Any]) -> None:
    oracle, deltas = ORACLE[row["id"]], list[Delta]()
    reply = ask(replay(row), row["provider"], deltas.append if is_streamed(row) else None)
    message = reply.message
    assert [{"id": c.id, "name": c.name, "args": json.loads(c.arguments)} for c in message.calls] == oracle["calls"]
    assert message.text == oracle["text"]
    final = "tool_calls" if oracle["calls"] else "final"
    assert message.stop == (STOPS[oracle["incomplete"]] if oracle["incomplete"] else final)
    assert (message.provider, message.model) == (f"{row['provider']}-responses", "m")
    assert [kept.data["block"]["type"] for kept in message.reasoning] == oracle["item_types"]
    assert reply.usage == usage_of(oracle["usage"])
    if is_streamed(row):
        assert "".join(delta.text for delta in deltas if delta.kind == "text") == message.text
        written = ["".join(d.text for d in deltas if d.call == index) for index in range(len(message.calls))]
        assert written == [call.arguments for call in message.calls]
        assert {d.name for d in deltas if d.kind == "arguments"} == {call.name for call in message.calls}


def usage_of(usage: dict[str, Any]) -> Usage:
    read, written = usage.get("input_tokens_details") or {}, usage.get("output_tokens_details") or {}
    return Usage(
        input_tokens=usage["input_tokens"],
        output_tokens=usage["output_tokens"],
        cache_read_tokens=read.get("cached_tokens"),
        cache_write_tokens=read.get("cache_write_tokens"),
        reasoning_tokens=written.get("reasoning_tokens"),
    )


def test_every_recorded_error_is_listed() -> None:
    assert set(KINDS) == {row["id"] for row in ROWS} - {row["id"] for row in GOOD}


@pytest.mark.parametrize(("row_id", "kind"), KINDS.items())
def test_a_recorded_error_is_of_its_kind(row_id: str, kind: str) -> None:
    row = BY_ID[row_id]
    with pytest.raises(ProviderError) as caught:
        ask(replay(row), row["provider"], (lambda _: None) if is_streamed(row) else None)
    assert caught.value.kind == kind
    if not is_streamed(row):
        assert caught.value.details["status"] == ORACLE[row_id]["status"]


@pytest.mark.parametrize("row", GOOD, ids=ids(GOOD))
def test_all_items_of_a_reply_go_back_as_they_came(row: dict[str, Any]) -> None:
    provider, items = f"{row['provider']}-responses", output_of(row)
    message = kept(read_reply({"status": "completed", "output": items}, provider, "m").message)
    again = sent(provider, "m", message)
    assert [json.dumps(item) for item in again] == [json.dumps(item) for item in items]


def test_what_a_model_has_made_is_kept_once() -> None:
    message = read_reply({"output": output_of(BY_ID["openai-responses-923963-t0"])}, "openai-responses", "m").message
    assert "Biological" in message.text
    assert "Biological" not in json.dumps([block.data for block in message.reasoning])


@pytest.mark.parametrize(
    ("provider", "model"), [("openai-responses", "other"), ("xai-responses", "m"), ("openai", "m")]
)
def test_to_another_model_only_texts_and_calls_go(provider: str, model: str) -> None:
    for row_id in ("openai-responses-923963-t0", "openai-responses-c7ad07-t0"):
        message = read_reply({"output": output_of(BY_ID[row_id])}, "openai-responses", "m").message
        items = sent(provider, model, message)
        assert "gAAA" not in json.dumps(items)
        assert [item.get("content") for item in items if "role" in item] == [message.text][: len(message.text)]
        calls = [(item["call_id"], item["name"], item["arguments"]) for item in items if "name" in item]
        assert calls == [(call.id, call.name, call.arguments) for call in message.calls]


def kept(message: AssistantMessage) -> AssistantMessage:
    """As it is stored and read again."""
    loaded = load_message(dump_message(message))
    assert isinstance(loaded, AssistantMessage)
    return loaded


def sent(provider: str, model: str, *messages: Message) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = request_body(ModelRequest(model, "", messages), provider)["input"]
    return items


# ---------------------------------------------------------------------------------------------- streams


def read(body: bytes, provider: str = "openai-responses") -> ModelReply:
    document = read_stream(stream_events(provider, [body]), provider, lambda _: None)
    return read_reply(document, provider, "m")


@pytest.mark.parametrize("row", STREAMED, ids=ids(STREAMED))
def test_a_stream_that_is_cut_is_an_error_and_never_a_reply(row: dict[str, Any]) -> None:
    sse = row["response"]["sse"].encode()
    end = sse.rstrip().removesuffix(b"data: [DONE]").rstrip()
    borders = [0, *(found.end() for found in re.finditer(rb"\n\n", end))]
    anywhere = random.Random(row["id"]).choices(range(len(end)), k=60)
    kinds = {"network", "reply_invalid"} | ({"quota_exceeded"} if row not in GOOD else set())
    for cut in [*borders, *anywhere, len(end) - 1]:
        with pytest.raises(ProviderError) as caught:
            read(sse[:cut])
        assert caught.value.kind in kinds
    if row in GOOD:
        assert read(end) == read(sse)


def test_a_connection_that_breaks_off_in_a_stream_is_an_error() -> None:
    whole = stream(HI, *DONE, {"type": "response.completed", "response": {"output": [MESSAGE]}})
    body = b"".join(whole)
    with pytest.raises(ProviderError) as caught:
        ask([body[: body.index(b"event: response.completed")]], on_delta=lambda _: None)
    assert caught.value.kind == "network"


@pytest.mark.parametrize("row", STREAMED, ids=ids(STREAMED))
def test_an_event_of_wrong_types_is_a_reply_or_an_error_of_the_provider(row: dict[str, Any]) -> None:
    chance = random.Random(row["id"])
    lines = row["response"]["sse"].splitlines(keepends=True)
    events = [at for at, line in enumerate(lines) if line.startswith("data: {")]
    for _ in range(100):
        # The last one has all of the reply.
        at = chance.choice([chance.choice(events), events[-1]])
        wrong = f"data: {json.dumps(spoiled(json.loads(lines[at][6:]), chance))}\n"
        with suppress(ProviderError):
            sent("openai-responses", "m", read("".join([*lines[:at], wrong, *lines[at + 1 :]]).encode()).message)


def test_an_answer_of_wrong_types_is_a_reply_or_an_error_of_the_provider() -> None:
    chance = random.Random(5)
    for row in [row for row in GOOD if not is_streamed(row)] * 40:
        document = spoiled(json.loads(json.dumps(row["response"]["body"])), chance)
        with suppress(ProviderError):
            sent("openai-responses", "m", read_reply(document, "openai-responses", "m").message)


def spoiled(value: Any, chance: random.Random, depth: int = 0) -> Any:
    """The same with one value of another type somewhere in it, below its first level."""
    if isinstance(value, dict | list) and value and (depth == 0 or chance.random() < 0.85):
        likely = ("response", "output", "item", "delta", "content", "status", "type")
        keys = [key for key in value if key in likely] * 3 if isinstance(value, dict) else []
        key = chance.choice([*keys, *(value if isinstance(value, dict) else range(len(value)))])
        value[key] = spoiled(value[key], chance, depth + 1)
        return value
    return chance.choice([None, True, 5, "x", "", [], {}, [5], {"a": 5}, 1.5, [{}], [None]])


def stream(*events: dict[str, Any]) -> Answer:
    sse = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return response(sse.encode(), content_type="text/event-stream")


MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"n": 1}'}
DONE = [{"type": "response.output_item.done", "output_index": n, "item": i} for n, i in enumerate([MESSAGE, CALL])]
HI = {"type": "response.output_text.delta", "output_index": 0, "delta": "Hi."}


def test_items_without_numbers_come_one_after_the_other() -> None:
    item = {**CALL, "arguments": ""}
    events = []
    for name in ("look", "see"):
        events.append({"type": "response.output_item.added", "item": {**item, "name": name}})
        events.append({"type": "response.function_call_arguments.delta", "delta": '{"n": 1}'})
        events.append({"type": "response.output_item.done", "item": {**CALL, "name": name}})
    deltas: list[Delta] = []
    message = ask(stream(*events, {"type": "response.completed", "response": {}}), on_delta=deltas.append).message
    assert [call.name for call in message.calls] == ["look", "see"]
    assert [(delta.call, delta.name) for delta in deltas] == [(0, "look"), (1, "see")]


def test_where_the_last_event_has_no_output_the_items_as_they_were_done_count() -> None:
    for response_ in ({"status": "completed", "output": []}, {}):
        last = {"type": "response.completed", "response": response_}
        message = ask(stream(HI, *reversed(DONE), last), on_delta=lambda _: None).message
        assert (message.text, message.stop, message.calls[0].arguments) == ("Hi.", "tool_calls", '{"n": 1}')


def test_a_text_that_was_shown_and_is_in_no_item_is_no_empty_reply() -> None:
    with pytest.raises(ProviderError) as caught:
        ask(stream(HI, {"type": "response.completed", "response": {"output": []}}), on_delta=lambda _: None)
    assert caught.value.kind == "reply_invalid"


def test_a_text_that_was_shown_and_then_filtered_is_a_blocked_reply() -> None:
    filtered = {"output": [], "incomplete_details": {"reason": "content_filter"}}
    message = ask(stream(HI, {"type": "response.incomplete", "response": filtered}), on_delta=lambda _: None).message
    assert (message.stop, message.text) == ("blocked", "")


def test_the_last_event_is_the_truth_and_what_was_shown_is_not() -> None:
    last = {"type": "response.completed", "response": {"output": [{**MESSAGE, "content": "Hello."}]}}
    assert ask(stream(HI, *DONE, last), on_delta=lambda _: None).message.text == "Hello."


def test_reasoning_is_shown_with_a_space_between_its_parts() -> None:
    deltas: list[Delta] = []
    events = []
    for index, text in enumerate(["One", "Two"]):
        events.append({"type": "response.reasoning_summary_part.added", "summary_index": index})
        events.append({"type": "response.reasoning_summary_text.delta", "summary_index": index, "delta": text})
    last = {"type": "response.completed", "response": {"output": [MESSAGE]}}
    read_stream(iter([("", event) for event in [*events, last]]), "openai", deltas.append)
    assert "".join(delta.text for delta in deltas if delta.kind == "reasoning") == "One\n\nTwo"


def test_a_server_that_does_not_stream_is_read_all_the_same() -> None:
    assert ask(response({"status": "completed", "output": [MESSAGE]}), on_delta=lambda _: None).message.text == "Hi."


# ---------------------------------------------------------------------------------------------- how it may end

CREATED = {"type": "response.created", "response": {"status": "in_progress", "error": None, "output": []}}


def failures(code: str, message: str) -> list[Answer]:
    """The forms in which a failure that comes after the status 200 is told."""
    error = {"code": code, "message": message}
    failed = {"status": "failed", "error": error, "output": []}
    return [
        stream(CREATED, {"type": "response.failed", "response": failed}),
        stream(CREATED, {"type": "error", "sequence_number": 1, "param": None, **error}),
        stream(CREATED, {"type": "error", "sequence_number": 1, "error": {"type": "x", **error}}),
        response(failed),
    ]


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        ("server_error", "Something went wrong.", "server_error"),
        ("rate_limit_exceeded", "Slow down.", "rate_limited"),
        ("insufficient_quota", "You exceeded your current quota.", "quota_exceeded"),
        ("server_is_overloaded", "Later.", "overloaded"),
        ("context_length_exceeded", "Too long.", "context_too_long"),
        ("invalid_prompt", "No.", "content_filtered"),
        ("image_content_policy_violation", "No.", "content_filtered"),
        ("bio_policy", "No.", "content_filtered"),
        ("invalid_image_url", "No image.", "content_unsupported"),
        ("unsupported_image_media_type", "No image.", "content_unsupported"),
        ("something_new", "What?", "server_error"),
    ],
)
def test_a_failure_is_of_one_kind_in_whatever_form_it_is_told(code: str, text: str, kind: str) -> None:
    for answer in failures(code, f"{text} sk-test-key"):
        with pytest.raises(ProviderError) as caught:
            ask(answer, on_delta=lambda _: None)
        assert caught.value.kind == kind
        assert text in caught.value.message
        assert "sk-test-key" not in caught.value.message


@pytest.mark.parametrize(
    ("status", "reason", "stop", "text"),
    [
        ("completed", None, "final", "Hi."),
        (None, None, "final", "Hi."),
        ("incomplete", "max_output_tokens", "length", "Hi."),
        ("incomplete", "content_filter", "blocked", ""),
    ],
)
def test_a_reply_says_why_it_ended(status: Any, reason: Any, stop: str, text: str) -> None:
    details = {"reason": reason} if reason else None
    document = {"status": status, "incomplete_details": details, "output": [MESSAGE]}
    streamed = stream(HI, {"type": f"response.{status or 'completed'}", "response": document})
    odd = stream(HI, {"type": "response.completed", "response": document})
    for answer in (response(document), streamed, odd):
        message = ask(answer, on_delta=lambda _: None).message
        assert (message.stop, message.text) == (stop, text)
    later = stream(HI, {"type": f"response.{status or 'completed'}", "response": document | {"status": "in_progress"}})
    assert ask(later, on_delta=lambda _: None).message.stop == stop


def test_a_call_that_was_cut_is_not_one_to_be_run() -> None:
    cut = {**CALL, "arguments": '{"n', "status": "incomplete"}
    document = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": [cut]}
    message = read_reply(document, "openai-responses", "m").message
    assert message.stop == "length"
    assert sent("openai-responses", "m", message)[0]["arguments"] == "{}"


def test_a_refusal_is_the_text_of_a_blocked_reply() -> None:
    refused = {**MESSAGE, "content": [{"type": "refusal", "refusal": "I cannot."}]}
    events = [{"type": "response.refusal.delta", "delta": "I cannot."}]
    events.append({"type": "response.completed", "response": {"output": [refused, CALL]}})
    deltas: list[Delta] = []
    message = ask(stream(*events), on_delta=deltas.append).message
    assert (message.stop, message.text, message.calls, message.reasoning) == ("blocked", "I cannot.", (), ())
    assert deltas == [Delta("text", "I cannot.")]


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"status": "queued", "output": []}, "request_rejected"),
        ({"status": "in_progress", "output": []}, "request_rejected"),
        ({"status": "cancelled", "output": [MESSAGE]}, "server_error"),
        ({"status": "failed", "output": [MESSAGE]}, "server_error"),
        ({"status": "incomplete", "incomplete_details": {"reason": "steered"}, "output": [MESSAGE]}, "reply_invalid"),
        ({"status": "incomplete", "output": [MESSAGE]}, "reply_invalid"),
        ({"status": "paused", "output": [MESSAGE]}, "reply_invalid"),
        ({"status": ["completed"], "output": [MESSAGE]}, "reply_invalid"),
        ({"status": "completed"}, "reply_invalid"),
        ({"status": "completed", "output": {}}, "reply_invalid"),
        ({"status": "completed", "output": ["Hi."]}, "reply_invalid"),
        ({"status": "completed", "output": [{"type": "function_call", "arguments": "{}"}]}, "reply_invalid"),
        ({"choices": [{"message": {"content": "Hi."}}]}, "reply_invalid"),
    ],
)
def test_an_answer_that_is_no_reply_is_an_error(document: dict[str, Any], kind: str) -> None:
    with pytest.raises(ProviderError) as caught:
        read_reply(document, "openai-responses", "m")
    assert caught.value.kind == kind


def test_odd_parts_of_a_reply_are_read_as_well_as_can_be() -> None:
    items = [
        {"type": "message", "content": "One, "},
        {"type": "message", "content": None},
        {"type": "message", "content": ["?", {"type": "output_text", "text": None}, {"type": "new", "text": "?"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "two."}]},
        {"type": "function_call", "call_id": None, "name": "look", "arguments": {"n": 1}},
        {"type": "brand_new", "text": "?"},
    ]
    reply = read_reply({"output": items, "usage": {"input_tokens": "5", "output_tokens_details": []}}, "x", "m")
    assert reply.message.text == "One, two."
    assert [(call.id, call.arguments) for call in reply.message.calls] == [("", '{"n": 1}')]
    assert reply.usage == Usage()
