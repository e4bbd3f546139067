"""The Gemini API: what is sent, and what is made of each way in which a reply can end."""

import json
from base64 import b64encode
from typing import Any

import pytest

from agentq import File, Image
from agentq.errors import ProviderError
from agentq.inputs import checked_message
from agentq.messages import (
    AssistantMessage,
    Message,
    Reasoning,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
    load_message,
)
from agentq.providers.base import Delta, ModelRequest, OutputFormat, ToolSpec
from agentq.providers.gemini import Gemini, request_body
from agentq.providers.gemini_reply import read_reply
from agentq.providers.gemini_stream import read_stream
from agentq.results import to_content
from tests.images import GIF, PDF, png
from tests.providers.fake_server import response, serve
from tests.providers.rows import SHAPES

MARK = "skip_thought_signature_validator"
SIGNED = "AY89+/=="
HI = UserMessage(text="hi")


def call(call_id: str, arguments: str = "{}", name: str = "look") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def result(call_id: str, text: str = "seen", **more: Any) -> ToolMessage:
    return ToolMessage(result=ToolResult(call_id=call_id, name=more.pop("name", "look"), text=text, **more))


def body(*messages: Message, model: str = "gemini-2.5-flash", **request: Any) -> dict[str, Any]:
    return request_body(ModelRequest(model, request.pop("instructions", ""), messages, **request), "gemini")


def turns(*messages: Message, model: str = "gemini-2.5-flash") -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = body(*messages, model=model)["contents"]
    return sent


def answer(parts: Any, reason: Any = "STOP", **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": reason}], **more}


def read(parts: Any, reason: Any = "STOP", model: str = "gemini-3-pro") -> AssistantMessage:
    """The reply as a transcript has it: stored, and with ids of our own."""
    message = read_reply(answer(parts, reason), "gemini", model).message
    calls = [call.model_copy(update={"id": f"ours_{n}"}) for n, call in enumerate(message.calls)]
    stored = load_message(message.model_copy(update={"calls": tuple(calls)}).model_dump_json())
    assert isinstance(stored, AssistantMessage)
    return stored


def function(name: str = "look", args: Any = None, **more: Any) -> dict[str, Any]:
    own = {key: more.pop(key) for key in ("id",) if key in more}
    return {"functionCall": {"name": name, "args": args or {}, **own}, **more}


# ---------------------------------------------------------------------------------------------- the request


def test_nothing_is_sent_that_was_not_asked_for() -> None:
    assert body(HI) == {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}


def test_instructions_tools_and_settings_go_where_they_belong() -> None:
    tool = ToolSpec("look", "Look.", {"type": "object"})
    settings = {
        "max_tokens": 9,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 3,
        "stop": "END",
        "seed": 1,
        "stream": True,
        "generationConfig": {"thinkingConfig": {"thinkingLevel": "low"}},
        "safetySettings": [],
        "tools": [{"googleSearch": {}}],
    }
    before = json.dumps(settings)
    assert body(HI, instructions="Be kind.", tools=[tool], settings=settings) == {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "systemInstruction": {"parts": [{"text": "Be kind."}]},
        "tools": [
            {"googleSearch": {}},
            {
                "functionDeclarations": [
                    {
                        "name": "look",
                        "description": "Look.",
                        "parametersJsonSchema": {"type": "object", "properties": {}},
                    }
                ]
            },
        ],
        "generationConfig": {
            "maxOutputTokens": 9,
            "temperature": 0,
            "topP": 0.5,
            "topK": 3,
            "stopSequences": ["END"],
            "seed": 1,
            "thinkingConfig": {"thinkingLevel": "low"},
        },
        "safetySettings": [],
    }
    assert json.dumps(settings) == before


LOOK = ToolSpec("look", "", {"type": "object"})


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("look", {"mode": "ANY", "allowedFunctionNames": ["look"]}),
        ({"type": "any"}, {"mode": "ANY"}),
        ({"type": "function", "function": {"name": "look"}}, {"mode": "ANY", "allowedFunctionNames": ["look"]}),
        ({"mode": "VALIDATED"}, {"mode": "VALIDATED"}),
    ],
)
def test_the_choice_of_tools_is_understood_in_the_words_of_others(choice: Any, config: Any) -> None:
    settings = {"tool_choice": choice, "parallel_tool_calls": False}
    sent = body(HI, tools=[LOOK], settings=settings)
    assert sent["toolConfig"] == {"functionCallingConfig": config}
    assert not sent.keys() & settings.keys()
    called = body(HI, AssistantMessage(calls=(call("a"),)), result("a"), tools=[LOOK], settings=settings)
    is_forced = config["mode"] == "ANY"
    assert called["toolConfig"]["functionCallingConfig"] == ({"mode": "AUTO"} if is_forced else config)


