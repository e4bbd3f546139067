"""Streamed replies: however the bytes come, and wherever they end, it is the whole reply or none."""

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from agentq.errors import ProviderError
from agentq.providers import anthropic_reply, anthropic_stream, chat_reply, chat_stream
from agentq.providers.base import Delta, ModelReply
from agentq.providers.endpoint import stream_events
from tests.providers.rows import BY_ID, ORACLE, RECORDED, is_streamed

STREAMED = [row for row in RECORDED if is_streamed(row)]
GOOD = [row for row in STREAMED if ORACLE[row["id"]]["ok"]]
CHAT = [row for row in GOOD if row["api"] != "anthropic"]
CUT = {"network", "reply_invalid"}

each_row = pytest.mark.parametrize("row", STREAMED, ids=[row["id"] for row in STREAMED])
each_good_row = pytest.mark.parametrize("row", GOOD, ids=[row["id"] for row in GOOD])
each_chat_row = pytest.mark.parametrize("row", CHAT, ids=[row["id"] for row in CHAT])


def read(row: dict[str, Any], pieces: Iterable[bytes], *, done_marker: bool = True) -> tuple[ModelReply, list[Delta]]:
    """The reply of this row's API that the bytes are, and what was shown of it meanwhile."""
    provider, deltas = row["provider"], list[Delta]()
    events = stream_events(provider, pieces)
    if row["api"] == "anthropic":
        document = anthropic_stream.read_stream(events, provider, deltas.append)
        return anthropic_reply.read_reply(document, provider, "m"), deltas
    document = chat_stream.read_stream(events, provider, deltas.append, done_marker=done_marker)
    return chat_reply.read_reply(document, provider, "m"), deltas


def read_or_fail(row: dict[str, Any], body: bytes, **options: bool) -> ModelReply | ProviderError:
    """Nothing but the one or the other."""
    try:
        return read(row, [body], **options)[0]
    except ProviderError as error:
        return error


def sse(row: dict[str, Any]) -> bytes:
    return str(row["response"]["sse"]).encode()


def end_of_marker(row: dict[str, Any]) -> int:
    """How many bytes there must be for the reply to be whole."""
    marker = rb'\{"type": ?"message_stop" *\}' if row["api"] == "anthropic" else rb"\[DONE\]"
    *_, last = re.finditer(marker, sse(row))
    return last.end()


def borders(row: dict[str, Any]) -> list[int]:
    return [0, *(found.end() for found in re.finditer(rb"\n\n", sse(row)))]


def anywhere(row: dict[str, Any]) -> list[int]:
    """Sixty places, the same at each run."""
    return random.Random(row["id"]).choices(range(len(sse(row))), k=60)


@each_good_row
def test_a_stream_cut_before_its_marker_is_never_a_reply(row: dict[str, Any]) -> None:
    whole, _ = read(row, [sse(row)])
    for cut in {*borders(row), *anywhere(row), end_of_marker(row) - 1, end_of_marker(row)}:
        if cut >= end_of_marker(row):
            assert read(row, [sse(row)[:cut]])[0] == whole
            continue
        with pytest.raises(ProviderError) as caught:
            read(row, [sse(row)[:cut]])
        assert caught.value.kind in CUT, cut
        assert caught.value.retryable


@each_chat_row
def test_where_no_marker_is_expected_the_reason_to_finish_is_one(row: dict[str, Any]) -> None:
    whole, _ = read(row, [sse(row)])
    finished = min(cut for cut in borders(row) if re.search(rb'"finish_reason": ?"', sse(row)[:cut]))
    for cut in {*borders(row), *anywhere(row)}:
        found = read_or_fail(row, sse(row)[:cut], done_marker=False)
        if isinstance(found, ProviderError):
            assert found.kind in CUT
            assert cut not in borders(row) or cut < finished
        else:
            assert cut >= finished - 2
            assert found.message == whole.message


def test_an_error_behind_the_reason_to_finish_is_not_missed_by_a_cut() -> None:
    row = BY_ID["openai-compatible-f1ea35-t0"]
    before = sse(row).index(b'"error"')
    upto = sse(row).rindex(b"\n\n", 0, before)
    assert b'"finish_reason":"length"' in sse(row)[:upto]
    with pytest.raises(ProviderError) as caught:
        read(row, [sse(row)[:upto]])
    assert caught.value.kind == "network"
    with pytest.raises(ProviderError, match="Token limit"):
        read(row, [sse(row)])


def by(size: int) -> Callable[[bytes], Iterator[bytes]]:
    return lambda body: (body[at : at + size] for at in range(0, len(body), size))


