"""Texts as vectors: by OpenAI's embeddings endpoint, the servers compatible with it, and Gemini."""

import base64
import binascii
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from agentq.errors import ConfigError, ProviderError
from agentq.messages import Usage
from agentq.providers.gemini import gemini_endpoint, model_path, resource
from agentq.providers.openai_chat import endpoint_of
from agentq.providers.profiles import PROFILES, azure_path
from agentq.providers.registry import named
from agentq.providers.transcript import count
from agentq.text import clean


@dataclass(frozen=True)
class Embeddings:
    """One vector a text, in the order of the texts. ``model`` is the "provider:model" that made them.

    Vectors of different models, or of different lengths, cannot be compared.
    """

    vectors: list[list[float]]
    usage: Usage
    model: str


@dataclass(frozen=True)
class _Most:
    """What goes into one request. The limit of all its tokens is kept by bytes: two a token is less than texts have."""

    texts: int
    size: int


# https://developers.openai.com/api/reference/resources/embeddings: 2048 texts, 300,000 tokens together.
_MOST = _Most(2048, 600_000)
_MOST_OF = {
    # BatchEmbedContents takes so many requests.
    "gemini": _Most(100, 600_000),
    # 16,384 tokens together.
    "mistral": _Most(512, 32_000),
}


def embed(
    model: str,
    texts: Sequence[str],
    *,
    dimensions: int | None = None,
    settings: Mapping[str, Any] | None = None,
    timeout_secs: float = 60.0,
    base_url: str | None = None,
    api_key: str | None = None,
) -> Embeddings:
    """The vectors of ``texts``, such as ``embed("openai:text-embedding-3-small", ["one", "two"])``.

    ``dimensions`` is the length of the vectors (default: the model's own); shorter ones of Gemini are not normalised.
    ``settings`` go out as they are, such as ``{"taskType": "RETRIEVAL_QUERY"}`` for Gemini. Many texts are sent in as
    many requests as the provider's limits make necessary, one after another, each bounded by ``timeout_secs``. Keys
    and addresses come from the variables that models of the same provider use.

    Nothing is tried twice: a ProviderError says with ``retryable`` and ``retry_after`` whether that is worth it.
    Raises ConfigError for a model that cannot be, and for texts that no provider takes.
    """
    name, model_name = named(model)
    _check(texts, dimensions)
    if name not in PROFILES and name != "gemini":
        raise ConfigError(f"{name} has no embeddings; name a model of another provider, such as openai or gemini")
    ask = _Ask(name, model_name, dimensions, dict(settings or {}), timeout_secs, base_url, api_key)
    vectors, usage = list[list[float]](), Usage()
    for batch in _batches([clean(text) for text in texts], _MOST_OF.get(name, _MOST)):
        made, used = _gemini(ask, batch) if name == "gemini" else _openai(ask, batch)
        _check_made(made, batch, ask)
        vectors += made
        usage += used
    return Embeddings(vectors, usage, f"{name}:{model_name}")


@dataclass(frozen=True)
class _Ask:
    provider: str
    model: str
    dimensions: int | None
    settings: dict[str, Any]
    timeout_secs: float
    base_url: str | None
    api_key: str | None


def _check(texts: Any, dimensions: Any) -> None:
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ConfigError(f"texts is a list of str, not a {type(texts).__name__}; give [text] for one")
    for place, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            what = "has no visible character" if isinstance(text, str) else f"is a {type(text).__name__}, no str"
            raise ConfigError(f"texts[{place}] {what}; leave it out, for providers refuse it with all the others")
    if dimensions is not None and (isinstance(dimensions, bool) or not isinstance(dimensions, int) or dimensions < 1):
        raise ConfigError(f"dimensions is a whole number of at least 1, not {dimensions!r}")


def _batches(texts: list[str], most: _Most) -> Iterator[list[str]]:
    batch, size = list[str](), 0
    for text in texts:
        more = len(text.encode())
        if batch and (len(batch) == most.texts or size + more > most.size):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += more
    if batch:
        yield batch