def test_without_tools_or_a_choice_nothing_is_said_of_it() -> None:
    assert "toolConfig" not in body(HI, settings={"tool_choice": "required"})
    assert "toolConfig" not in body(HI, tools=[LOOK], settings={"parallel_tool_calls": False})
    own = {"retrievalConfig": {"languageCode": "en"}}
    assert body(HI, settings={"toolConfig": own})["toolConfig"] == own


def test_parameters_lose_the_words_that_gemini_has_none_for() -> None:
    schema = {
        "type": "object",
        "title": "Args",
        "properties": {
            "title": {"type": "string", "title": "Title", "default": "x"},
            "kind": {"const": "a", "type": "string"},
            "at": {"anyOf": [{"type": "string", "format": "uri"}, {"type": "null"}], "description": "Where."},
            "size": {"type": "integer", "exclusiveMinimum": 0, "minimum": -1, "description": "How big."},
            "who": {"$ref": "#/$defs/Who", "description": "Who."},
        },
        "$defs": {"Who": {"type": "object", "title": "Who", "properties": {"examples": {"type": "string"}}}},
        "additionalProperties": {"type": "string", "title": "Rest"},
    }
    sent = body(HI, tools=[ToolSpec("look", "", schema)])["tools"][0]["functionDeclarations"][0]
    assert "description" not in sent
    assert sent["parametersJsonSchema"] == {
        "type": "object",
        "properties": {
            "title": {"type": "string", "default": "x"},
            "kind": {"type": "string", "enum": ["a"]},
            "at": {
                "anyOf": [{"type": "string", "description": 'format: "uri"'}, {"type": "null"}],
                "description": "Where.",
            },
            "size": {"type": "integer", "minimum": -1, "description": "How big.\nexclusiveMinimum: 0"},
            "who": {"anyOf": [{"$ref": "#/$defs/Who"}], "description": "Who."},
        },
        "$defs": {"Who": {"type": "object", "properties": {"examples": {"type": "string"}}}},
        "additionalProperties": {"type": "string"},
    }


def test_all_results_of_a_reply_are_alone_in_one_user_turn_in_order() -> None:
    sent = turns(
        HI,
        AssistantMessage(text="Both.", calls=(call("a", '{"x": 1}'), call("b", name="7th tool"))),
        result("a", "1"),
        result("b", "no", status="error", name="7th tool"),
        UserMessage(text="And now?"),
        UserMessage(text="Well?"),
    )
    assert sent[1:] == [
        {
            "role": "model",
            "parts": [
                {"text": "Both."},
                {"functionCall": {"name": "look", "args": {"x": 1}}},
                {"functionCall": {"name": "_7th_tool", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "look", "response": {"output": "1"}}},
                {"functionResponse": {"name": "_7th_tool", "response": {"error": "no"}}},
            ],
        },
        {"role": "user", "parts": [{"text": "And now?"}, {"text": "Well?"}]},
    ]


def test_empty_turns_are_not_sent() -> None:
    blocked = AssistantMessage(stop="blocked")
    assert turns(HI, AssistantMessage(text=" \n"), blocked, HI)[0]["parts"] == [{"text": "hi"}, {"text": "hi"}]
    assert turns(UserMessage(text=" ")) == []