def with_noise(body: bytes) -> Iterator[bytes]:
    """Comments, unknown fields and empty lines between the events, and a mark of its encoding at the start."""
    yield b"\xef\xbb\xbf: hello\n\nretry: 10\nid: 7\n\n"
    yield body.replace(b"\n\n", b"\n: still there\n\n:\n\n\n\n")


FORMS: dict[str, Callable[[bytes], Iterable[bytes]]] = {
    "byte by byte": by(1),
    "in sevens": by(7),
    "crlf": lambda body: by(5)(body.replace(b"\n", b"\r\n")),
    "cr": lambda body: by(3)(body.replace(b"\n", b"\r")),
    "crlf byte by byte": lambda body: by(1)(body.replace(b"\n", b"\r\n")),
    "without spaces": lambda body: [body.replace(b"data: ", b"data:").replace(b"event: ", b"event:")],
    "with noise": with_noise,
    "with more behind it": lambda body: [body, b'data: {"error": {"message": "no"}}\n\ndata: junk\n\n\xff\xfe'],
}


@pytest.mark.parametrize("form", list(FORMS.values()), ids=list(FORMS))
def test_the_form_of_the_bytes_changes_nothing(form: Callable[[bytes], Iterable[bytes]]) -> None:
    for row in GOOD:
        assert read(row, form(sse(row))) == read(row, [sse(row)]), row["id"]


def test_data_of_several_lines_is_one() -> None:
    for row in GOOD:
        events = re.sub(rb"data: (\{.*)", lambda found: spread(found[1]), sse(row))
        assert events.count(b"data: ") > 2 * sse(row).count(b"data: ")
        assert read(row, [events]) == read(row, [sse(row)]), row["id"]


def spread(data: bytes) -> bytes:
    return b"\n".join(b"data: " + line for line in json.dumps(json.loads(data), indent=1).encode().splitlines())


@each_good_row
def test_what_is_shown_meanwhile_joined_is_the_reply(row: dict[str, Any]) -> None:
    reply, deltas = read(row, [sse(row)])
    message = reply.message
    assert joined(deltas, "text") == message.text
    for number, call in enumerate(message.calls):
        own = [delta for delta in deltas if delta.call == number]
        assert {delta.name for delta in own} <= {call.name}
        assert json.loads(joined(own, "arguments") or "{}") == json.loads(call.arguments or "{}")
    shown = joined(deltas, "reasoning")
    kept = json.dumps([reasoning.data for reasoning in message.reasoning], ensure_ascii=False)
    assert json.dumps(shown, ensure_ascii=False)[1:-1] in kept


def joined(deltas: list[Delta], kind: str) -> str:
    return "".join(delta.text for delta in deltas if delta.kind == kind)


@each_row
def test_an_event_of_wrong_types_is_a_reply_or_an_error_of_the_provider(row: dict[str, Any]) -> None:
    chance = random.Random(row["id"])
    for _ in range(60):
        lines = sse(row).decode().splitlines(keepends=True)
        at = chance.choice([i for i, line in enumerate(lines) if line.startswith("data: {")])
        lines[at] = f"data: {json.dumps(spoiled(json.loads(lines[at][6:]), chance))}\n"
        read_or_fail(row, "".join(lines).encode())


def spoiled(value: Any, chance: random.Random) -> Any:
    """The same with one value of another type somewhere in it."""
    if isinstance(value, dict | list) and value and chance.random() < 0.85:
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        value[key] = spoiled(value[key], chance)
        return value
    return chance.choice([None, True, 5, "x", "", [], {}, [5], {"a": 5}, 1.5, [{}], [None]])


# ---------------------------------------------------------------------------------------------- Chat Completions


def chat(*chunks: Any, done: bool = True, provider: str = "openai") -> tuple[ModelReply, list[Delta]]:
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + (["data: [DONE]\n\n"] if done else [])
    return read({"provider": provider, "api": "openai_chat"}, ["".join(events).encode()])


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


def piece(index: int | None, arguments: Any, call_id: str | None = None, name: str | None = None) -> dict[str, Any]:
    number = {} if index is None else {"index": index}
    return delta(tool_calls=[{**number, "id": call_id, "function": {"name": name, "arguments": arguments}}])


