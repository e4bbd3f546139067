"""Images and files as they are given: what they are told to be, what is refused at once, and their place in a text."""

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from agentq import ConfigError, ContentError, File, Image, ToolMessage, ToolResult, UserMessage
from agentq.content import MAX_MESSAGE_BYTES, MAX_PART_BYTES, MAX_PARTS, joined, shown_size, split
from agentq.inputs import checked_message
from agentq.limits import MAX_RESULT_CHARS
from agentq.messages import dump_message, load_message
from agentq.results import to_content, to_text
from tests.images import GIF, JPEG, PDF, WEBP, png


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (png(), "image/png"),
        (JPEG, "image/jpeg"),
        (GIF, "image/gif"),
        (WEBP, "image/webp"),
        (b"II*\x00tiff", "image/tiff"),
        (b"\x00\x00\x00\x18ftypheic", "image/heic"),
    ],
)
def test_an_image_is_told_by_how_it_begins_whatever_its_name(data: bytes, media_type: str) -> None:
    image = Image.from_bytes(data, name="photo.png")
    assert (image.media_type, image.size, image.data, image.name) == (media_type, len(data), data, "photo.png")


@pytest.mark.parametrize(
    ("data", "name", "media_type"),
    [
        (PDF, "x", "application/pdf"),
        (b"a,b\n1,2\n", "report.CSV", "text/csv"),
        (b"{}", "data.json", "application/json"),
        (b"# hi", "notes.md", "text/markdown"),
        (b"fn main() {}", "main.rs2", "text/plain"),
        ("ü\n".encode(), None, "text/plain"),
        (b"PK\x03\x04\xff\x00", "a.zip", "application/zip"),
        (b"PK\x03\x04", "a.zip", "application/zip"),
        (png(), "a.png", "image/png"),
        (b"\n" + PDF, "a.pdf", "application/pdf"),
        # Which Python, or a machine, takes for something that no model reads.
        *((b"let it = be;\n", f"a.{end}", "text/plain") for end in ("bat", "eml", "m3u8", "man", "ps", "rb", "tcl2")),
    ],
)
def test_a_file_is_told_by_its_beginning_or_its_name_or_is_text(data: bytes, name: str | None, media_type: str) -> None:
    assert File.from_bytes(data, name=name).media_type == media_type


def test_a_media_type_that_is_given_is_kept_in_its_usual_form() -> None:
    assert File.from_bytes(b"x\x00", media_type="Application/Zip; q=1").media_type == "application/zip"
    assert Image.from_bytes(JPEG, media_type="image/jpg").media_type == "image/jpeg"
    assert Image.from_bytes(b"svg", media_type="image/svg+xml").media_type == "image/svg+xml"


def test_a_path_gives_the_bytes_and_the_name(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(png(7))
    image = Image.from_path(tmp_path / "photo.png")
    assert (image.name, image.data) == ("photo.png", png(7))
    assert Image.from_path(str(tmp_path / "photo.png"), name="other").name == "other"


def test_a_url_is_kept_as_it_is_and_never_fetched() -> None:
    image = Image.from_url("https://x.invalid/a/photo.JPG?size=1")
    assert (image.url, image.media_type, image.sha256, image.data) == (
        "https://x.invalid/a/photo.JPG?size=1",
        "image/jpeg",
        "",
        None,
    )
    assert File.from_url("https://x.invalid/report").media_type == ""


@pytest.mark.parametrize("end", ["html", "pdf", "zip", "py", ""])
def test_an_image_by_its_url_is_one_whatever_its_path_ends_with(end: str) -> None:
    assert Image.from_url(f"https://x.invalid/chart.{end}?size=1").media_type == ""


def test_bytes_that_belong_to_another_image_are_refused() -> None:
    image = Image.from_bytes(png(1), name="a.png")
    with pytest.raises(ContentError, match="these are not its bytes; make another with Image") as raised:
        image.with_data(png(2))
    assert raised.value.details["problem"] == "other_bytes"
    assert image.with_data(None).with_data(png(1)).data == png(1)


def test_a_hash_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError, match="sha256"):
        Image(kind="image", sha256="../0")


def test_a_data_url_is_the_bytes_in_it() -> None:
    encoded = base64.b64encode(png()).decode()
    for url in (f"data:image/png;base64,{encoded}", f"DATA:image/png;base64, {encoded[:40]}\r\n{encoded[40:]}\n"):
        assert Image.from_url(url) == Image.from_bytes(png())
    assert File.from_url("data:text/plain,a%20b").data == b"a b"


def _too_large(path: Path) -> Path:
    with (path / "large.bin").open("wb") as file:
        file.truncate(MAX_PART_BYTES + 1)
    return path / "large.bin"