@pytest.mark.parametrize("broken", ["", "null", "[1]", '{"path": "a', '{"x": NaN}'])
def test_broken_arguments_are_sent_back_as_an_empty_object(broken: str) -> None:
    sent = turns(HI, AssistantMessage(calls=(call("a", broken),)), result("a"))
    assert sent[1]["parts"][0]["functionCall"]["args"] == {}


def test_images_and_files_are_parts_of_a_users_turn() -> None:
    table = File.from_bytes(b"a,b", name="t.csv")
    parts = [
        "Look:",
        Image.from_bytes(png()),
        Image.from_url("https://x.invalid/a"),
        File.from_bytes(PDF),
        File.from_url("https://x.invalid/r.pdf"),
        File.from_bytes(b"ID3", media_type="audio/mpeg"),
        table,
    ]
    (sent,) = turns(UserMessage(**checked_message(parts)))
    assert sent["parts"] == [
        {"text": "Look:"},
        {"inlineData": {"mimeType": "image/png", "data": b64encode(png()).decode()}},
        {"fileData": {"fileUri": "https://x.invalid/a"}},
        {"inlineData": {"mimeType": "application/pdf", "data": b64encode(PDF).decode()}},
        {"fileData": {"mimeType": "application/pdf", "fileUri": "https://x.invalid/r.pdf"}},
        {"inlineData": {"mimeType": "audio/mpeg", "data": b64encode(b"ID3").decode()}},
        {"text": f"{table}\na,b\n[end of t.csv]"},
    ]


@pytest.mark.parametrize("media", [Image.from_bytes(GIF), File.from_bytes(b"PK", media_type="application/zip")])
def test_what_gemini_cannot_take_is_an_error_of_a_user_and_told_of_a_tool(media: Image | File) -> None:
    with pytest.raises(ProviderError) as caught:
        turns(UserMessage(**checked_message(["look", media])))
    assert caught.value.kind == "content_unsupported"
    text, kept = to_content(["here", media])
    sent = turns(HI, AssistantMessage(calls=(call("a"),)), result("a", text, media=kept))
    assert "this model cannot take it" in sent[2]["parts"][0]["functionResponse"]["response"]["output"]
    assert len(sent) == 3


def test_images_of_tools_are_shown_behind_all_results() -> None:
    picture = Image.from_bytes(png(), name="a.png")
    text, media = to_content(["Sales:", picture])
    calls = AssistantMessage(calls=(call("a"), call("b")))
    sent = turns(HI, calls, result("a", text, media=media), result("b"), UserMessage(text="And?"))
    assert [list(part) for part in sent[2]["parts"]] == [["functionResponse"], ["functionResponse"]]
    output = sent[2]["parts"][0]["functionResponse"]["response"]["output"]
    assert output == f"Sales:\n{picture}, shown below as number 1"
    assert [part.get("text") for part in sent[3]["parts"]] == ["Number 1, from look:", None, "And?"]
    assert sent[3]["parts"][1]["inlineData"]["mimeType"] == "image/png"


# ---------------------------------------------------------------------------------------------- typed answers


SCHEMA = {"type": "object", "properties": {"n": {"const": "a", "type": "string"}}, "required": ["n"]}


def test_a_typed_answer_is_asked_for_in_geminis_own_mode() -> None:
    output = Gemini().output_format(SCHEMA, forced=False)
    assert output is not None
    settings = {"temperature": 1, "generationConfig": {"thinkingConfig": {}}}
    assert body(HI, output=output, settings=settings)["generationConfig"] == {
        "responseMimeType": "application/json",
        "responseJsonSchema": {
            "type": "object",
            "properties": {"n": {"type": "string", "enum": ["a"]}},
            "required": ["n"],
            "additionalProperties": False,
        },
        "temperature": 1,
        "thinkingConfig": {},
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"n": {"enum": [True, False]}}},
        {"type": "object", "properties": {"me": {"$ref": "#"}}},
    ],
)
def test_a_schema_beyond_that_mode_is_a_tool_unless_it_is_forced(schema: dict[str, Any]) -> None:
    assert Gemini().output_format(schema, forced=False) is None
    assert Gemini().output_format(schema, forced=True) == OutputFormat(schema, strict=False)


