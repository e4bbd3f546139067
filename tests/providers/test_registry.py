"""From a model's name to its provider: checked early, keys asked for late."""

import copy
import pickle

import pytest

from agentq.errors import ConfigError, ProviderError
from agentq.messages import UserMessage
from agentq.providers.anthropic import Anthropic
from agentq.providers.base import ModelRequest
from agentq.providers.endpoint import Secret
from agentq.providers.openai_chat import OpenAIChat
from agentq.providers.profiles import PROFILES, variable
from agentq.providers.registry import KNOWN, check, missing_key, resolve
from agentq.providers.scripted import Scripted
from tests.providers.fake_server import response, serve

KEY = "sk-secret-0123456789"
GOOD = {"choices": [{"message": {"content": "hello"}}]}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*KNOWN, "acme"):
        monkeypatch.delenv(variable(name, "API_KEY"), raising=False)
        monkeypatch.delenv(variable(name, "BASE_URL"), raising=False)
    for name in ("ANTHROPIC_AUTH_TOKEN", "AZURE_OPENAI_AD_TOKEN", "OPENAI_API_VERSION"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("model", "provider", "name"),
    [
        ("openai:gpt-5.2", OpenAIChat, "gpt-5.2"),
        ("anthropic:claude-sonnet-4-5", Anthropic, "claude-sonnet-4-5"),
        ("ollama:qwen3:0.6b", OpenAIChat, "qwen3:0.6b"),
        ("openrouter:anthropic/claude-4.5-haiku", OpenAIChat, "anthropic/claude-4.5-haiku"),
    ],
)
def test_a_string_is_split_at_its_first_colon(model: str, provider: type, name: str) -> None:
    found, found_name = resolve(model)
    assert isinstance(found, provider)
    assert (found.name, found_name) == (model.partition(":")[0], name)


def test_a_provider_object_is_taken_as_it_is() -> None:
    scripted = Scripted(["x"])
    assert resolve(scripted) == (scripted, "scripted")
    own = OpenAIChat("acme", base_url="http://127.0.0.1:9", model="llama")
    assert resolve(own) == (own, "llama")


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("gpt-5.2", "did you mean 'openai:gpt-5.2'"),
        ("o3-mini", "did you mean 'openai:o3-mini'"),
        ("claude-sonnet-4-5", "did you mean 'anthropic:claude-sonnet-4-5'"),
        ("openai/gpt-4o", "did you mean 'openai:gpt-4o'"),
        ("antropic:claude", "did you mean 'anthropic:claude'"),
        ("OpenAI:gpt-5.2", "did you mean 'openai:gpt-5.2'"),
        ("llama3", "openai, anthropic"),
        ("acme:llama3", "openai, anthropic"),
        ("openai:", "no provider"),
        ("", "no provider"),
    ],
)
def test_a_name_that_cannot_be_right_is_told_with_a_way_out(model: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(model)
    assert hint in str(caught.value)


@pytest.mark.parametrize("model", [None, 5, ["openai:x"], object()])
def test_a_model_that_is_neither_string_nor_provider_is_refused(model: object) -> None:
    with pytest.raises(ConfigError, match="not a"):
        check(model)


@pytest.mark.parametrize("name", KNOWN)
def test_every_known_provider_can_be_named_without_a_key(name: str) -> None:
    check(f"{name}:some-model")


@pytest.mark.parametrize("name", [name for name in KNOWN if name == "anthropic" or PROFILES[name].key_required])
def test_a_missing_key_is_told_when_the_model_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://acme.invalid")
    provider, model = resolve(f"{name}:some-model")
    with pytest.raises(ProviderError) as caught:
        provider.complete(ModelRequest(model, "", [UserMessage(text="hi")]))
    assert caught.value.kind == "auth_failed"
    assert f"set {variable(name, 'API_KEY')}" in caught.value.message
    assert missing_key(f"{name}:some-model") == variable(name, "API_KEY")


@pytest.mark.parametrize("name", ["openai", "vllm", "ollama", "groq"])
def test_address_and_key_are_read_at_the_time_of_the_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, model = resolve(f"{name}:m")
    with serve(response(GOOD)) as server:
        monkeypatch.setenv(f"{name.upper()}_BASE_URL", f"{server.url}/v1/")
        monkeypatch.setenv(f"{name.upper()}_API_KEY", f" {KEY}\n")
        assert provider.complete(ModelRequest(model, "", [UserMessage(text="hi")])).message.text == "hello"
        assert server.asked[0].path == "/v1/chat/completions"
        assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("address", "version", "path"),
    [
        ("", "", "/openai/v1/chat/completions"),
        ("/openai/v1/", "", "/openai/v1/chat/completions"),
        ("/openai/v1", "2024-10-21", "/openai/v1/chat/completions"),
        ("/", "2024-10-21", "/openai/deployments/my%20gpt/chat/completions?api-version=2024-10-21"),
    ],
)
def test_azure_is_called_by_its_address_and_version(
    address: str, version: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_VERSION", version)
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    with serve(response(GOOD)) as server:
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.url + address)
        provider, model = resolve("azure:my gpt")
        provider.complete(ModelRequest(model, "", [UserMessage(text="hi")]))
        monkeypatch.delenv("AZURE_OPENAI_API_KEY")
        monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "token")
        provider.complete(ModelRequest(model, "", [UserMessage(text="hi")]))
    by_key, by_token = server.asked
    assert (by_key.path, by_key.headers["api-key"], by_key.body["model"]) == (path, KEY, "my gpt")
    assert "authorization" not in by_key.headers
    assert (by_token.path, by_token.headers["authorization"]) == (path, "Bearer token")
    assert missing_key("azure:my gpt") is None


def test_a_local_server_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(response(GOOD)) as server:
        monkeypatch.setenv("VLLM_BASE_URL", server.url)
        resolve("vllm:m")[0].complete(ModelRequest("m", "", [UserMessage(text="hi")]))
        assert "authorization" not in server.asked[0].headers


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://x", "/v1"])
def test_an_address_that_is_none_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BASE_URL", url)
    with pytest.raises(ProviderError, match="VLLM_BASE_URL"):
        resolve("vllm:m")[0].complete(ModelRequest("m", "", []))
    with pytest.raises(ProviderError, match="base_url"):
        OpenAIChat("acme", base_url=url, api_key=KEY).complete(ModelRequest("m", "", []))


def test_a_key_given_in_code_is_in_no_repr_pickle_or_dict() -> None:
    for provider in (OpenAIChat(api_key=KEY), Anthropic(api_key=KEY)):
        endpoint = provider._endpoint
        shown = f"{provider!r} {endpoint!r} {vars(provider)} {vars(endpoint)} {pickle.dumps(provider)!r}"
        assert KEY not in shown
        assert endpoint.secret.read() == KEY
        assert copy.deepcopy(provider)._endpoint.secret.read() == KEY
        assert pickle.loads(pickle.dumps(provider))._endpoint.secret.read() == ""
    assert repr(Secret("A_KEY", KEY)) == "Secret('A_KEY')"
