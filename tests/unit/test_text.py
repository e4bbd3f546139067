"""Foreign text is cleaned and cut in one place, and what is cut says so within its limit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentq.errors import MAX_ERROR_CHARS, ErrorInfo
from agentq.messages import AssistantMessage, ToolCall, ToolResult, UserMessage, load_message
from agentq.text import clean, cut


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("plain", "plain"),
        ("a\x00b", "a\ufffdb"),
        ("a\ud800b\udfff", "a\ufffdb\ufffd"),
        ("\U0001f600", "\U0001f600"),
        ("tab\tline\n\x01", "tab\tline\n\x01"),
        ("\\u0000", "\\u0000"),
    ],
)
def test_only_what_postgres_and_utf_8_refuse_is_replaced(given: str, expected: str) -> None:
    assert clean(given) == expected


def test_a_text_within_the_limit_is_whole() -> None:
    assert cut("x" * 100, 100) == "x" * 100


def test_a_cut_text_says_how_long_it_was_and_how_much_is_shown() -> None:
    text = cut("x" * 1000, 100)
    assert text.endswith("\n[cut: 1000 characters, the first 52 are shown]")
    assert text.count("x") == 52


@settings(max_examples=40, deadline=None)
@given(st.text(), st.integers(0, 200))
def test_no_text_is_longer_than_its_limit(text: str, limit: int) -> None:
    shown = cut(text * 20, limit)
    assert len(shown) <= limit
    assert shown == text * 20 or len(text * 20) > limit


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(codec=None)))
def test_a_clean_text_can_be_encoded_and_stays_as_it_is(text: str) -> None:
    assert clean(clean(text)) == clean(text)
    assert b"\x00" not in clean(text).encode()


def test_every_entrance_of_text_cleans() -> None:
    dirty, fine = "a\x00\ud800", "a\ufffd\ufffd"
    call = ToolCall(id=dirty, name=dirty, arguments=dirty)
    assert (call.id, call.name, call.arguments) == (fine, fine, fine)
    assert UserMessage(text=dirty).text == fine
    assert AssistantMessage(text=dirty).text == fine
    assert ToolResult.error(call, "tool_error", dirty).text == fine
    assert ErrorInfo(code="x", message=dirty).message == fine
    assert load_message(UserMessage(text=dirty).model_dump_json()) == UserMessage(text=fine)


def test_a_stored_error_is_bounded() -> None:
    assert len(ErrorInfo(code="x", message="y" * 5_000_000).message) == MAX_ERROR_CHARS