@pytest.mark.parametrize("model", ["gemini-2.5-flash", "models/gemini-2.0-flash", "gemini-1.5-pro", "gemma-3-27b-it"])
def test_an_older_model_has_no_typed_answer_beside_tools(model: str) -> None:
    request = {"tools": [ToolSpec("look", "", {"type": "object"})], "output": OutputFormat(SCHEMA)}
    with pytest.raises(ProviderError, match="beside tools") as caught:
        body(HI, model=model, **request)
    assert (caught.value.kind, caught.value.retryable) == ("request_rejected", False)
    assert "responseJsonSchema" in body(HI, model=model, output=OutputFormat(SCHEMA))["generationConfig"]
    assert "responseJsonSchema" in body(HI, model="gemini-3-flash-preview", **request)["generationConfig"]


# ---------------------------------------------------------------------------------------------- signatures

THOUGHT = {"text": "hm", "thought": True}
SIGNED_REPLIES: list[list[dict[str, Any]]] = [
    [function(args={"b": 1, "a": [2.0, "ü"]}, id="w71", thoughtSignature=SIGNED), function(id="w72")],
    [THOUGHT, {"text": "Both."}, function(thoughtSignature=SIGNED), function(thoughtSignature="T+/=")],
    [{"text": "8 * 2"}, {"text": " = 16", "thoughtSignature": SIGNED}, {"text": "!"}],
    [{"text": "16"}, {"text": "", "thoughtSignature": SIGNED}],
    [{"text": "", "thoughtSignature": SIGNED}, {"text": "16", "thoughtSignature": "T"}],
    [{**THOUGHT, "thoughtSignature": SIGNED}, {"text": "x"}],
    [{"executableCode": {"language": "PYTHON", "code": "1"}}, {"codeExecutionResult": {"output": "1"}}, {"text": "1"}],
    [function(thoughtSignature=SIGNED, args={}), {"text": "after"}],
]


@pytest.mark.parametrize("parts", SIGNED_REPLIES, ids=json.dumps)
def test_signatures_go_back_in_the_very_parts_they_came_in(parts: list[dict[str, Any]]) -> None:
    reply = read(parts)
    results = [result(call.id) for call in reply.calls]
    assert turns(HI, reply, *results, model="gemini-3-pro")[1] == {"role": "model", "parts": parts}


@pytest.mark.parametrize("parts", SIGNED_REPLIES, ids=json.dumps)
def test_signatures_are_the_same_streamed_part_by_part(parts: list[dict[str, Any]]) -> None:
    chunks = [("", answer([part], None)) for part in parts]
    document = read_stream([*chunks, ("", answer([]))], "gemini", lambda _: None)
    assert document["candidates"][0]["content"]["parts"] == [part for part in parts if part != {"text": ""}]


def test_signatures_and_ids_go_to_no_other_model() -> None:
    reply = read([THOUGHT, {"text": "x", "thoughtSignature": SIGNED}, function(id="w", thoughtSignature=SIGNED)])
    for name, model in (("gemini", "gemini-2.5-pro"), ("proxy", "gemini-2.5-pro")):
        wire = request_body(ModelRequest(model, "", [HI, reply, result("ours_0")]), name)["contents"]
        assert wire[1]["parts"] == [{"text": "x"}, {"functionCall": {"name": "look", "args": {}}}]
        assert wire[2]["parts"] == [{"functionResponse": {"name": "look", "response": {"output": "seen"}}}]


