"""What is put on a Redis queue without kombu is what kombu would have put there, and gets there as surely."""

import json
import os
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from celery.signals import after_task_publish, before_task_publish

from agentq import producer
from agentq.errors import UnavailableError
from agentq.ids import new_id
from agentq.producer import CeleryDispatcher, make_app
from agentq.wire import RANKS, CallMessage, StepMessage
from tests.servers import Redis, running

STEP = StepMessage(new_id("run"), 7)
WAKE_UPS = [
    STEP,
    StepMessage(new_id("run"), 0, "slow", 12.5),
    CallMessage(new_id("run"), 3, 1, "agentq.tools", 60.0),
    StepMessage(new_id("run"), 7, priority=RANKS["high"]),
    CallMessage(new_id("run"), 3, 1, "agentq.tools", 60.0, priority=RANKS["low"]),
]
# The lists that kombu polls for a queue, in its order.
STEPS = ("", "\x06\x163", "\x06\x166", "\x06\x169")


def make_dispatcher(url: str) -> CeleryDispatcher:
    return CeleryDispatcher(make_app(url))


def take(url: str, queue: str) -> list[dict[str, Any]]:
    """The messages of a queue, oldest first, each with its body read and without what is new in every message."""
    with redis.Redis.from_url(url) as client:
        found = {step: client.lrange(queue + step, 0, -1) for step in STEPS}
        client.delete(*(queue + step for step in STEPS))
    messages = [json.loads(message) | {"list": step} for step in STEPS for message in reversed(found[step])]
    for message in messages:
        message["body"] = json.loads(b64decode(message["body"]))
        ids = [message["headers"].pop("id"), message["headers"].pop("root_id")]
        assert {message["properties"].pop("correlation_id"), *ids} == {ids[0]}
        assert message["properties"].pop("delivery_tag") != ids[0]
    return messages


@pytest.mark.parametrize("wake_up", WAKE_UPS, ids=["step", "step with a tool", "call", "high", "low"])
def test_a_message_is_kombus_own_field_for_field(
    redis_url: str, wake_up: StepMessage | CallMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dispatcher(redis_url).send(wake_up)
    (quick,) = take(redis_url, wake_up.queue)
    monkeypatch.setattr(producer, "_is_one_redis", lambda app: False)
    make_dispatcher(redis_url).send(wake_up)
    (usual,) = take(redis_url, wake_up.queue)
    assert quick == usual
    assert list(quick) == list(usual)


def test_what_is_more_urgent_is_polled_first(redis_url: str) -> None:
    dispatcher = make_dispatcher(redis_url)
    for number, priority in enumerate(("low", "normal", "high", "normal", "high", "low")):
        dispatcher.send(StepMessage("run_x", number, priority=RANKS[priority]))  # type: ignore[index]
    assert [message["body"][0][1] for message in take(redis_url, STEP.queue)] == [2, 4, 1, 3, 0, 5]


def test_a_connection_that_was_cut_is_opened_again(redis_url: str) -> None:
    dispatcher = make_dispatcher(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        number = str(client.client_info()["db"])
        others = {one["id"] for one in client.client_list()}
        for _ in range(3):
            dispatcher.send(STEP)
            ours = [one["id"] for one in client.client_list() if one["db"] == number and one["id"] not in others]
            assert ours
            for one in ours:
                client.client_kill_filter(_id=one)
    assert len(take(redis_url, STEP.queue)) == 3


def test_a_message_is_one_command(tmp_path: Path) -> None:
    with running(server := Redis(tmp_path)):
        dispatcher = make_dispatcher(server.url)
        dispatcher.send(STEP)
        with server.client() as client:
            client.config_resetstat()
            for _ in range(10):
                dispatcher.send(STEP)
            counts = {name: stat["calls"] for name, stat in client.info("commandstats").items()}
    assert counts.pop("cmdstat_config|resetstat", 1) == 1
    assert counts == {"cmdstat_lpush": 10}


def test_many_threads_send_at_once(redis_url: str) -> None:
    dispatcher = make_dispatcher(redis_url)
    with ThreadPoolExecutor(40) as threads:
        list(threads.map(dispatcher.send, [STEP] * 400))
    assert len(take(redis_url, STEP.queue)) == 400


def test_a_forked_child_has_a_connection_of_its_own(redis_url: str) -> None:
    dispatcher = make_dispatcher(redis_url)
    dispatcher.send(STEP)
    child = os.fork()
    if child == 0:
        for _ in range(100):
            dispatcher.send(STEP)
        os._exit(0)
    for _ in range(100):
        dispatcher.send(STEP)
    assert os.waitpid(child, 0)[1] == 0
    assert len(take(redis_url, STEP.queue)) == 201


def test_a_redis_that_was_away_is_used_when_it_is_back(tmp_path: Path) -> None:
    with running(server := Redis(tmp_path)):
        dispatcher = make_dispatcher(server.url)
        dispatcher.send(STEP)
        server.kill()
        with pytest.raises(UnavailableError, match="AGENTQ_BROKER_URL"):
            dispatcher.send(STEP)
        server.start()
        dispatcher.send(STEP)
        assert len(take(server.url, STEP.queue)) == 1


def test_a_broker_that_is_away_is_told_without_its_password() -> None:
    dispatcher = make_dispatcher("redis://:sesame@127.0.0.1:1/0")
    with pytest.raises(UnavailableError) as told:
        dispatcher.send(STEP)
    assert "127.0.0.1:1" in str(told.value)
    assert "sesame" not in str(told.value)


def test_of_several_brokers_the_next_is_taken_where_one_is_away(redis_url: str) -> None:
    dispatcher = make_dispatcher(f"redis://127.0.0.1:1/0;{redis_url}")
    dispatcher.send(STEP)
    assert len(take(redis_url, STEP.queue)) == 1


def test_who_listens_to_celerys_signals_of_publishing_is_told_and_may_add_headers(redis_url: str) -> None:
    told: list[str] = []

    def before(sender: str, headers: dict[str, Any], **_: Any) -> None:
        headers["traceparent"] = "00-1"

    def after(sender: str, **_: Any) -> None:
        told.append(sender)

    dispatcher = make_dispatcher(redis_url)
    before_task_publish.connect(before)
    after_task_publish.connect(after)
    try:
        dispatcher.send(STEP)
    finally:
        before_task_publish.disconnect(before)
        after_task_publish.disconnect(after)
    dispatcher.send(STEP)
    traced, plain = take(redis_url, STEP.queue)
    assert told == ["agentq.step"]
    assert traced["headers"].pop("traceparent") == "00-1"
    assert traced == plain
