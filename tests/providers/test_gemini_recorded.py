"""Every recorded answer of Gemini, over a real socket, compared with what the official client made of it."""

import json
from typing import Any

import pytest

from agentq.errors import ProviderError
from agentq.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
    load_message,
)
from agentq.providers.base import Delta, ModelReply, ModelRequest
from agentq.providers.gemini import Gemini, request_body
from agentq.providers.gemini_reply import read_reply
from tests.providers.fake_server import response, serve
from tests.providers.gemini_rules import check
from tests.providers.rows import ORACLE, SHAPES, is_streamed, load, replay

ROWS = load("gemini")
BY_ID = {row["id"]: row for row in ROWS}
STOPS = {"STOP": "final", "MAX_TOKENS": "length", "SAFETY": "blocked", "MODEL_ARMOR": "blocked"}
KINDS = {400: "request_rejected", 429: "rate_limited"}
# Where we mean to differ from the official client, and why.
AGREED_KINDS = {
    "gemini-7ceb8e-t0": "context_too_long",  # "input token count": shrinking helps, trying again does not
    "gemini-4d1759-t0": "bad_call",  # UNEXPECTED_TOOL_CALL: a tool that was not offered is never run
}
AGREED_CALLS = {
    # The official client leaves the pieces of streamed arguments as they are: eight calls, most without a name.
    "gemini-633613-t0": [
        {"id": "", "name": "getWeather", "args": {"location": "Boston"}},
        {"id": "", "name": "getWeather", "args": {"location": "San Francisco"}},
    ],
}


def failed(row: dict[str, Any]) -> bool:
    return not ORACLE[row["id"]]["ok"] or row["id"] in AGREED_KINDS


GOOD = [row for row in ROWS if not failed(row)]
BAD = [row for row in ROWS if failed(row)]
STREAMED = [row for row in GOOD if is_streamed(row)]


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


def answered(row: dict[str, Any], body: bytes | None = None) -> tuple[ModelReply, list[Delta]]:
    """What is made of the row's answer, or of ``body`` in its place, and what was told of it meanwhile."""
    deltas: list[Delta] = []
    answer = replay(row) if body is None else response(body, content_type="text/event-stream")
    with serve(lambda _: answer) as server:
        streams = {"on_delta": deltas.append} if is_streamed(row) else {}
        asked = ModelRequest("m", "", [UserMessage(text="hello")], timeout_secs=20, **streams)
        return Gemini(row["provider"], base_url=server.url, api_key="test-key").complete(asked), deltas


@pytest.mark.parametrize("row", GOOD, ids=ids(GOOD))
def test_a_recorded_reply_is_read_as_the_official_client_reads_it(row: dict[str, Any]) -> None:
    oracle = ORACLE[row["id"]]
    reply, deltas = answered(row)
    message = reply.message
    calls = [{"id": c.id, "name": c.name, "args": json.loads(c.arguments)} for c in message.calls]
    assert calls == AGREED_CALLS.get(row["id"], [{**call, "id": call["id"] or ""} for call in oracle["calls"]])
    assert message.text == oracle["text"]
    stop = "blocked" if oracle["block"] else STOPS[oracle["stop"]]
    assert message.stop == ("tool_calls" if calls and stop == "final" else stop)
    assert (message.provider, message.model) == (row["provider"], "m")
    assert reply.usage == usage_of(oracle["usage"])
    if is_streamed(row):
        assert "".join(delta.text for delta in deltas if delta.kind == "text") == message.text
        told = [(delta.call, delta.name, delta.text) for delta in deltas if delta.kind == "arguments"]
        assert told == [(number, call.name, call.arguments) for number, call in enumerate(message.calls)]


def usage_of(usage: dict[str, Any]) -> Usage:
    thoughts, answer = usage.get("thoughts_token_count"), usage.get("candidates_token_count")
    return Usage(
        input_tokens=usage.get("prompt_token_count"),
        output_tokens=None if answer is None else answer + (thoughts or 0),
        cache_read_tokens=usage.get("cached_content_token_count"),
        reasoning_tokens=thoughts,
    )


@pytest.mark.parametrize("row", BAD, ids=ids(BAD))
def test_a_recorded_error_is_of_the_kind_the_official_client_says(row: dict[str, Any]) -> None:
    with pytest.raises(ProviderError) as caught:
        answered(row)
    oracle = ORACLE[row["id"]]
    assert caught.value.kind == (AGREED_KINDS.get(row["id"]) or KINDS[oracle["status"]])
    if not oracle["ok"]:
        assert caught.value.details["status"] == oracle["status"]
    waits = {"gemini-bb42c7-t0": 48, "gemini-2dca64-t0": 34.4}
    assert caught.value.retry_after == waits.get(row["id"])


@pytest.mark.parametrize("row", STREAMED, ids=ids(STREAMED))
def test_a_stream_that_breaks_off_at_any_border_is_no_reply(row: dict[str, Any]) -> None:
    events = row["response"]["sse"].split("\n\n")
    events = [f"{event}\n\n" for event in events if event.strip()]
    answered(row, "".join(events).encode())
    for kept in range(len(events)):
        with pytest.raises(ProviderError) as caught:
            answered(row, "".join(events[:kept]).encode())
        assert (caught.value.kind, caught.value.retryable) == ("network", True)