def test_a_result_has_the_id_that_the_model_gave_its_call_and_no_other() -> None:
    reply = read([function(id="same"), function(), function(id="same")])
    sent = turns(HI, reply, *[result(call.id) for call in reply.calls], model="gemini-3-pro")
    assert [part["functionResponse"].get("id") for part in sent[2]["parts"]] == ["same", None, "same"]


def test_a_step_of_the_open_turn_that_nobody_signed_is_marked_for_newer_models_only() -> None:
    foreign = AssistantMessage(calls=(call("toolu_1"), call("toolu_2")), provider="anthropic", model="claude")
    first = [foreign, result("toolu_1"), result("toolu_2")]
    again = [AssistantMessage(calls=(call("toolu_3"),)), result("toolu_3")]
    old = turns(HI, *first, UserMessage(text="more"), *first, *again, model="gemini-2.5-pro")
    new = turns(HI, *first, UserMessage(text="more"), *first, *again, model="gemini-3-pro")

    def marks(sent: list[dict[str, Any]]) -> list[list[Any]]:
        return [[part.get("thoughtSignature") for part in turn["parts"]] for turn in sent if turn["role"] == "model"]

    assert marks(old) == [[None, None], [None, None], [None]]
    assert marks(new) == [[None, None], [MARK, None], [MARK]]


def test_a_reply_that_a_hook_has_changed_is_sent_as_it_is_now() -> None:
    reply = read([{"text": "secret", "thoughtSignature": SIGNED}, function("a", thoughtSignature="T"), function("b")])
    changed = reply.model_copy(update={"text": "none", "calls": reply.calls[1:]})
    sent = turns(HI, changed, result("ours_1", name="b"), model="gemini-3-pro")
    assert "".join(part.get("text", "") for part in sent[1]["parts"]) == "none"
    calls = [part for part in sent[1]["parts"] if "functionCall" in part]
    assert calls == [{"functionCall": {"name": "b", "args": {}}, "thoughtSignature": MARK}]


def test_a_signed_text_that_cannot_be_stored_keeps_its_place() -> None:
    reply = read([{"text": "half \ud83d"}, {"text": "\x00 and", "thoughtSignature": SIGNED}, {"text": " more"}])
    assert turns(HI, reply, HI, model="gemini-3-pro")[1]["parts"] == [
        {"text": "half \ufffd"},
        {"text": "\ufffd and", "thoughtSignature": SIGNED},
        {"text": " more"},
    ]


# ---------------------------------------------------------------------------------------------- the reply


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("STOP", "final"),
        ("MAX_TOKENS", "length"),
        *[
            (reason, "blocked")
            for reason in [
                *("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "ESCALATION"),
                *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "PUP_LIMITED_DISABLED"),
            ]
        ],
    ],
)
def test_a_reply_ends_for_a_known_reason(reason: str, stop: str) -> None:
    usage = {"promptTokenCount": 2}
    reply = read_reply(answer([{"text": "x"}], reason, usageMetadata=usage), "gemini", "m")
    assert (reply.message.stop, reply.message.text) == (stop, "" if stop == "blocked" else "x")
    assert reply.usage == Usage(input_tokens=2)
    for nothing in ({"finishReason": reason}, {"finishReason": reason, "content": {}}):
        message = read_reply({"candidates": [nothing]}, "gemini", "m").message
        assert (message.stop, message.text, message.calls) == (stop, "", ())


def test_a_blocked_reply_shows_nothing_of_what_was_said() -> None:
    message = read([{"text": "x"}, function(thoughtSignature=SIGNED)], "SAFETY")
    assert (message.text, message.calls, message.reasoning) == ("", (), ())


def test_there_is_no_reason_for_calls_but_the_calls() -> None:
    assert read([{"text": "x"}, function()]).stop == "tool_calls"
    assert read([function()], "MAX_TOKENS").stop == "length"


