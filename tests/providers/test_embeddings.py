"""Texts as vectors: what is asked, in which portions, and what is made of the answers."""

import base64
import struct
from typing import Any

import pytest

from agentq import Embeddings, embed
from agentq.errors import ConfigError, ProviderError
from agentq.messages import Usage
from agentq.providers.registry import KNOWN
from tests.providers.fake_server import Answer, Asked, response, serve
from tests.providers.rows import load, replay

ROWS = load("embeddings")
BY_ID = {row["id"]: row for row in ROWS}
# Their vectors were replaced by a picture, whose 70 bytes are no numbers of four bytes; the rest is as it was.
REPLACED = {"embeddings-7e3930-t0", "embeddings-4c8f6b-t0", "embeddings-e36f63-t0"}
FAULTS = {"embeddings-4c8f6b-t1": "auth_failed", "embeddings-2104d6-t0": "model_not_found"}
KEY = "test-secret-key"


def packed(*numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def asked_as(row: dict[str, Any], url: str) -> Embeddings:
    body = row["request"]["body"]
    if row["api"] == "gemini_embeddings":
        (only,) = body["requests"]
        model, text = only["model"].removeprefix("models/"), only["content"]["parts"][0]["text"]
        return embed(f"google:{model}", [text], settings={"taskType": only["taskType"]}, base_url=url, api_key=KEY)
    provider = row["provider"] if row["provider"] in KNOWN else "openai"
    given = body["input"]
    return embed(f"{provider}:{body['model']}", [given] if isinstance(given, str) else given, base_url=url, api_key=KEY)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_recorded_answer_is_read(row: dict[str, Any]) -> None:
    body = row["response"]["body"]
    with serve(lambda _: replay(row)) as server:
        if row["id"] in FAULTS or row["id"] in REPLACED:
            with pytest.raises(ProviderError) as caught:
                asked_as(row, server.url)
            assert caught.value.kind == FAULTS.get(row["id"], "reply_invalid")
            assert caught.value.details["status"] == (None if row["id"] in REPLACED else row["response"]["status"])
            return
        made = asked_as(row, server.url)
    if row["api"] == "gemini_embeddings":
        assert made.vectors == [body["embeddings"][0]["values"]]
        assert made.usage == Usage()
        assert made.model == "gemini:gemini-embedding-2-preview"
    else:
        assert made.vectors == [body["data"][0]["embedding"]]
        assert made.usage == Usage(input_tokens=body["usage"]["prompt_tokens"])


@pytest.mark.parametrize("row_id", sorted(REPLACED))
def test_a_recorded_answer_with_numbers_in_it_is_read(row_id: str) -> None:
    body = BY_ID[row_id]["response"]["body"]
    whole = {**body, "data": [{**body["data"][0], "embedding": packed(0.5, -2.0, 0.25)}]}
    with serve(response(whole)) as server:
        made = asked_as(BY_ID[row_id], server.url)
    assert made.vectors == [[0.5, -2.0, 0.25]]
    assert made.usage == Usage(input_tokens=body["usage"]["prompt_tokens"])


@pytest.mark.parametrize("row_id", ["embeddings-7e3930-t0", "embeddings-1373a1-t0", "embeddings-d065a5-t0"])
def test_a_recorded_request_is_the_one_we_make(row_id: str) -> None:
    row = BY_ID[row_id]
    with serve(lambda _: replay(row)) as server:
        try:
            asked_as(row, server.url)
        except ProviderError:
            assert row_id in REPLACED
    assert server.asked[0].body == row["request"]["body"]
    assert row["request"]["url"].endswith(server.asked[0].path)
    header = "x-goog-api-key" if row["provider"] == "gemini" else "authorization"
    assert KEY in server.asked[0].headers[header]


# ---------------------------------------------------------------------------------------------- portions


def numbered(asked: Asked) -> Answer:
    """To each text a vector that tells it apart, in a wrong order."""
    data = [{"index": n, "embedding": [float(text), 1]} for n, text in enumerate(asked.body["input"])]
    return response({"data": data[::-1], "usage": {"prompt_tokens": len(data)}})


def numbered_by_gemini(asked: Asked) -> Answer:
    texts = [each["content"]["parts"][0]["text"] for each in asked.body["requests"]]
    usage = {"usageMetadata": {"promptTokenCount": 1}} if len(texts) > 1 else {}
    return response({"embeddings": [{"values": [float(text), 1]} for text in texts], **usage})


def test_many_texts_are_sent_in_portions_and_come_back_in_their_order() -> None:
    texts = [str(number) for number in range(2050)]
    with serve(numbered) as server:
        made = embed("openai:m", texts, dimensions=2, base_url=server.url, api_key=KEY)
    assert [len(asked.body["input"]) for asked in server.asked] == [2048, 2]
    assert {asked.body["dimensions"] for asked in server.asked} == {2}
    assert made == Embeddings([[float(text), 1] for text in texts], Usage(input_tokens=2050), "openai:m")
    with serve(numbered_by_gemini) as server:
        made = embed("gemini:m", texts[:201], dimensions=2, base_url=server.url, api_key=KEY)
    assert [len(asked.body["requests"]) for asked in server.asked] == [100, 100, 1]
    assert {each["outputDimensionality"] for asked in server.asked for each in asked.body["requests"]} == {2}
    assert made == Embeddings([[float(text), 1] for text in texts[:201]], Usage(input_tokens=2), "gemini:m")


def test_long_texts_are_sent_in_portions_that_fit_together() -> None:
    texts = ["1" + " " * 199_999, "2" + "\u3000" * 133_333, "3", "4" + " " * 700_000, "5"]
    with serve(numbered) as server:
        made = embed("openai:m", texts, base_url=server.url, api_key=KEY)
    assert [[text[0] for text in asked.body["input"]] for asked in server.asked] == [["1", "2"], ["3"], ["4"], ["5"]]
    assert [vector[0] for vector in made.vectors] == [1, 2, 3, 4, 5]


def test_no_texts_are_no_request() -> None:
    assert embed("openai:m", []) == Embeddings([], Usage(), "openai:m")


def test_a_server_of_ones_own_needs_no_key_and_is_asked_for_nothing_it_may_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with serve(numbered) as server:
        monkeypatch.setenv("VLLM_BASE_URL", f"{server.url}/v1")
        assert embed("vllm:intfloat/e5", ["1"], settings={"user": "u"}).vectors == [[1.0, 1.0]]
    (asked,) = server.asked
    assert asked.path == "/v1/embeddings"
    assert asked.body == {"model": "intfloat/e5", "input": ["1"], "user": "u"}
    assert "authorization" not in asked.headers


def test_a_deployment_of_azure_has_its_own_path_and_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_VERSION", raising=False)
    with serve(numbered) as server:
        embed("azure:mine", ["1"], base_url=server.url, api_key=KEY)
    (asked,) = server.asked
    assert (asked.path, asked.headers["api-key"]) == ("/openai/v1/embeddings", KEY)


def test_numbers_may_be_left_out_by_all() -> None:
    with serve(response({"data": [{"embedding": [1]}, {"embedding": packed(2)}]})) as server:
        made = embed("vllm:m", ["a", "b"], base_url=server.url)
    assert made == Embeddings([[1.0], [2.0]], Usage(), "vllm:m")


# ---------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("texts", "options", "problem"),
    [
        ("one", {}, r"\[text\]"),
        (None, {}, "NoneType"),
        ([1], {}, r"texts\[0\] is a int"),
        (["a", " \n"], {}, r"texts\[1\] has no visible"),
        (["a"], {"dimensions": 0}, "dimensions"),
        (["a"], {"dimensions": True}, "dimensions"),
        (["a"], {"dimensions": "8"}, "dimensions"),
    ],
)
def test_what_no_provider_takes_is_refused_before_anything_is_sent(texts: Any, options: Any, problem: str) -> None:
    with serve(numbered) as server, pytest.raises(ConfigError, match=problem):
        embed("openai:m", texts, base_url=server.url, api_key=KEY, **options)
    assert server.asked == []


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("anthropic:claude", "has no embeddings"),
        ("text-embedding-3-small", "provider"),
        ("acme:m", "no known provider"),
    ],
)
def test_a_model_that_cannot_be_is_told(model: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        embed(model, ["a"])


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"data": "x"},
        {"data": []},
        {"data": [{"index": 0, "embedding": [1]}]},
        {"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]},
        {"data": [{"index": n, "embedding": [1]} for n in (0, 1, 1)]},
        {"data": [{"index": n, "embedding": [1]} for n in (0, 1, 2)]},
        {"data": [{"index": 1, "embedding": [1]}, {"index": 2, "embedding": [1]}]},
        {"data": [{"index": "0", "embedding": [1]}, {"index": "1", "embedding": [1]}]},
        {"data": [{"index": 0, "embedding": [1]}, None]},
        {"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": []}]},
        {"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}]},
        {"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [None]}]},
        {"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [True]}]},
        {"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": packed(float("nan"))}]},
        {"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": "AAAA"}]},
        {"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": "no base64"}]},
    ],
)
def test_an_answer_that_does_not_fit_the_texts_is_no_answer(document: dict[str, Any]) -> None:
    with serve(response(document)) as server, pytest.raises(ProviderError) as caught:
        embed("openai:m", ["a", "b"], base_url=server.url, api_key=KEY)
    assert (caught.value.kind, caught.value.retryable) == ("reply_invalid", True)