ONE = [("a", "look", '{"n": 1}')]
TWO = [*ONE, ("b", "see", "{}")]
CALLS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str, str]]]] = {
    "in pieces": ([piece(0, "", "a", "look"), piece(0, '{"n"'), piece(0, ": 1}")], ONE),
    "with empty ids and names later": ([piece(0, '{"n"', "a", "look"), piece(0, ": 1}", "", "")], ONE),
    "with its id and name in each piece": ([piece(0, '{"n"', "a", "look"), piece(0, ": 1}", "a", "look")], ONE),
    "with a new id in each piece": ([piece(0, '{"n"', "a", "look"), piece(0, ": 1}", "zz")], ONE),
    "two in turns": ([piece(0, '{"n"', "a", "look"), piece(1, "{", "b", "see"), piece(0, ": 1}"), piece(1, "}")], TWO),
    "whole": ([piece(0, '{"n": 1}', "a", "look"), piece(1, "{}", "b", "see")], TWO),
    "whole, all of number 0": ([piece(0, '{"n": 1}', "a", "look"), piece(0, "{}", "b", "see")], TWO),
    "whole, without a number": ([piece(None, '{"n": 1}', "a", "look"), piece(None, "{}", "b", "see")], TWO),
    "without number and id": ([piece(None, '{"n"', None, "look"), piece(None, ": 1}")], [("", "look", '{"n": 1}')]),
    "as an object": ([piece(0, {"n": 1}, "a", "look")], ONE),
    "without arguments": ([piece(0, None, "b", "see")], [("b", "see", "")]),
}


@pytest.mark.parametrize(("chunks", "calls"), list(CALLS.values()), ids=list(CALLS))
def test_calls_are_put_together_however_servers_cut_them(
    chunks: list[dict[str, Any]], calls: list[tuple[str, str, str]]
) -> None:
    reply, _ = chat(*chunks, delta("stop"))
    found = [(call.id, call.name, call.arguments) for call in reply.message.calls]
    assert found == calls
    assert reply.message.stop == "tool_calls"


def test_usage_comes_with_behind_or_beside_the_reply_or_not_at_all() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    said = delta(content="hi")
    for chunks in (
        [said, delta("stop"), {"choices": [], "usage": usage}],
        [said, delta("stop"), {"usage": usage}],
        [said, delta("stop") | {"usage": usage}],
        [said | {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}, delta("stop") | {"usage": usage}],
        [said, delta("stop") | {"usage": usage}, {"choices": [], "usage": None}],
        [said, delta("stop") | {"x_groq": {"usage": usage}}],
    ):
        assert (chat(*chunks)[0].usage.input_tokens, chat(*chunks)[0].usage.output_tokens) == (3, 2)
    assert chat(said, delta("stop"))[0].usage.input_tokens is None


def test_chunks_without_a_choice_or_a_delta_are_nothing() -> None:
    filtered = {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    reply, deltas = chat(filtered, {}, delta(), {"choices": [{"delta": None}]}, delta(content="hi"), delta("stop"))
    assert (reply.message.text, [each.text for each in deltas]) == ("hi", ["hi"])


@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"error": {"code": 429, "message": "slow"}}, "rate_limited"),
        ({"error": {"message": "x", "code": "tool_use_failed", "status_code": 400}}, "bad_call"),
        (
            {"choices": [{"delta": {}, "finish_reason": "error", "error": {"code": 502, "message": "up"}}]},
            "server_error",
        ),
        ({"error": "something"}, "server_error"),
        ({"object": "error", "message": "maximum context length", "code": 400}, "context_too_long"),
        ([], "reply_invalid"),
        ("text", "reply_invalid"),
    ],
)
def test_an_error_in_the_middle_of_a_chat_is_that_error(where: int, event: Any, kind: str) -> None:
    chunks: list[Any] = [delta(content="hi"), delta("stop")]
    chunks.insert(where, event)
    with pytest.raises(ProviderError) as caught:
        chat(*chunks)
    assert caught.value.kind == kind


def test_events_of_megabytes_come_whole_and_characters_are_not_cut() -> None:
    text = "é𝄞😀\u2028" * 100_000
    body = f"data: {json.dumps(delta(content=text), ensure_ascii=False)}\n\n".encode()
    body += f"data: {json.dumps(delta('stop'))}\n\ndata: [DONE]\n\n".encode()
    assert len(body) > 1_000_000
    reply, deltas = read({"provider": "openai", "api": "openai_chat"}, by(4097)(body))
    assert reply.message.text == text
    assert [each.text for each in deltas] == [text]


# ---------------------------------------------------------------------------------------------- Messages


def messages(*events: dict[str, Any]) -> tuple[ModelReply, list[Delta]]:
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return read({"provider": "anthropic", "api": "anthropic"}, [body.encode()])