@pytest.mark.parametrize("reason", ["SAFETY", "OTHER", "MODEL_ARMOR", "JAILBREAK", "BRAND_NEW"])
def test_a_blocked_prompt_is_a_blocked_reply(reason: str) -> None:
    document = {"promptFeedback": {"blockReason": reason}, "usageMetadata": {"promptTokenCount": 5}}
    reply = read_reply(document, "gemini", "m")
    assert (reply.message.stop, reply.usage) == ("blocked", Usage(input_tokens=5))
    assert read_reply(read_stream([("", document)], "gemini", lambda _: None), "gemini", "m") == reply


@pytest.mark.parametrize(
    ("reason", "kind", "retryable"),
    [
        ("MALFORMED_FUNCTION_CALL", "bad_call", True),
        ("UNEXPECTED_TOOL_CALL", "bad_call", True),
        ("TOO_MANY_TOOL_CALLS", "bad_call", True),
        ("MALFORMED_RESPONSE", "reply_invalid", True),
        ("OTHER", "reply_invalid", True),
        ("NO_IMAGE", "reply_invalid", True),
        ("IMAGE_OTHER", "reply_invalid", True),
        ("FINISH_REASON_UNSPECIFIED", "reply_invalid", True),
        ("BRAND_NEW", "reply_invalid", True),
        (None, "reply_invalid", True),
        (["STOP"], "reply_invalid", True),
        ("LANGUAGE", "reply_invalid", False),
        ("CONTINUATION", "reply_invalid", False),
        ("MISSING_THOUGHT_SIGNATURE", "request_rejected", False),
    ],
)
def test_a_spoilt_reply_is_an_error_and_none_of_its_calls_is_run(reason: Any, kind: str, retryable: bool) -> None:
    with pytest.raises(ProviderError) as caught:
        read([{"text": "x"}, function()], reason)
    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"candidates": []},
        {"candidates": None, "promptFeedback": {}},
        {"candidates": ["x"]},
        answer([None]),
        answer([{"functionCall": {"args": {}}}]),
        answer([{"functionCall": None}]),
        answer([{"functionCall": {"name": "look", "willContinue": True}}]),
    ],
)
def test_an_answer_that_cannot_be_used_is_invalid(document: dict[str, Any]) -> None:
    with pytest.raises(ProviderError) as caught:
        read_reply(document, "gemini", "m")
    assert (caught.value.kind, caught.value.retryable) == ("reply_invalid", True)


def test_arguments_keep_the_order_they_came_in() -> None:
    message = read([function(args={"b": 1, "a": 1.0}), {"functionCall": {"name": "look"}}, function(args=[1])])
    assert [call.arguments for call in message.calls] == ['{"b": 1, "a": 1.0}', "{}", "[1]"]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Usage()),
        ({"trafficType": "ON_DEMAND"}, Usage()),
        ({"promptTokenCount": "12", "candidatesTokenCount": None}, Usage()),
        (
            {"promptTokenCount": 9, "thoughtsTokenCount": 3},
            Usage(input_tokens=9, output_tokens=3, reasoning_tokens=3),
        ),
        (
            {
                "promptTokenCount": 9,
                "toolUsePromptTokenCount": 1,
                "candidatesTokenCount": 4,
                "thoughtsTokenCount": 3,
                "cachedContentTokenCount": 8,
            },
            Usage(input_tokens=10, output_tokens=7, cache_read_tokens=8, reasoning_tokens=3),
        ),
    ],
)
def test_thoughts_count_as_output_and_what_is_unknown_stays_so(usage: Any, expected: Usage) -> None:
    assert read_reply(answer([], usageMetadata=usage), "gemini", "m").usage == expected


# ---------------------------------------------------------------------------------------------- streams


def streamed(*chunks: list[dict[str, Any]]) -> AssistantMessage:
    events = [("", answer(parts, None)) for parts in chunks]
    document = read_stream([*events, ("", answer([]))], "gemini", lambda _: None)
    return read_reply(document, "gemini", "m").message


def piece(path: str, will_continue: bool = False, **value: Any) -> dict[str, Any]:
    partial = {"jsonPath": path, **value, **({"willContinue": True} if will_continue else {})}
    return {"functionCall": {"partialArgs": [partial], "willContinue": True}}


