import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from celery import Celery
from kombu import Connection, Exchange, Queue

from agentq import embedded
from agentq.embedded.broker import POLLING_SECONDS, connection_options
from agentq.embedded.folder import MessageFolder
from agentq.errors import ConfigError

Python = Callable[..., "subprocess.Popen[str]"]

WRITER = """
import sys
from kombu import Connection
import agentq.embedded.broker
url, writer = sys.argv[1:]
with Connection(url) as connection:
    queue = connection.SimpleQueue("numbers")
    for number in range(500):
        queue.put({"writer": writer, "number": number, "padding": "x" * 5000})
    queue.close()
"""
READER = """
import sys
from kombu import Connection
import agentq.embedded.broker
with Connection(sys.argv[1]) as connection:
    queue = connection.SimpleQueue("numbers")
    while True:
        message = queue.get()
        payload = message.payload
        message.ack()
        if payload == "end":
            break
        assert len(payload["padding"]) == 5000
        print(payload["writer"], payload["number"], flush=True)
    queue.close()
"""
APP = """
import os, time
from celery import Celery
from agentq.embedded.broker import connection_options
app = Celery("numbers", **connection_options(os.environ["BROKER"]))
app.conf.task_ignore_result = True

@app.task(acks_late=True)
def note(number):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{number} {os.getpid()}\\n")
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"agentq+file://{tmp_path}/broker"


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with Connection(url) as opened:
        yield opened


def test_each_message_of_four_writers_reaches_exactly_one_of_three_readers_whole(url: str, python: Python) -> None:
    readers = [python("-c", READER, url) for _ in range(3)]
    writers = [python("-c", WRITER, url, str(name)) for name in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    with Connection(url) as connection:
        queue = connection.SimpleQueue("numbers")
        for _ in readers:
            queue.put("end")
        queue.close()
    lines = [line for reader in readers for line in reader.communicate(timeout=60)[0].splitlines()]
    assert Counter(lines) == {f"{writer} {number}": 1 for writer in range(4) for number in range(500)}
    assert [reader.returncode for reader in readers] == [0] * 3


def test_messages_of_several_processes_come_in_the_order_they_were_put(tmp_path: Path) -> None:
    first, second, reader = (MessageFolder(tmp_path) for _ in range(3))
    for number in range(10):
        (first, second)[number % 2].put("q", str(number))
    assert [reader.take("q") for _ in range(11)] == [*map(str, range(10)), None]


def test_taking_stays_cheap_with_thousands_of_messages_in_many_queues(tmp_path: Path) -> None:
    folder = MessageFolder(tmp_path)
    for number in range(1500):
        folder.put(f"queue {number % 3}", str(number))
    started = time.process_time()
    assert [folder.take("queue 0") for _ in range(501)].count(None) == 1
    assert time.process_time() - started < 1


def test_size_and_purge_count_the_messages_of_one_queue(connection: Connection) -> None:
    queue, other = connection.SimpleQueue("a/b ü"), connection.SimpleQueue("..")
    for number in range(3):
        queue.put(number)
    other.put("stays")
    assert (queue.qsize(), other.qsize()) == (3, 1)
    assert queue.clear() == 3
    assert (queue.qsize(), other.qsize()) == (0, 1)
    queue.close()
    other.close()


def test_a_rejected_message_and_the_unacknowledged_ones_of_a_closed_connection_come_back(url: str) -> None:
    with Connection(url) as connection:
        queue = connection.SimpleQueue("q")
        queue.put("kept")
        queue.get(timeout=5).requeue()
        assert queue.get(timeout=5).payload == "kept"
    with Connection(url) as connection:
        queue = connection.SimpleQueue("q")
        message = queue.get(timeout=5)
        assert message.payload == "kept"
        message.ack()
        queue.close()


def test_a_message_cut_short_by_a_power_cut_is_dropped(connection: Connection, tmp_path: Path) -> None:
    queue = connection.SimpleQueue("q")
    MessageFolder(tmp_path / "broker").put("q", '{"body": ')
    queue.put("whole")
    message = queue.get(timeout=5)
    assert message.payload == "whole"
    message.ack()
    queue.close()


def test_a_fanout_reaches_every_living_queue_and_forgets_the_expired_ones(url: str, tmp_path: Path) -> None:
    news = Exchange("news", type="fanout")
    with Connection(url) as connection, Connection(url) as elsewhere:
        channel = connection.channel()
        for name in ("first", "second", "dead"):
            Queue(name, news, expires=10)(channel).declare()
        os.utime(tmp_path / "broker" / "queues" / "dead.queue" / ".expires", (1, 1))
        elsewhere.Producer().publish("hello", exchange=news, declare=[news])
        sizes = {name: channel._size(name) for name in ("first", "second", "dead")}
        assert sizes == {"first": 1, "second": 1, "dead": 0}
        assert not (tmp_path / "broker" / "queues" / "dead.queue").exists()
        assert {queue for _, _, queue in channel.get_table("news")} == {"first", "second"}
        Queue("dead", news, expires=10)(channel).declare()
        assert "dead" in {queue for _, _, queue in channel.get_table("news")}


def test_a_topic_and_a_deleted_queue_work_across_connections(url: str) -> None:
    logs = Exchange("logs", type="topic")
    with Connection(url) as connection, Connection(url) as elsewhere:
        queue = Queue("errors", logs, routing_key="*.error")(connection.channel())
        queue.declare()
        producer = elsewhere.Producer()
        producer.publish("seen", exchange=logs, routing_key="db.error", declare=[logs])
        producer.publish("not seen", exchange=logs, routing_key="db.info")
        assert queue.get(no_ack=True).payload == "seen"
        assert queue.get() is None
        queue.delete()
        assert elsewhere.default_channel.get_table("logs") == []


@pytest.mark.parametrize("url", ["agentq+file://relative", "agentq+file:relative", "redis://localhost"])
def test_a_url_without_an_absolute_folder_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="agentq\\+file:///absolute/folder"):
        connection_options(url)


def test_a_path_with_odd_characters_survives_the_url(tmp_path: Path) -> None:
    folder = tmp_path / "a b+c;d%20ü?#"
    app = Celery(set_as_current=False, **connection_options(f"agentq+file://{quote(str(folder))}"))
    with app.connection_for_write() as connection:
        connection.SimpleQueue("q").put("there")
        assert connection.transport.polling_interval == POLLING_SECONDS
    app.send_task("task", ignore_result=True)
    app.close()
    assert (MessageFolder(folder).size("q"), MessageFolder(folder).size("celery")) == (1, 1)


def test_celery_workers_on_threads_and_prefork_at_once_run_every_task_once_and_answer_a_ping(
    url: str, tmp_path: Path, python: Python, wait_for: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    (tmp_path / "numbers_app.py").write_text(APP)
    monkeypatch.setenv("BROKER", url)
    monkeypatch.setenv("NOTES", str(notes))
    worker = ["-m", "celery", "-A", "numbers_app", "worker", "-c", "2", "-l", "WARNING"]
    workers = [python(*worker, "-P", pool, "-n", f"{pool}@test") for pool in ("threads", "prefork")]
    app = Celery("numbers", set_as_current=False, **connection_options(url))
    wait_for(lambda: len(app.control.ping(timeout=2, limit=2)) == 2, 60)
    for number in range(200):
        app.send_task("numbers_app.note", [number], ignore_result=True)
    wait_for(lambda: len(notes.read_text().splitlines()) >= 200, 60)
    for process in workers:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(30) for process in workers] == [0, 0]
    numbers = Counter(int(line.split()[0]) for line in notes.read_text().splitlines())
    assert numbers == dict.fromkeys(range(200), 1)
    assert len({line.split()[1] for line in notes.read_text().splitlines()}) >= 2
    app.close()


def test_the_broker_alone_starts_no_server(tmp_path: Path) -> None:
    with embedded.broker_only(tmp_path / "home") as started:
        assert started.database_url == ""
        assert started.broker_url.startswith("agentq+file:///")
    assert not (tmp_path / "home" / "pg").exists()
