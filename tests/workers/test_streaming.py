"""A reply watched from another process while the worker that writes it is killed."""

import threading

import pytest

from agentq import Event, Handle
from tests.waiting import eventually
from tests.workers.fleet import Fleet


@pytest.mark.crash
def test_who_watches_sees_the_whole_reply_in_the_end_though_its_worker_was_killed(fleet: Fleet) -> None:
    first = fleet.start("steps", concurrency=2)
    handle = fleet.client.enqueue("teller", "go")
    seen: list[Event] = []
    watcher = threading.Thread(target=watch, args=(handle, seen))
    watcher.start()
    eventually(lambda: any(event.type == "model.delta" for event in seen), within=30, what="a first word")
    fleet.start("steps", concurrency=2)
    first.kill()
    eventually(lambda: handle.status() == "completed", within=40, what=f"{handle.run()}")
    watcher.join()
    assert [event.number for event in seen] == list(range(1, len(seen) + 1))
    assert list(handle.events(follow=False)) == seen
    kinds = [event.type for event in seen if event.type.startswith("model.")]
    lost, again = kinds[: kinds.index("model.reset")], kinds[kinds.index("model.reset") + 1 :]
    assert set(lost) == set(again) == {"model.delta"}
    text = "".join(event.data["text"] for event in seen if event.type == "model.delta")
    assert text.endswith(handle.result().text or "no text")
    assert "word1 " not in "".join(worker.text() for worker in fleet.workers)


def watch(handle: Handle, seen: list[Event]) -> None:
    for event in handle.events():
        seen.append(event)