def start(**usage: int) -> dict[str, Any]:
    return {"type": "message_start", "message": {"id": "m", "content": [], "stop_reason": None, "usage": usage}}


def block(index: int, content: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": content},
        *({"type": "content_block_delta", "index": index, "delta": each} for each in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text_delta(text: str) -> dict[str, Any]:
    return {"type": "text_delta", "text": text}


TEXT = block(0, {"type": "text", "text": ""}, text_delta("he"), text_delta("llo"))
STOP = {"type": "message_stop"}
PING = {"type": "ping"}
NEW = {"type": "something_new", "delta": {"type": "text_delta", "text": "no"}}


def ended(reason: str = "end_turn", **usage: int) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


def test_pings_and_events_of_a_newer_api_are_nothing_wherever_they_come() -> None:
    events = [start(input_tokens=3), *TEXT, ended(output_tokens=2), STOP]
    for place in range(len(events)):
        reply, deltas = messages(*events[:place], PING, NEW, *events[place:])
        assert (reply.message.text, joined(deltas, "text")) == ("hello", "hello")


def test_a_second_start_takes_back_what_came_before() -> None:
    call = block(1, {"type": "tool_use", "id": "a", "name": "look", "input": {}}, {"type": "input_json_delta"})
    reply, _ = messages(start(input_tokens=9), *TEXT, *call, start(input_tokens=3), *TEXT, ended(), STOP)
    assert (reply.message.text, reply.message.calls, reply.usage.input_tokens) == ("hello", (), 3)


def test_usage_at_the_end_replaces_that_at_the_start() -> None:
    reply, _ = messages(
        start(input_tokens=3, output_tokens=1), *TEXT, ended(output_tokens=7), ended(output_tokens=9), STOP
    )
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (3, 9)


@pytest.mark.parametrize(
    ("pieces", "arguments"),
    [([], {}), ([""], {}), (["", '{"n"', ": 1}"], {"n": 1}), (['{"n": "é'], None)],
)
def test_a_call_in_pieces_has_its_arguments_and_one_that_was_cut_has_no_object(
    pieces: list[str], arguments: Any
) -> None:
    parts = [{"type": "input_json_delta", "partial_json": each} for each in pieces]
    call = block(0, {"type": "tool_use", "id": "a", "name": "look", "input": {}}, *parts)
    reply, deltas = messages(start(), *call, ended("tool_use" if arguments is not None else "max_tokens"), STOP)
    (found,) = reply.message.calls
    assert joined(deltas, "arguments") == "".join(pieces)
    if arguments is None:
        assert (found.arguments, reply.message.stop) == ('{"n": "é', "length")
    else:
        assert (json.loads(found.arguments), reply.message.stop) == (arguments, "tool_calls")


def test_blocks_that_begin_before_others_have_ended_keep_their_order() -> None:
    first = block(
        0, {"type": "tool_use", "id": "a", "name": "look"}, {"type": "input_json_delta", "partial_json": "{}"}
    )
    second = block(
        1, {"type": "tool_use", "id": "b", "name": "see"}, {"type": "input_json_delta", "partial_json": "{}"}
    )
    mixed = [second[0], first[0], first[1], second[1], second[2], first[2]]
    reply, _ = messages(start(), *mixed, ended("tool_use"), STOP)
    assert [call.id for call in reply.message.calls] == ["a", "b"]


def test_signed_thinking_comes_whole() -> None:
    thinking = block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "h"},
        {"type": "thinking_delta", "thinking": "m"},
        {"type": "signature_delta", "signature": "S+/="},
    )
    hidden = block(1, {"type": "redacted_thinking", "data": "R"})
    reply, deltas = messages(start(), *thinking, *hidden, *block(2, {"type": "text", "text": "hi"}), ended(), STOP)
    kept = [reasoning.data["block"] for reasoning in reply.message.reasoning]
    signed = {"type": "thinking", "thinking": "hm", "signature": "S+/="}
    assert kept == [signed, {"type": "redacted_thinking", "data": "R"}]
    assert (joined(deltas, "reasoning"), joined(deltas, "text")) == ("hm", "hi")


@pytest.mark.parametrize("where", range(5))
def test_an_error_in_the_middle_of_a_message_is_that_error(where: int) -> None:
    events = [start(), *TEXT, ended(), STOP]
    events.insert(where, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    with pytest.raises(ProviderError) as caught:
        messages(*events)
    assert (caught.value.kind, caught.value.retryable) == ("overloaded", True)
