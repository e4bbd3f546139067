"""Images of users and tools on real workers, on each broker, one of which is killed while the model looks at them."""

import pytest

from agentq import File, Image, ToolMessage
from agentq.messages import media_of
from tests.images import PDF, png
from tests.waiting import eventually
from tests.workers.fleet import Fleet


@pytest.mark.crash
def test_images_come_through_workers_of_which_one_is_killed_with_them(fleet: Fleet) -> None:
    first, _ = fleet.both(concurrency=3)
    given = [Image.from_bytes(png(1, filled_to=20_001)), "and", File.from_bytes(PDF, name="r.pdf")]
    handle = fleet.client.enqueue("painter", given)
    fleet.began()
    fleet.start("steps", concurrency=2)
    first.kill()
    eventually(lambda: handle.status() == "completed", within=30, what=f"{handle.run()}")
    assert handle.result().text == f"20001 {len(PDF)} 20001 20002 20001"
    drawn = [media_of(message)[0] for message in handle.messages() if isinstance(message, ToolMessage)]
    assert [fleet.client.read(image) for image in drawn] == [png(n, filled_to=20_000 + n) for n in (1, 2, 1)]
    with fleet.database.autocommit() as connection:
        assert connection.execute("select count(*) from agentq.blobs").scalar() == 3
    logs = "".join(worker.text() for worker in fleet.workers)
    assert "r.pdf" not in logs
