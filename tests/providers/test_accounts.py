"""Whose limits a call counts for: the same in every process, told by provider, address and key, and no key in it."""

import subprocess
import sys

import pytest

from agentq.messages import AssistantMessage, Usage
from agentq.providers.accounts import account_of
from agentq.providers.anthropic import Anthropic
from agentq.providers.base import ModelReply, ModelRequest
from agentq.providers.openai_chat import OpenAIChat
from agentq.providers.openai_responses import OpenAIResponses
from agentq.providers.registry import resolve
from agentq.providers.scripted import Scripted

KEY = "sk-secret-0123456789"


def openai(*, name: str = "openai", url: str = "http://a", key: str = KEY, model: str = "m") -> OpenAIChat:
    return OpenAIChat(name, base_url=url, api_key=key, model=model)


def test_who_has_the_same_provider_address_and_key_has_the_same_account() -> None:
    first = account_of(openai())
    assert first == account_of(openai(url="http://a/")) == account_of(openai(model="n"))
    assert first == account_of(OpenAIResponses("openai", base_url="http://a", api_key=KEY))
    others = [
        openai(url="http://b"),
        openai(key="sk-other"),
        openai(name="groq"),
        Anthropic(base_url="http://a", api_key=KEY),
    ]
    assert len({first, *map(account_of, others)}) == 5
    assert first is not None
    assert KEY[3:9] not in first


def test_the_key_of_the_environment_counts_as_one_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://a/")
    assert account_of(resolve("openai:m")[0]) == account_of(openai())


def test_another_process_knows_the_account_by_the_same_name() -> None:
    code = (
        "from agentq.providers.accounts import account_of; from agentq.providers.openai_chat import OpenAIChat; "
        f"print(account_of(OpenAIChat('openai', base_url='http://a', api_key={KEY!r})))"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.strip() == account_of(openai())


def test_without_a_key_there_is_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    assert account_of(Anthropic()) is None
    # Ollama wants none: whoever calls that server shares it.
    assert account_of(OpenAIChat("ollama")) is not None


class Own:
    """A provider in a few lines."""

    def __init__(self, name: str) -> None:
        self.name = name

    def complete(self, request: ModelRequest) -> ModelReply:
        return ModelReply(AssistantMessage(text="done"), Usage())


def test_a_provider_of_ones_own_is_an_account_by_its_class_and_name_and_a_script_has_none() -> None:
    assert account_of(Own("a")) == account_of(Own("a")) != account_of(Own("b"))
    assert account_of(Scripted([])) is None
    assert account_of(Scripted([], account="one")) == "one"
