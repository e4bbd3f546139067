"""E1, E2, E3, E5: what a provider answers instead of a reply, through the whole loop, on a real socket."""

import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from agentq import Agent, Handle, RunFailedError, tool
from agentq.providers.anthropic import Anthropic
from agentq.providers.openai_chat import OpenAIChat
from agentq.retry import MODEL_TRIES
from agentq.storage.database import Database
from tests.engine.drain import Drain
from tests.providers.fake_server import Answer, FakeServer, head, response, serve

LIMITED = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
ANSWER = {"choices": [{"message": {"content": "done"}, "finish_reason": "stop"}]}


def openai(url: str, name: str = "first") -> OpenAIChat:
    return OpenAIChat("openai", base_url=url, api_key="sk-test-key", model=name)


def settle(drain: Drain, handle: Handle) -> list[float]:
    """Let everything come and all time pass; the answer is for how long the run waited, each time."""
    waits = []
    for _ in range(50):
        drain.work()
        run = handle.run()
        if run.is_terminal:
            return waits
        assert run.lease_until is None, "nobody holds a worker while it waits"
        assert run.due_at is not None
        waits.append((run.due_at - run.updated_at).total_seconds())
        drain.age(200)
        drain.sweep()
    raise AssertionError(handle.run())


def attempts(handle: Handle) -> list[tuple[str, str | None]]:
    """Which model was called how often, and what it said."""
    steps = [event.data for event in handle.events(follow=False) if event.type == "step"]
    return [(step["model"], step.get("error")) for step in steps]


def in_secs(secs: float) -> str:
    return formatdate(time.time() + secs, usegmt=True)


@pytest.mark.parametrize(
    ("hint", "least", "most"),
    [
        ("2", 2, 3),
        ("0", 0.3, 1.5),
        ("-1", 0.3, 1.5),
        ("soon", 0.3, 1.5),
        ("nan", 0.3, 1.5),
        (lambda: in_secs(30), 25, 34),
        (lambda: in_secs(-30), 0.3, 1.5),
        (None, 0.3, 1.5),
        ("120", 120, 133),
    ],
)
def test_e1_a_sane_hint_is_kept_any_other_is_the_usual_backoff(
    database: Database, hint: str | Callable[[], str] | None, least: float, most: float
) -> None:
    def answer(_: object) -> Answer:
        if len(server.asked) > 1:
            return response(ANSWER)
        value = hint() if callable(hint) else hint
        return response(LIMITED, 429, **({} if value is None else {"retry_after": value}))

    with serve(answer) as server:
        drain = Drain(database, agent := Agent("test", model=openai(server.url)))
        handle = drain.enqueue(agent)
        (wait,) = settle(drain, handle)
    assert least <= wait <= most
    assert handle.result().text == "done"


def test_e1_a_hint_over_the_cap_fails_promptly_or_goes_to_the_fallback(database: Database) -> None:
    with (
        serve(lambda _: response(LIMITED, 429, retry_after="86400")) as busy,
        serve(lambda _: response(ANSWER)) as free,
    ):
        alone = Agent("alone", model=openai(busy.url))
        helped = Agent("helped", model=openai(busy.url), fallback=[openai(free.url, "second")])
        drain = Drain(database, alone, helped)
        handles = [drain.enqueue(alone), drain.enqueue(helped)]
        assert [settle(drain, handle) for handle in handles] == [[], []]
    with pytest.raises(RunFailedError) as caught:
        handles[0].result()
    assert caught.value.code == "provider_rate_limited"
    assert handles[1].result().text == "done"


def refused(_: FakeServer) -> str:
    return "http://127.0.0.1:1"


def nowhere(_: FakeServer) -> str:
    return "http://nowhere.invalid"


def there(server: FakeServer) -> str:
    return server.url


@pytest.mark.parametrize(
    ("url", "code"),
    [(there, "provider_overloaded"), (refused, "provider_network"), (nowhere, "provider_network")],
    ids=["529", "refused", "unknown host"],
)
def test_e2_after_bounded_tries_the_fallback_answers_and_the_record_says_so(
    database: Database, url: Callable[[FakeServer], str], code: str
) -> None:
    with serve(lambda _: response(OVERLOADED, 529)) as busy, serve(lambda _: response(ANSWER)) as free:
        first = Anthropic(base_url=url(busy), api_key="sk-test-key", model="first")
        drain = Drain(database, agent := Agent("test", model=first, fallback=[openai(free.url, "second")]))
        handle = drain.enqueue(agent)
        settle(drain, handle)
    assert handle.result().text == "done"
    assert attempts(handle) == [("first", code)] * MODEL_TRIES + [("second", None)]
    (reply,) = [message for message in handle.messages() if message.role == "assistant"]
    assert (reply.provider, reply.model) == ("openai", "second")


def test_e2_a_read_that_takes_too_long_is_such_a_fault_and_no_model_call_is_longer_than_it_may_be(
    database: Database,
) -> None:
    def drips(_: object) -> Answer:
        yield head(200, {"content-type": "application/json"})
        for _ in range(200):
            time.sleep(0.05)
            yield b" "

    with serve(drips) as slow, serve(lambda _: response(ANSWER)) as free:
        models: dict[str, Any] = {"model": openai(slow.url), "fallback": [openai(free.url, "second")]}
        drain = Drain(database, agent := Agent("test", **models, model_timeout_secs=0.3))
        handle = drain.enqueue(agent)
        settle(drain, handle)
    assert attempts(handle) == [("first", "provider_network")] * MODEL_TRIES + [("second", None)]


