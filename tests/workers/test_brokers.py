"""What must hold on every broker: the loop, and the bounded chord of a batch."""

from agentq import ToolMessage
from agentq.messages import Message
from tests.waiting import eventually
from tests.workers.fleet import Fleet, most_at_once


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.result.text for message in messages if isinstance(message, ToolMessage)]


def test_thirty_two_calls_run_eight_at_once_and_go_on_once_with_results_in_order(fleet: Fleet) -> None:
    fleet.start("steps", concurrency=2)
    # More processes than lanes: what bounds the batch is the chord, not the pool.
    fleet.start("tools", concurrency=12)
    handle = fleet.client.enqueue("fan", "go")
    result = handle.wait(60)
    assert texts(result.messages) == [f"slept {n}" for n in range(32)]
    begins, ends = fleet.calls("begin"), fleet.calls("end")
    assert sorted(call["n"] for call in begins) == list(range(32))
    assert 4 <= most_at_once(begins, ends) <= 8
    steps = [event.data["phase"] for event in handle.events(follow=False) if event.type == "step"]
    assert steps == ["model", "tools", "model"]


def test_a_run_waits_for_a_person_and_goes_on_when_decided(fleet: Fleet) -> None:
    fleet.both(concurrency=2)
    handle = fleet.client.enqueue("gated", "go")
    waiting = handle.wait(30)
    assert waiting.stop_reason == "needs_approval"
    handle.approve(waiting.approvals[0].call_id)
    assert eventually(lambda: handle.status() == "completed")
    assert handle.result().text == "done"