@pytest.mark.parametrize(
    ("make", "problem", "words"),
    [
        (lambda _: Image.from_bytes(b""), "empty", "the image: it has no bytes"),
        (lambda _: File.from_bytes(b"", name="a.txt"), "empty", "file 'a.txt': it has no bytes"),
        (lambda _: Image.from_bytes("text"), "wrong_type", "bytes are wanted, not str"),
        (lambda _: File.from_bytes(bytes(MAX_PART_BYTES + 1)), "too_large", "20.0 MB is the most"),
        (lambda path: File.from_path(_too_large(path)), "too_large", "file 'large.bin': it is 20.0 MB"),
        (lambda path: Image.from_path(path / "no.png"), "not_found", "give the path of one"),
        (File.from_path, "not_found", "it is no file"),
        (lambda _: File.from_path("/dev/zero"), "not_found", "it is no file"),
        (lambda _: File.from_bytes(b"\xff\xfe\x00", name="x"), "unknown_media_type", "say it with media_type="),
        (lambda _: File.from_bytes(b"\xe4", name="x.csv"), "not_text", "it is text/csv, but no UTF-8"),
        (lambda _: File.from_bytes(b"a", media_type="zip"), "unknown_media_type", "'zip' is no media type"),
        (lambda _: File.from_bytes(b"a", media_type="a/b\nc"), "unknown_media_type", "is no media type"),
        (lambda _: Image.from_bytes(PDF, name="x.png"), "unknown_media_type", "no image; use File for it"),
        (lambda _: Image.from_bytes(b"hello", name="x.png"), "unknown_media_type", "does not begin like image/png"),
        (lambda _: Image.from_bytes(b"hello"), "unknown_media_type", "begins like no known image"),
        (lambda _: Image.from_bytes(JPEG, media_type="image/png"), "unknown_media_type", "it is image/jpeg, not"),
        (lambda _: File.from_bytes(b"hello", name="x.png"), "unknown_media_type", "does not begin like image/png"),
        (lambda _: File.from_bytes(JPEG, media_type="image/png"), "unknown_media_type", "does not begin like"),
        (lambda _: File.from_bytes(b"hello", media_type="application/pdf"), "unknown_media_type", "begin like app"),
        (lambda _: Image.from_bytes(png(), media_type="text/plain"), "unknown_media_type", "use File for it"),
        (lambda _: Image.from_bytes(png(), name="x" * 201), "bad_name", "at most 200 characters"),
        (lambda _: Image.from_url("ftp://x/a.png"), "bad_url", "its URL is an http(s) one"),
        (lambda _: Image.from_url("photo.png"), "bad_url", "its URL is an http(s) one"),
        (lambda _: Image.from_url(Path("data:,x")), "bad_url", "its URL is an http(s) one"),  # type: ignore[arg-type]
        (lambda _: Image.from_url("https://[x"), "bad_url", "its URL is an http(s) one"),
        (lambda _: Image.from_url("https://x/" + "a" * 9_000), "bad_url", "8,000 characters"),
        (lambda _: Image.from_url("https://me:secret@x/a.png"), "bad_url", "holds a password"),
        (lambda _: Image.from_url("data:image/png;base64,%%%"), "bad_url", "cannot be read"),
        (lambda _: Image.from_url("data:image/png"), "bad_url", "cannot be read"),
    ],
)
def test_what_cannot_be_taken_is_refused_at_once_with_the_part_and_the_next_step(
    tmp_path: Path, make: Callable[[Path], Any], problem: str, words: str
) -> None:
    with pytest.raises(ContentError) as raised:
        make(tmp_path)
    assert (raised.value.code, raised.value.details["problem"]) == ("content_invalid", problem)
    assert words in raised.value.message
    assert "secret" not in raised.value.message


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file that not even root can read")
def test_a_file_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ContentError, match="'/proc/self/mem' cannot be read: Input/output error"):
        File.from_path("/proc/self/mem")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["hi", 5], "part 2 of the message is a text, an Image or a File, not a value of type int"),
        ([{"type": "text"}], "part 1 of the message"),
        ([png()], "part 1 of the message is a text, an Image or a File, not a value of type bytes"),
        (png(), "a run needs a message"),
        ([], "a run needs a message"),
        (["", " "], "a run needs a message"),
        ({"a": Image.from_bytes(png())}, "a run needs a message"),
        (["a", Image(kind="image")], "part 2 of the message has neither bytes nor a URL"),
        ([Image.from_bytes(png())] * (MAX_PARTS + 1), "give 100 at most"),
        (
            [File.from_bytes(bytes(MAX_PART_BYTES - n), media_type="a/b") for n in range(3)],
            f"are 60.0 MB together; {shown_size(MAX_MESSAGE_BYTES)} is the most",
        ),
    ],
    ids=range(10),
)
def test_a_message_that_cannot_be_taken_says_which_part(given: Any, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        checked_message(given)
    assert words in raised.value.message


def test_a_message_is_a_text_or_an_image_or_parts_in_their_order() -> None:
    one, two = Image.from_bytes(png(1)), File.from_bytes(PDF, name="r.pdf")
    assert checked_message("hi") == checked_message(["hi"]) == {"text": "hi", "media": ()}
    assert UserMessage(**checked_message(one)).parts == [one]
    assert UserMessage(**checked_message([one, "look", two, "and this"])).parts == [
        one,
        "look",
        two.placed(4),
        "and this",
    ]


PARTS = st.lists(
    st.one_of(
        st.text(min_size=1).filter(lambda text: text.strip()),
        st.integers(0, 3).map(lambda n: Image.from_bytes(png(n))),
        st.just(File.from_bytes(b"text", name="a.txt")),
    )
)


@given(PARTS)
def test_parts_come_back_as_they_were_but_for_texts_side_by_side(parts: list[Any]) -> None:
    merged: list[Any] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += f"\n{part}"
        else:
            merged.append(part)
    back = [part if isinstance(part, str) else part.placed(0) for part in split(*joined(parts))]
    assert back == merged


@given(PARTS, st.integers(-1, 50))
def test_a_shorter_text_loses_no_image(parts: list[Any], length: int) -> None:
    text, media = joined(parts)
    assert [part for part in split(text[: max(length, 0)], media) if not isinstance(part, str)] == list(media)


# ---------------------------------------------------------------------------------------------- what is stored


def test_a_text_message_is_stored_as_ever_and_an_older_one_is_read() -> None:
    assert dump_message(UserMessage(text="go")) == '{"role":"user","text":"go"}'
    assert load_message('{"role":"user","text":"go"}') == UserMessage(text="go")
    result = ToolResult(call_id="a", name="t", text="x")
    assert json.loads(dump_message(ToolMessage(result=result)))["result"].keys() == {"call_id", "name", "text"}


def test_a_message_is_stored_with_a_reference_and_without_bytes() -> None:
    image = Image.from_bytes(png(5), name="a.png")
    message = UserMessage(**checked_message(["look", image]))
    stored = dump_message(message)
    assert len(stored) < 250
    assert base64.b64encode(png(5)).decode() not in stored
    read = load_message(stored)
    assert read == message
    assert isinstance(read, UserMessage)
    assert read.media[0].data is None
    # A release before this one reads the text.
    assert read.text == "look"
    assert "data" not in repr(image)


# ---------------------------------------------------------------------------------------------- what tools return


def test_a_tool_may_return_an_image_or_a_list_with_texts_values_and_images() -> None:
    one, two = Image.from_bytes(png(1), name="chart.png"), File.from_bytes(PDF)
    assert to_content(one) == (f"[image chart.png, image/png, {len(png(1))} bytes]", (one,))
    text, media = to_content(["sales:", {"total": 5}, one, "source:", two])
    assert text == 'sales:\n{"total": 5}\nsource:'
    assert split(text, media) == ['sales:\n{"total": 5}', media[0], "source:", media[1]]
    assert [each.data for each in media] == [png(1), PDF]
    assert to_content(("x", one))[0] == "x"
    assert to_content(["a", 1]) == ('["a", 1]', ())


def test_the_text_of_a_result_with_images_is_cut_like_any_other() -> None:
    image = Image.from_bytes(png())
    text, media = to_content(["x" * 70_000, "y" * 70_000, image])
    assert MAX_RESULT_CHARS - 5 < len(text) <= MAX_RESULT_CHARS
    assert "[cut: 140001 characters" in text
    assert split(text, media)[-1] == media[0]


class Chart(BaseModel):
    title: str
    image: Any


IMAGE = Image.from_bytes(png())


@pytest.mark.parametrize(
    "value", [{"a": IMAGE}, [[IMAGE]], Chart(title="", image=IMAGE), Chart(title="", image=[IMAGE])]
)
def test_an_image_deeper_inside_a_value_is_an_error_that_says_where_it_may_be(value: Any) -> None:
    for form in (to_content, to_text):
        with pytest.raises(TypeError, match="return it by itself, or in a list"):
            form(value)


def test_a_tool_cannot_return_what_it_has_no_bytes_of() -> None:
    with pytest.raises(ContentError, match="has no bytes"):
        to_content(Image.from_bytes(png()).with_data(None))
    with pytest.raises(ContentError, match="the result has 101 images and files"):
        to_content([Image.from_bytes(png())] * 101)
    assert to_content(Image.from_url("https://x.invalid/a.png"))[1]
