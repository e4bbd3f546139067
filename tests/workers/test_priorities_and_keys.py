"""On each broker: who is more urgent goes first, keys hold with real workers that are killed, commits begin runs."""

import json
from pathlib import Path
from typing import Any

import kombu
import psycopg
import pytest

from agentq import Handle, producer
from agentq.embedded.broker import Channel
from agentq.rabbitmq_queues import knows_priorities
from agentq.storage import line
from agentq.wire import RANKS, BatchMessage, CallMessage, Priority, StepMessage
from tests.waiting import eventually
from tests.workers.fleet import Fleet, Worker, most_at_once

ORDER: tuple[Priority, ...] = ("low", "normal", "normal", "high", "low", "high")


def keep_busy(fleet: Fleet) -> tuple[Worker, Handle]:
    """A worker whose only thread is in a model call, and holds the next message already."""
    worker = fleet.start("steps", concurrency=1)
    first = fleet.client.enqueue("patient", "go")
    fleet.began()
    return worker, first


def complete(handles: list[Handle], *, within: float = 40) -> None:
    for handle in handles:
        eventually(lambda handle=handle: handle.status() == "completed", within=within, what=f"{handle.run()}")  # type: ignore[misc]


def begun(handle: Handle) -> Any:
    """When its first step was committed."""
    return next(event.at for event in handle.events(follow=False) if event.type == "step")


def test_what_is_more_urgent_is_taken_before_what_waits_already(fleet: Fleet) -> None:
    _, first = keep_busy(fleet)
    # What a worker has prefetched is beyond any order.
    ahead = fleet.client.enqueue("quick", "go")
    handles = [fleet.client.enqueue("quick", "go", priority=priority) for priority in ORDER]
    (fleet.folder / "go").touch()
    fleet.start("tools", concurrency=1)
    complete([first, ahead, *handles])
    in_order = sorted(handles, key=begun)
    ranks = [RANKS[handle.run().priority] for handle in in_order]
    # The worker may have had one or two of them when the first of high priority came.
    assert ranks[2:] == sorted(ranks[2:])


def test_every_wake_up_of_a_run_has_its_priority_on_the_broker(fleet: Fleet) -> None:
    app = producer.make_app(fleet.broker_url, queue=fleet.queue)
    app.conf["result_backend"] = "agentq_workers.chord:BarrierBackend"
    dispatcher = producer.CeleryDispatcher(app, queue=fleet.queue)
    tools, steps = f"{fleet.queue}.tools", fleet.queue
    for priority in ORDER:
        rank = RANKS[priority]
        dispatcher.send(StepMessage(priority, 0, priority=rank))
        lane = CallMessage(priority, 0, 0, "agentq.tools", 5, rank)
        dispatcher.send(BatchMessage((lane,), StepMessage(priority, 1, priority=rank)))
    with app.connection_for_read() as connection, connection.channel() as opened:
        channel: Any = opened
        for queue in (steps, tools):
            found = []
            while (message := channel.basic_get(queue, no_ack=True)) is not None:
                body = channel.message_to_python(message).decode() if isinstance(message, dict) else message.body
                found.append(body if isinstance(body, list) else json.loads(body))
            assert [args[0] for args, *_ in found] == sorted(ORDER, key=RANKS.__getitem__)


@pytest.mark.crash
@pytest.mark.long
def test_a_key_holds_while_its_workers_are_killed(redis_fleet: Fleet) -> None:
    fleet = redis_fleet
    workers = [fleet.start("steps", concurrency=4), fleet.start("tools", concurrency=4)]
    handles = fleet.client.enqueue_many(
        "quick",
        ["go"] * 24,
        concurrency_key="tenant-7",
        concurrency_limit=3,
        idempotency_keys=[str(n) for n in range(24)],
    )
    most = 0

    def at_work() -> int:
        with fleet.database.autocommit() as connection:
            return int(connection.execute("SELECT count(*) FROM agentq.runs WHERE has_place").scalar())

    for deaths in range(4):
        ended = 4 * (deaths + 1)
        eventually(lambda ended=ended: sum(handle.run().is_terminal for handle in handles) >= ended, within=40)  # type: ignore[misc]
        most = max(most, at_work())
        victim = workers[deaths % 2]
        victim.kill()
        workers[deaths % 2] = fleet.start(victim.kind, concurrency=4)
        with fleet.database.autocommit() as connection:
            assert line.standing(connection) == []
    complete(handles, within=60)
    assert most <= 3
    assert most_at_once(fleet.calls("begin"), fleet.calls("end")) <= 3
    assert at_work() == 0


def test_a_commit_begins_the_run_within_about_a_second(redis_fleet: Fleet) -> None:
    redis_fleet.lease_secs = 15
    redis_fleet.start("steps")
    redis_fleet.start("tools")
    with psycopg.connect(redis_fleet.database.url) as connection:
        handles = [redis_fleet.client.enqueue("quick", "go", connection=connection)]
        handles += redis_fleet.client.enqueue_many("quick", ["a", "b"], connection=connection)
        handles += [
            redis_fleet.client.enqueue("quick", "go", connection=connection, concurrency_key="k", concurrency_limit=1)
            for _ in range(2)
        ]
    complete(handles, within=10)


def test_a_run_for_later_begins_by_itself(fleet: Fleet) -> None:
    fleet.start("steps")
    fleet.start("tools")
    handle = fleet.client.enqueue("quick", "go", delay_secs=2.5)
    start_at = handle.run().start_at
    assert start_at is not None
    complete([handle])
    assert begun(handle) >= start_at


def test_a_queue_of_rabbitmq_without_priorities_is_used_as_it_is(
    rabbitmq_url: str, queue_prefix: str, tmp_path: Path, database: Any
) -> None:
    with kombu.Connection(rabbitmq_url) as connection, connection.channel() as channel:
        for name in (queue_prefix, f"{queue_prefix}.tools"):
            assert knows_priorities(connection, name)
            kombu.Queue(name, kombu.Exchange(name, "direct"), name)(channel).declare()
            assert not knows_priorities(connection, name)
    fleet = Fleet(tmp_path, database, rabbitmq_url, queue_prefix)
    try:
        fleet.both(concurrency=2)
        handles = [fleet.client.enqueue("quick", "go", priority=priority) for priority in ORDER]
        complete(handles)
    finally:
        fleet.stop()


def test_a_message_of_another_app_on_the_file_broker_is_neither_first_nor_last(embedded_broker_url: str) -> None:
    with kombu.Connection(embedded_broker_url) as connection, connection.channel() as opened:
        channel: Any = opened
        assert isinstance(channel, Channel)
        for priority in (1, 0, 5, 3):
            channel._put("q", {"properties": {"priority": priority}, "body": priority})
        assert channel._size("q") == 4
        assert [channel._get("q")["body"] for _ in range(4)] == [5, 0, 3, 1]
