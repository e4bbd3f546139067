"""Images and files in requests: in the form of each provider, and in words where there is none."""

from base64 import b64decode, b64encode
from typing import Any

import pytest

from agentq import File, Image
from agentq.errors import ProviderError
from agentq.inputs import checked_message
from agentq.messages import AssistantMessage, Message, ToolCall, ToolMessage, ToolResult, UserMessage
from agentq.providers import anthropic, openai_chat
from agentq.providers.anthropic import Anthropic
from agentq.providers.base import ModelRequest
from agentq.providers.faults import http_fault
from agentq.providers.http import HttpReply
from agentq.providers.openai_chat import OpenAIChat
from agentq.providers.profiles import PROFILES
from agentq.results import to_content
from tests.images import PDF, png
from tests.providers.fake_server import response, serve

PNG = b64encode(png()).decode()
PDF64 = b64encode(PDF).decode()
IMAGE = Image.from_bytes(png(), name="a.png")
REPORT = File.from_bytes(PDF, name="r.pdf")
TABLE = File.from_bytes(b"a,b\n1,2", name="t.csv")
ARCHIVE = File.from_bytes(b"PK\x03\x04", name="a.zip")
LINK = Image.from_url("https://x.invalid/a.png")
PDF_LINK = File.from_url("https://x.invalid/r.pdf")
SHOWN = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}


def user(*parts: Any) -> UserMessage:
    return UserMessage(**checked_message(list(parts)))


def asks(*ids: str) -> AssistantMessage:
    return AssistantMessage(calls=tuple(ToolCall(id=i, name="look", arguments="{}") for i in ids))


def back(call_id: str, value: Any, **more: Any) -> ToolMessage:
    text, media = to_content(value)
    return ToolMessage(result=ToolResult(call_id=call_id, name="look", text=text, media=media, **more))


def chat(*messages: Message, provider: str = "openai") -> list[dict[str, Any]]:
    body = openai_chat.request_body(ModelRequest("m", "", messages), provider, PROFILES[provider])
    sent: list[dict[str, Any]] = body["messages"]
    return sent


def claude(*messages: Message) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = anthropic.request_body(ModelRequest("m", "", messages), "anthropic")["messages"]
    return sent


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


# ---------------------------------------------------------------------------------------------- of users


def test_a_text_is_sent_to_chat_as_ever() -> None:
    assert chat(user("hi")) == [{"role": "user", "content": "hi"}]


def test_chat_gets_images_and_pdfs_as_parts_and_text_files_as_text() -> None:
    (sent,) = chat(user("Look:", IMAGE, LINK, "and", REPORT, TABLE))
    assert sent["content"] == [
        text("Look:"),
        SHOWN,
        {"type": "image_url", "image_url": {"url": "https://x.invalid/a.png"}},
        text("and"),
        {"type": "file", "file": {"filename": "r.pdf", "file_data": f"data:application/pdf;base64,{PDF64}"}},
        text("[file t.csv, text/csv, 7 bytes]\na,b\n1,2\n[end of t.csv]"),
    ]


def test_messages_gets_images_and_documents_as_blocks() -> None:
    (sent,) = claude(user("Look:", IMAGE, LINK, REPORT, PDF_LINK, TABLE))
    pdf = {"type": "base64", "media_type": "application/pdf", "data": PDF64}
    assert sent["content"] == [
        text("Look:"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"type": "image", "source": {"type": "url", "url": "https://x.invalid/a.png"}},
        {"type": "document", "source": pdf, "title": "r.pdf"},
        {"type": "document", "source": {"type": "url", "url": "https://x.invalid/r.pdf"}},
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "a,b\n1,2"},
            "title": "t.csv",
        },
    ]


def test_a_file_that_holds_an_image_is_sent_as_one() -> None:
    picture = File.from_bytes(png())
    assert chat(user(picture))[0]["content"] == [SHOWN]
    assert claude(user(picture))[0]["content"][0]["type"] == "image"


@pytest.mark.parametrize("media", [ARCHIVE, Image.from_bytes(b"II*\x00", name="a.tiff")])
def test_what_a_provider_has_no_form_for_is_an_error_that_names_it(media: Any) -> None:
    for send in (chat, claude):
        with pytest.raises(ProviderError) as raised:
            send(user("look", media))
        assert (raised.value.code, raised.value.retryable) == ("provider_content_unsupported", False)
        assert str(media) in raised.value.message
        assert "or use a model that can" in raised.value.message


def test_a_file_by_its_url_and_a_pdf_where_there_are_no_files_are_refused_by_chat() -> None:
    with pytest.raises(ProviderError, match="give the bytes instead of the URL"):
        chat(user(PDF_LINK))
    with pytest.raises(ProviderError, match=r"groq cannot take \[file r\.pdf"):
        chat(user(REPORT), provider="groq")
    assert chat(user(REPORT), provider="openrouter")[0]["content"][0]["type"] == "file"


def test_a_blank_text_file_is_said_to_be_blank() -> None:
    (sent,) = claude(user("look", File.from_bytes(b" \n", name="a.txt")))
    assert sent["content"][1] == text("[file a.txt, text/plain, 2 bytes: it is blank]")


# ---------------------------------------------------------------------------------------------- of tools


def test_messages_gets_what_tools_return_inside_their_results() -> None:
    sent = claude(user("go"), asks("a", "b"), back("a", ["sales:", IMAGE, TABLE]), back("b", "plain"))
    first, second = sent[2]["content"]
    assert [block["type"] for block in first["content"]] == ["text", "image", "document"]
    assert second["content"] == "plain"