def test_a_stream_in_pieces_is_the_document_that_is_not_streamed() -> None:
    row = BY_ID["gemini-e5cc29-t0"]
    chunks = [json.loads(line[5:]) for line in row["response"]["sse"].splitlines() if line.startswith("data:")]
    parts = [part for chunk in chunks for part in chunk["candidates"][0].get("content", {}).get("parts", [])]
    kept = [reasoning.data["block"] for reasoning in answered(row)[0].message.reasoning]
    thoughts = "".join(part["text"] for part in parts if part.get("thought"))
    assert kept[0] == {"text": thoughts, "thought": True}
    signatures = [part["thoughtSignature"] for part in parts if "thoughtSignature" in part]
    assert [block["thoughtSignature"] for block in kept[1:]] == signatures


@pytest.mark.parametrize("shape", ["shape-ge-malformed", "shape-ge-recitation"])
def test_a_reported_end_has_its_meaning(shape: str) -> None:
    document = next(row for row in SHAPES if row["id"] == shape)["response"]["body"]
    if shape == "shape-ge-recitation":
        assert read_reply(document, "gemini", "m").message.stop == "blocked"
        return
    with pytest.raises(ProviderError) as caught:
        read_reply(document, "gemini", "m")
    assert (caught.value.kind, caught.value.retryable) == ("bad_call", True)


# ---------------------------------------------------------------------------------------------- the next request


def replied(row_id: str) -> AssistantMessage:
    """The recorded reply, as a transcript has it."""
    row = BY_ID[row_id]
    message = load_message(answered(row)[0].message.model_dump_json())
    assert isinstance(message, AssistantMessage)
    # As every reply has them before it is kept: some have no ids of their own.
    calls = [call.model_copy(update={"id": f"ours_{n}"}) for n, call in enumerate(message.calls)]
    return message.model_copy(update={"calls": tuple(calls)})


def sent_after(reply: AssistantMessage, *texts: str) -> list[dict[str, Any]]:
    results: list[Message] = [
        ToolMessage(result=ToolResult(call_id=call.id, name=call.name, text=text))
        for call, text in zip(reply.calls, texts, strict=True)
    ]
    transcript = [UserMessage(text="u"), reply, *results, *([] if results else [UserMessage(text="v")])]
    body = request_body(ModelRequest("m", "", transcript), reply.provider)
    check(body)
    sent: list[dict[str, Any]] = body["contents"]
    return sent


REPLIES = [
    row
    for row in GOOD
    if not is_streamed(row) and row["response"]["body"].get("candidates", [{}])[0].get("content", {}).get("parts")
]


@pytest.mark.parametrize("row", REPLIES, ids=ids(REPLIES))
def test_a_recorded_reply_goes_back_as_it_came(row: dict[str, Any]) -> None:
    parts = row["response"]["body"]["candidates"][0]["content"]["parts"]
    reply = replied(row["id"])
    back = sent_after(reply, *["seen" for _ in reply.calls])[1]
    # A call that came without a signature gets a mark instead; nothing that came is changed.
    for part in back["parts"]:
        if part.get("thoughtSignature") == "skip_thought_signature_validator":
            del part["thoughtSignature"]
    assert back == {"role": "model", "parts": parts}


def test_a_recorded_conversation_goes_on_as_it_did() -> None:
    later = BY_ID["gemini-997527-t1"]["request"]["body"]["contents"]
    reply = replied("gemini-997527-t0")
    sent = sent_after(reply, "Mexico")
    (call,) = sent[1]["parts"]
    # The stand-ins for signatures are of each row's own here.
    assert {**call, "thoughtSignature": ""} == {**later[1]["parts"][0], "thoughtSignature": ""}
    (back,) = sent[2]["parts"]
    assert (sent[2]["role"], back["functionResponse"]["id"]) == ("user", "w71i0cbt")
    assert back["functionResponse"].keys() == later[2]["parts"][0]["functionResponse"].keys()


def test_results_of_calls_without_ids_are_matched_by_name_and_order() -> None:
    later = BY_ID["gemini-78ebd8-t1"]["request"]["body"]["contents"]
    sent = sent_after(replied("gemini-78ebd8-t0"), "15°C", "Ruby")
    assert [turn["role"] for turn in sent] == [turn["role"] for turn in later]
    assert [part["functionCall"] for part in sent[1]["parts"]] == [part["functionCall"] for part in later[1]["parts"]]
    names = [part["functionResponse"]["name"] for part in later[2]["parts"]]
    assert [part["functionResponse"] for part in sent[2]["parts"]] == [
        {"name": name, "response": {"output": text}} for name, text in zip(names, ["15°C", "Ruby"], strict=True)
    ]


@pytest.mark.parametrize("row", [row for row in GOOD if ORACLE[row["id"]]["calls"]], ids=lambda row: row["id"])
def test_a_recorded_call_can_be_answered_by_another_model(row: dict[str, Any]) -> None:
    reply = replied(row["id"])
    transcript: list[Message] = [UserMessage(text="u"), reply]
    transcript += [ToolMessage(result=ToolResult(call_id=c.id, name=c.name, text="seen")) for c in reply.calls]
    sent = request_body(ModelRequest("another", "", transcript), reply.provider)["contents"]
    assert isinstance(reply.calls[0], ToolCall)
    assert [part["functionCall"] for part in sent[1]["parts"] if "functionCall" in part] == [
        {"name": call.name, "args": json.loads(call.arguments)} for call in reply.calls
    ]
    signatures = [part.get("thoughtSignature") for part in sent[1]["parts"] if "functionCall" in part]
    assert signatures == ["skip_thought_signature_validator", *[None for _ in reply.calls[1:]]]