def test_arguments_in_pieces_become_whole() -> None:
    message = streamed(
        [{"functionCall": {"name": "look", "id": "w", "willContinue": True}, "thoughtSignature": SIGNED}],
        [piece("$.city", True, stringValue="New ")],
        [piece("$.city", True, stringValue="York")],
        [piece("$.city", stringValue="")],
        [piece("$.n", numberValue=5)],
        [piece("$.ok", boolValue=False), piece("$.none", nullValue="NULL_VALUE")],
        [piece("$.list[0].a", stringValue="x"), piece("$.list[0]['b c']", numberValue=1.5)],
        [piece('$.list[1]["d"]', stringValue="y")],
        [{"functionCall": {}}],
        [function("other", {"a": 1})],
    )
    assert [(call.id, call.name) for call in message.calls] == [("w", "look"), ("", "other")]
    assert json.loads(message.calls[0].arguments) == {
        "city": "New York",
        "n": 5,
        "ok": False,
        "none": None,
        "list": [{"a": "x", "b c": 1.5}, {"d": "y"}],
    }
    kept = {"functionCall": {"name": "look", "id": "w"}, "thoughtSignature": SIGNED}
    assert [reasoning.data["block"] for reasoning in message.reasoning] == [kept]


@pytest.mark.parametrize(
    "pieces",
    [
        [piece("city", stringValue="x")],
        [piece("$", stringValue="x")],
        [piece("$..city", stringValue="x")],
        [piece("$.list[7]", stringValue="x")],
        [piece("$[0]", stringValue="x")],
        [piece("$.a", stringValue="x"), piece("$.a.b", stringValue="x")],
        [piece("$.a", stringValue="x"), piece("$.a[0]", stringValue="x")],
        [{"functionCall": {"partialArgs": [{"stringValue": "x"}], "willContinue": True}}],
        [{"functionCall": {"partialArgs": ["x"], "willContinue": True}}],
    ],
)
def test_pieces_that_do_not_fit_are_no_arguments(pieces: list[dict[str, Any]]) -> None:
    with pytest.raises(ProviderError) as caught:
        streamed([{"functionCall": {"name": "look", "willContinue": True}}], pieces, [{"functionCall": {}}])
    assert (caught.value.kind, caught.value.retryable) == ("reply_invalid", True)


def test_a_call_that_is_cut_in_the_middle_is_not_whole() -> None:
    events = [
        ("", answer([{"functionCall": {"name": "look", "willContinue": True}}], None)),
        ("", answer([piece("$.a", stringValue="x")], "MAX_TOKENS")),
    ]
    message = read_reply(read_stream(events, "gemini", lambda _: None), "gemini", "m").message
    assert (message.stop, message.calls[0].arguments) == ("length", '{"a": "x"}')
    with pytest.raises(ProviderError, match="no end"):
        streamed([{"functionCall": {"name": "look", "willContinue": True}}], [function("other")])


def test_the_last_usage_of_a_stream_is_the_whole() -> None:
    counts: list[dict[str, Any]] = [{"promptTokenCount": 5}, {"promptTokenCount": 5, "candidatesTokenCount": 1}, {}]
    events = [("", answer([{"text": "x"}], None, usageMetadata=count)) for count in counts]
    last = {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 3}}
    document = read_stream([*events, ("", answer([], "STOP")), ("", last)], "gemini", lambda _: None)
    reply = read_reply(document, "gemini", "m")
    assert (reply.message.text, reply.usage) == ("xxx", Usage(input_tokens=5, output_tokens=3))


def test_what_is_written_is_told_as_it_comes() -> None:
    told: list[Delta] = []
    parts = [THOUGHT, {"text": "a"}, {"text": "b", "thoughtSignature": SIGNED}, function(args={"n": 1})]
    read_stream([*[("", answer([part], None)) for part in parts], ("", answer([]))], "gemini", told.append)
    assert told == [
        Delta("reasoning", "hm"),
        Delta("text", "a"),
        Delta("text", "b"),
        Delta("arguments", '{"n": 1}', 0, "look"),
    ]


