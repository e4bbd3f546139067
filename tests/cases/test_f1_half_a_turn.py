"""F1: a crash between the saved reply and the saved results: what came back is kept, and the thread can go on."""

import pytest

from agentq import RunContext, tool
from agentq.providers.scripted import Call
from agentq.storage.database import Database
from agentq.wire import BatchMessage
from tests.cases.scene import Scene
from tests.cases.stored import assert_over, codes, results
from tests.engine.drain import Died
from tests.waiting import eventually
from tests.workers.fleet import Fleet


class Lost:
    """A batch of which A has come back when the process dies in B (unsafe) and C (safe) at once."""

    def __init__(self, database: Database) -> None:
        self.ran: list[str] = []
        self.dying = True
        lost = self

        def work(name: str) -> str:
            lost.ran.append(name)
            if lost.dying and name != "A":
                raise Died
            return name

        @tool
        def unsafe(name: str, ctx: RunContext) -> str:
            """Work."""
            return work(name)

        @tool(idempotent=True)
        def safe(name: str, ctx: RunContext) -> str:
            """Work, and do no harm when repeated."""
            return work(name)

        calls = [Call("unsafe", {"name": "A"}), Call("unsafe", {"name": "B"}), Call("safe", {"name": "C"})]
        self.scene = Scene(database, [calls, "done"], tools=[unsafe, safe])
        drain = self.scene.drain
        while not isinstance(drain.wake_ups[0], BatchMessage):
            drain.do(drain.wake_ups.pop(0))
        batch = drain.wake_ups.pop(0)
        assert isinstance(batch, BatchMessage)
        for lane in batch.lanes:
            if lane.index == 0:
                drain.do(lane)
            else:
                with pytest.raises(Died):
                    drain.do(lane)
        self.dying = False
        assert self.ran == ["A", "B", "C"]


def test_a_resumed_turn_keeps_what_came_back_and_does_the_rest_by_its_policy(database: Database) -> None:
    lost = Lost(database)
    assert lost.scene.settle() == "completed"
    assert codes(lost.scene.handle) == [None, "interrupted", None]
    assert [result.text for result in results(lost.scene.handle)][::2] == ["A", "C"]
    assert lost.ran == ["A", "B", "C", "C"]
    lost.scene.goes_on()


@pytest.mark.parametrize("recovered", [0, 1, 2], ids=["at once", "when one was recovered", "when both were"])
def test_a_new_message_instead_finds_every_call_closed(database: Database, recovered: int) -> None:
    lost = Lost(database)
    drain = lost.scene.drain
    if recovered:
        drain.age(20)
        drain.sweep()
    for _ in range(recovered - 1):
        drain.do(drain.wake_ups.pop(0))
    lost.scene.handle.cancel()
    assert lost.scene.settle() == "cancelled"
    expected = {
        0: [None, "interrupted", "interrupted"],
        # C was begun once, and is not again: nobody may say that it was not run.
        1: [None, "interrupted", "interrupted"],
        2: [None, "interrupted", None],
    }
    assert codes(lost.scene.handle) == expected[recovered]
    assert lost.ran == ["A", "B", "C"] + ["C"] * (recovered == 2)
    lost.scene.goes_on()


@pytest.mark.crash
@pytest.mark.parametrize("goes_on", ["resumed", "new message"])
def test_with_real_workers_killed_while_two_of_three_calls_run(workers: Fleet, goes_on: str) -> None:
    workers.start("steps", concurrency=2)
    tools = workers.start("tools", concurrency=3)
    handle = workers.client.enqueue("half", "go", thread="t")
    eventually(lambda: len(workers.calls("note")) == 3 and codes(handle) == [None], within=60, what="A is saved")
    tools.kill()
    if goes_on == "new message":
        handle.cancel()
    workers.start("tools", concurrency=3)
    eventually(lambda: handle.run().is_terminal, within=90, what=f"{handle.run()}")
    names = sorted(call["name"] for call in workers.calls("note"))
    if goes_on == "resumed":
        assert handle.result().text == "done"
        assert codes(handle) == [None, "interrupted", None]
        assert names == ["A", "B", "C", "C"]
    else:
        assert handle.status() == "cancelled"
        assert codes(handle) == [None, "interrupted", "interrupted"]
        assert names == ["A", "B", "C"]
    assert_over(workers.database, handle)
    # Its model refuses a transcript in which a call has no result.
    assert workers.client.enqueue("half", "again", thread="t").wait(60).text == "still here"