@pytest.mark.parametrize(
    "document",
    [{}, {"embeddings": None}, {"embeddings": [{"values": [1]}]}, {"embeddings": [{"values": [1]}, {}]}],
)
def test_an_answer_of_gemini_that_does_not_fit_is_none_either(document: dict[str, Any]) -> None:
    with serve(response(document)) as server, pytest.raises(ProviderError) as caught:
        embed("gemini:m", ["a", "b"], base_url=server.url, api_key=KEY)
    assert (caught.value.kind, caught.value.retryable) == ("reply_invalid", True)


def test_a_model_that_pays_no_heed_to_the_dimensions_is_told() -> None:
    with serve(numbered) as server, pytest.raises(ProviderError, match="2 numbers, not 8") as caught:
        embed("vllm:m", ["1"], dimensions=8, base_url=server.url)
    assert (caught.value.kind, caught.value.retryable) == ("request_rejected", False)


def test_a_limit_says_how_long_to_wait_and_never_the_key() -> None:
    error = {"error": {"message": f"slow down, {KEY}", "code": "rate_limit_exceeded"}}
    with serve(response(error, 429, retry_after="7")) as server, pytest.raises(ProviderError) as caught:
        embed("openai:m", ["a"], base_url=server.url, api_key=KEY)
    assert (caught.value.kind, caught.value.retryable, caught.value.retry_after) == ("rate_limited", True, 7)
    assert KEY not in caught.value.message
    assert len(server.asked) == 1