# ---------------------------------------------------------------------------------------------- the exchange


def test_the_key_is_in_a_header_and_googles_variable_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    request = ModelRequest("gemini-2.5-flash", "", [HI])
    with serve(response(answer([{"text": "x"}]))) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", f"{server.url}/")
        monkeypatch.setenv("GEMINI_API_KEY", "gemini-key")
        monkeypatch.setenv("GOOGLE_API_KEY", " ")
        Gemini().complete(request)
        monkeypatch.setenv("GOOGLE_API_KEY", "google-key")
        Gemini().complete(request)
        Gemini(api_key="own-key").complete(ModelRequest("tunedModels/a b", "", [HI]))
    assert [asked.headers["x-goog-api-key"] for asked in server.asked] == ["gemini-key", "google-key", "own-key"]
    assert [asked.path for asked in server.asked] == [
        "/v1beta/models/gemini-2.5-flash:generateContent",
        "/v1beta/models/gemini-2.5-flash:generateContent",
        "/v1beta/tunedModels/a%20b:generateContent",
    ]


def test_an_error_in_the_middle_of_a_stream_has_its_kind_and_never_the_key() -> None:
    error = {"error": {"code": 503, "message": "overloaded, my-secret-key", "status": "UNAVAILABLE"}}
    events = [answer([{"text": "half"}], None), error]
    sse = "".join(f"data: {json.dumps(event)}\r\n\r\n" for event in events).encode()
    request = ModelRequest("m", "", [HI], on_delta=lambda _: None)
    with serve(response(sse, content_type="text/event-stream")) as server, pytest.raises(ProviderError) as caught:
        Gemini(base_url=server.url, api_key="my-secret-key").complete(request)
    assert server.asked[0].path == "/v1beta/models/m:streamGenerateContent?alt=sse"
    assert (caught.value.kind, caught.value.retryable) == ("overloaded", True)
    assert "my-secret-key" not in caught.value.message


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("is_streamed", [True, False])
def test_an_error_has_its_kind_also_in_a_list(listed: bool, is_streamed: bool) -> None:
    invalid = {"reason": "API_KEY_INVALID", "@type": "type.googleapis.com/google.rpc.ErrorInfo"}
    key = {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT", "details": [invalid]}
    daily = next(shape for shape in SHAPES if shape["id"] == "shape-ge-429-daily")["response"]["body"]["error"]
    streams: dict[str, Any] = {"on_delta": lambda _: None} if is_streamed else {}
    request = ModelRequest("m", "", [HI], **streams)
    for error, kind in ((key, "auth_failed"), (daily, "quota_exceeded")):
        document: Any = [{"error": error}] if listed else {"error": error}
        with serve(response(document, error["code"])) as server, pytest.raises(ProviderError) as caught:
            Gemini(base_url=server.url, api_key="test-key").complete(request)
        assert (caught.value.kind, caught.value.retryable) == (kind, False)


@pytest.mark.parametrize(
    "message",
    ["Unsupported MIME type: image/tiff", "Unable to process input image.", "Image input modality is not enabled."],
)
def test_what_a_model_cannot_see_is_told_apart_from_other_refusals(message: str) -> None:
    error = {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}
    with serve(response(error, 400)) as server, pytest.raises(ProviderError) as caught:
        Gemini(base_url=server.url, api_key="test-key").complete(ModelRequest("m", "", [HI]))
    assert caught.value.kind == "content_unsupported"


def test_reasoning_of_another_provider_is_not_sent() -> None:
    foreign = Reasoning(provider="anthropic", model="gemini-3-pro", data={"block": {"type": "thinking"}})
    assert turns(HI, AssistantMessage(text="x", reasoning=(foreign,)))[1]["parts"] == [{"text": "x"}]