def test_chat_gets_what_tools_return_behind_all_results_of_the_turn() -> None:
    sent = chat(
        user("go"),
        asks("a", "b"),
        back("a", ["sales:", IMAGE, "over"]),
        back("b", LINK),
        asks("c"),
        back("c", TABLE),
        AssistantMessage(text="done"),
    )
    ends = ["assistant", "tool", "assistant"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "user", *ends]
    size = len(png())
    assert sent[2]["content"] == f"sales:\n[image a.png, image/png, {size} bytes], shown below as number 1\nover"
    assert "shown below as number 2" in sent[3]["content"]
    assert sent[4]["content"] == [
        text("Number 1, from look:"),
        SHOWN,
        text("Number 2, from look:"),
        {"type": "image_url", "image_url": {"url": LINK.url}},
    ]
    # A text needs no message of its own.
    assert "a,b\n1,2" in sent[6]["content"]


def test_a_users_message_behind_results_with_images_is_one_message_with_them() -> None:
    sent = chat(user("go"), asks("a"), back("a", IMAGE), user("And?"))
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]
    assert sent[3]["content"] == [text("Number 1, from look:"), SHOWN, text("And?")]


def test_where_no_user_may_follow_a_tool_an_assistant_stands_between() -> None:
    sent = chat(user("go"), asks("a"), back("a", IMAGE), provider="mistral")
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant", "user"]


def test_what_a_provider_cannot_take_of_a_tool_is_told_in_words() -> None:
    told = "[file a.zip, application/zip, 4 bytes: this model cannot take it]"
    assert told in chat(user("go"), asks("a"), back("a", ["x", ARCHIVE]))[2]["content"]
    assert claude(user("go"), asks("a"), back("a", ["x", ARCHIVE]))[2]["content"][0]["content"][1]["text"] == told


def test_a_result_that_is_an_error_goes_to_messages_in_words_only() -> None:
    block = claude(user("go"), asks("a"), back("a", ["no", IMAGE], status="error"))[2]["content"][0]
    assert block["is_error"]
    assert [part["type"] for part in block["content"]] == ["text", "text"]


# ---------------------------------------------------------------------------------------------- models without eyes


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "Failed to deserialize the JSON body: messages[1]: unknown variant `image_url`, expected `text`"),
        (400, "Invalid content type. image_url is only supported by certain models."),
        (404, "No endpoints found that support image input"),
        (400, "'messages.1.content' : content must be a string"),
        (400, "Image input is not enabled for this model"),
        (400, "m is not a multimodal model"),
        (400, "At most 0 image(s) may be provided in one prompt."),
        (500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"),
        (400, "this model does not support images"),
        (400, "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes"),
        (400, "messages.0.content.1.image.source.base64.data: Image dimensions exceed max allowed size: 8000 pixels"),
        (400, "Could not process image"),
        (400, "You uploaded an unsupported image. Please make sure your image is valid."),
        (400, "Error while downloading https://x.invalid/a.png."),
        (400, "Timeout while downloading https://x.invalid/a.png."),
        (400, "Unable to download the file. Please verify the URL and try again."),
        (400, "Invalid image."),
        (400, "The image data you provided does not represent a valid image. Please check your input."),
        (400, "Provided image is not valid."),
        (400, "messages.0.content.1.pdf.source.base64.data: The PDF specified was not valid."),
        (400, "The PDF specified is password protected."),
        (400, "A maximum of 100 PDF pages may be provided."),
        (400, "too many images and documents: 104 + 1 > 100"),
        (400, "The image was specified using the image/jpeg media type, but the image appears to be a image/png image"),
        (400, "Unable to process input image. Please retry or report"),
    ],
)
def test_a_model_that_says_that_it_cannot_take_an_image_is_understood(status: int, message: str) -> None:
    body = b'{"error": {"message": "%s"}}' % message.encode()
    error = http_fault("x", HttpReply(status, {}, body))
    assert error is not None
    assert error.code == "provider_content_unsupported"


@pytest.mark.parametrize("message", ["the image of the world is wrong", "messages.1: role must be user", "documents"])
def test_another_complaint_is_no_word_on_images(message: str) -> None:
    error = http_fault("x", HttpReply(400, {}, b'{"error": {"message": "%s"}}' % message.encode()))
    assert error is not None
    assert error.code == "provider_request_rejected"


@pytest.mark.parametrize("make", [OpenAIChat, Anthropic])
def test_the_largest_images_go_through_a_real_socket(make: Any) -> None:
    large = [Image.from_bytes(png(n, filled_to=20_000_000)) for n in range(2)]
    chat_reply = {"choices": [{"finish_reason": "stop", "message": {"content": "seen"}}]}
    reply = chat_reply | {"content": [{"type": "text", "text": "seen"}], "stop_reason": "end_turn"}
    with serve(response(reply)) as server:
        provider = make(base_url=server.url, api_key="k")
        assert provider.complete(ModelRequest("m", "", [user("look", *large)])).message.text == "seen"
        (asked,) = server.asked
    *_, last = asked.body["messages"][0]["content"]
    sent = last["image_url"]["url"].partition(",")[2] if "image_url" in last else last["source"]["data"]
    assert b64decode(sent) == png(1, filled_to=20_000_000)