def test_e2_where_all_models_are_used_up_the_error_says_what_each_one_said(database: Database) -> None:
    gone = {"error": {"message": "no such model", "code": "model_not_found"}}
    broke = {"error": {"message": "no credit", "code": "insufficient_quota"}}
    with (
        serve(lambda _: response(OVERLOADED, 529)) as busy,
        serve(lambda _: response(gone, 404)) as unknown,
        serve(lambda _: response(broke, 429)) as poor,
    ):
        fallback = [openai(unknown.url, "second"), openai(poor.url, "third")]
        drain = Drain(database, agent := Agent("test", model=openai(busy.url), fallback=fallback))
        handle = drain.enqueue(agent)
        settle(drain, handle)
    with pytest.raises(RunFailedError) as caught:
        handle.result()
    assert caught.value.code == "provider_quota_exceeded"
    for word in ("openai:first", "Overloaded", "openai:second", "no such model", "openai:third", "no credit"):
        assert word in caught.value.message
    assert [(each["model"], each["code"], each["tries"]) for each in caught.value.details["models"]] == [
        ("first", "provider_overloaded", MODEL_TRIES),
        ("second", "provider_model_not_found", 1),
        ("third", "provider_quota_exceeded", 1),
    ]
    assert attempts(handle) == [
        *[("first", "provider_overloaded")] * MODEL_TRIES,
        ("second", "provider_model_not_found"),
        ("third", "provider_quota_exceeded"),
    ]
    # A retry begins from the first again.
    handle.retry()
    settle(drain, handle)
    assert len(handle.run().error.details["models"]) == 3  # type: ignore[union-attr]


CALL = {"id": "c", "type": "function", "function": {"name": "act", "arguments": "{}"}}
WITH_A_CALL = {"choices": [{"message": {"content": "", "tool_calls": [CALL]}, "finish_reason": "tool_calls"}]}


def cut(body: bytes, **headers: str) -> list[bytes]:
    return [head(200, {"content-type": "application/json", **headers}), body]


@pytest.mark.parametrize(
    "answer",
    [
        response(b"<html><title>Service Unavailable</title></html>", 503),
        response(b"<html><title>Login</title></html>"),
        response({"id": None, "choices": None, "error": {"code": 429, "message": "slow"}}),
        response({"choices": []}),
        response({"id": None, "choices": None}),
        response(OVERLOADED),
        response({**WITH_A_CALL, "error": {"code": 502, "message": "up"}}),
        cut(b'{"choices": [{"message": {"tool_calls": [', **{"content-length": "4000"}),
        cut(b"20\r\n{", **{"transfer-encoding": "chunked"}),
        cut(b'{"choices": [{"message": {"tool_calls": [', connection="close"),
        response('{"choices": [{"message": {"content": "caf\u00e9"}}]}'.encode("latin-1")),
    ],
    ids=["503 html", "html", "embedded", "none", "nulls", "error", "beside", "length", "chunk", "closed", "latin-1"],
)
def test_e3_whatever_is_no_reply_is_a_fault_of_the_provider_and_nothing_of_it_is_done(
    database: Database, answer: list[bytes]
) -> None:
    ran: list[int] = []

    @tool
    def act() -> str:
        """Act."""
        ran.append(1)
        return "acted"

    with serve(answer) as bad, serve(lambda _: response(ANSWER)) as good:
        agent = Agent("test", model=openai(bad.url), fallback=[openai(good.url, "second")], tools=[act])
        drain = Drain(database, agent)
        handle = drain.enqueue(agent)
        settle(drain, handle)
    assert (handle.result().text, ran, len(handle.messages())) == ("done", [], 2)
    tried = attempts(handle)
    assert [name for name, _ in tried] == ["first"] * MODEL_TRIES + ["second"]
    assert all(str(error).startswith("provider_") for _, error in tried[:-1])


@pytest.mark.parametrize(
    ("status", "error", "code", "falls_back"),
    [
        (429, {"code": "insufficient_quota", "message": "no credit"}, "quota_exceeded", True),
        (400, {"code": "context_length_exceeded", "message": "too long"}, "context_too_long", True),
        (401, {"code": "invalid_api_key", "message": "who are you"}, "auth_failed", True),
        (404, {"code": "model_not_found", "message": "no such model"}, "model_not_found", True),
        (400, {"code": "invalid_function_parameters", "message": "bad schema"}, "request_rejected", False),
    ],
)
def test_e5_no_second_try_of_what_cannot_succeed(
    database: Database, status: int, error: dict[str, str], code: str, falls_back: bool
) -> None:
    with serve(lambda _: response({"error": error}, status)) as bad, serve(lambda _: response(ANSWER)) as good:
        alone = Agent("alone", model=openai(bad.url))
        helped = Agent("helped", model=openai(bad.url), fallback=[openai(good.url, "second")])
        drain = Drain(database, alone, helped)
        handles = [drain.enqueue(alone), drain.enqueue(helped)]
        assert [settle(drain, handle) for handle in handles] == [[], []]
    with pytest.raises(RunFailedError, match=error["message"]) as caught:
        handles[0].result()
    assert caught.value.code == f"provider_{code}"
    assert attempts(handles[0]) == [("first", f"provider_{code}")]
    assert (handles[1].status() == "completed") == falls_back
    assert len(bad.asked) == 2


@pytest.mark.parametrize(("status", "wish", "tries"), [(529, "false", 1), (400, "true", MODEL_TRIES)])
def test_the_servers_word_on_trying_again_is_kept(database: Database, status: int, wish: str, tries: int) -> None:
    with serve(lambda _: response({"error": {"message": "no"}}, status, x_should_retry=wish)) as server:
        drain = Drain(database, agent := Agent("test", model=openai(server.url)))
        settle(drain, drain.enqueue(agent))
    assert len(server.asked) == tries
