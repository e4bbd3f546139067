"""A broker that goes away under a busy worker: the worker stays, and what it is doing is not lost."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentq import Handle
from agentq.storage.database import Database
from tests.chaos.place import Broker
from tests.services import Services
from tests.waiting import eventually
from tests.workers.fleet import Fleet, Worker

pytestmark = [pytest.mark.crash, pytest.mark.redis]


@pytest.fixture
def broker(tmp_path: Path, service_urls: Services) -> Iterator[Broker]:
    """A Redis of our own."""
    broker = Broker(tmp_path)
    yield broker
    broker.kill()


@pytest.fixture
def own_fleet(tmp_path: Path, database: Database, broker: Broker, queue_prefix: str) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, database, broker.url, queue_prefix)
    yield fleet
    fleet.stop()


def end(fleet: Fleet, handle: Handle, text: str) -> None:
    (fleet.folder / text).touch()
    assert handle.wait(30).text == "done"


def is_working(fleet: Fleet, steps: Worker, *, begun: int) -> None:
    """The same process goes on consuming, and no step was begun again."""
    assert fleet.client.enqueue("quick", "go").wait(30).text == "done"
    assert steps.process.poll() is None
    assert len([call for call in fleet.calls("begin") if "key" not in call]) == begun


def test_a_worker_outlives_the_death_of_its_broker_and_so_do_its_steps(own_fleet: Fleet, broker: Broker) -> None:
    fleet = own_fleet
    steps, _ = fleet.both(concurrency=4)
    handles = []
    # More than once: what Celery trips over depends on which of its sockets it looks at first.
    for number in range(3):
        handles.append(fleet.client.enqueue("patient", f"answer-{number}"))
        fleet.began(number + 1)
        broker.kill()
        eventually(lambda n=number: steps.text().count("Connection to broker lost") > n, what="the worker has noticed")
        broker.start()
        eventually(lambda n=number: steps.text().count("Connected to redis") > n + 1, what="the worker is back")
    for number, handle in enumerate(handles):
        end(fleet, handle, f"answer-{number}")
    is_working(fleet, steps, begun=3)


@pytest.mark.long
def test_a_worker_outlives_a_broker_that_hangs_and_so_do_its_steps(own_fleet: Fleet, broker: Broker) -> None:
    fleet = own_fleet
    steps, _ = fleet.both(concurrency=2)
    first, second = [fleet.client.enqueue("patient", text) for text in ("first", "second")]
    fleet.began(2)
    broker.send(signal.SIGSTOP)
    end(fleet, first, "first")
    # Which of the two it is depends on what it asked the broker for when it hung: a message, or something else.
    noticed = ("BRPOP got no reply", "Connection to broker lost")
    eventually(lambda: any(each in steps.text() for each in noticed), within=90, what="the worker has noticed")
    broker.send(signal.SIGCONT)
    end(fleet, second, "second")
    is_working(fleet, steps, begun=2)