def _openai(ask: _Ask, batch: list[str]) -> tuple[list[list[float]], Usage]:
    body = {**ask.settings, "model": ask.model, "input": batch}
    if ask.provider in ("openai", "azure"):
        body.setdefault("encoding_format", "base64")  # a third of the bytes; others may not know it
    if ask.dimensions is not None:
        body["dimensions"] = ask.dimensions
    endpoint = endpoint_of(ask.provider, PROFILES[ask.provider], ask.base_url, ask.api_key, {})
    path = azure_path(endpoint.url, ask.model, "/embeddings") if ask.provider == "azure" else "/embeddings"
    document = endpoint.post(path, body, ask.timeout_secs)
    data = document.get("data")
    made: dict[int, list[float]] = {}
    for place, item in enumerate(data if isinstance(data, list) else ()):
        index = item.get("index", place) if isinstance(item, dict) else None
        if not isinstance(index, int) or index in made:
            raise _invalid(ask, "an answer whose vectors are not numbered one by one")
        made[index] = _vector(item.get("embedding"), ask)
    if sorted(made) != list(range(len(batch))):
        raise _invalid(ask, f"{len(made)} vectors for {len(batch)} texts, or not in their numbers")
    usage = document.get("usage")
    tokens = count(usage.get("prompt_tokens")) if isinstance(usage, dict) else None
    return [made[index] for index in range(len(batch))], Usage(input_tokens=tokens)


def _gemini(ask: _Ask, batch: list[str]) -> tuple[list[list[float]], Usage]:
    each = {"model": resource(ask.model), **ask.settings}
    if ask.dimensions is not None:
        each["outputDimensionality"] = ask.dimensions
    requests = [{**each, "content": {"parts": [{"text": text}]}} for text in batch]
    endpoint = gemini_endpoint(ask.provider, ask.base_url, ask.api_key, {})
    path = f"{model_path(ask.model)}:batchEmbedContents"
    document = endpoint.post(path, {"requests": requests}, ask.timeout_secs)
    made = document.get("embeddings")
    if not isinstance(made, list) or len(made) != len(batch):
        raise _invalid(ask, f"{len(made) if isinstance(made, list) else 'no'} vectors for {len(batch)} texts")
    usage = document.get("usageMetadata")
    tokens = count(usage.get("promptTokenCount")) if isinstance(usage, dict) else None
    vectors = [_vector(item.get("values") if isinstance(item, dict) else None, ask) for item in made]
    return vectors, Usage(input_tokens=tokens)


def _vector(value: Any, ask: _Ask) -> list[float]:
    """From numbers, or from base64 of their four bytes each, the lowest first."""
    numbers: Any = value
    if isinstance(value, str):
        try:
            data = base64.b64decode(value, validate=True)
            numbers = struct.unpack(f"<{len(data) // 4}f", data)
        except (binascii.Error, ValueError, struct.error):
            raise _invalid(ask, "a vector that cannot be read") from None
    if not isinstance(numbers, list | tuple) or not numbers or not all(map(_is_number, numbers)):
        raise _invalid(ask, "a vector that is not one of numbers")
    return [float(number) for number in numbers]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _check_made(made: list[list[float]], batch: list[str], ask: _Ask) -> None:
    lengths = {len(vector) for vector in made}
    if len(lengths) != 1:
        raise _invalid(ask, f"vectors of different lengths for {len(batch)} texts")
    if ask.dimensions not in (None, *lengths):
        problem = f"{ask.provider}: {ask.model} gives vectors of {lengths.pop()} numbers, not {ask.dimensions}"
        raise ProviderError("request_rejected", f"{problem}; leave dimensions out, or use a model that has a choice")


def _invalid(ask: _Ask, what: str) -> ProviderError:
    return ProviderError("reply_invalid", f"{ask.provider} answered with {what}")
