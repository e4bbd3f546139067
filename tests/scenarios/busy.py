"""Messages for a thread whose run is at work, or waits for a person."""

from agentq import Agent, UserMessage
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Answer, Call
from tests.scenarios.audit import legal
from tests.scenarios.scenario import scenario
from tests.scenarios.scene import Scene
from tests.scenarios.stage import Whole, look, pay


def worker(request: ModelRequest) -> Answer:
    """Work for each message that says so; else repeat what was heard last."""
    heard = [message.text for message in request.messages if isinstance(message, UserMessage)][-1]
    is_new = isinstance(request.messages[-1], UserMessage)
    return Call("pay", {"n": len(request.messages)}) if is_new and heard.startswith("work") else f"heard {heard}"


desk = Agent("desk", model=Whole([worker] * 30, "desk"), tools=[pay, look])
asking_desk = Agent("asking_desk", model=Whole([worker] * 30, "asking_desk"), tools=[pay, look], approve=["pay"])


def _said(scene: Scene, thread: str) -> list[str]:
    history = scene.client.thread(thread).history()
    legal(history)
    return [message.text for message in history if isinstance(message, UserMessage)]


@scenario(model=4, tool=2)
def messages_wait_for_their_turn(scene: Scene) -> None:
    thread = scene.thread(desk)
    texts = ["work 0", "work 1", "two", "three"]
    handles = [scene.enqueue(thread, text, on_busy="enqueue") for text in texts]
    for handle, text in zip(handles, texts, strict=True):
        scene.done(handle, f"heard {text}")
    assert _said(scene, thread.id) == texts


@scenario(model=2, tool=1, enqueued=2)
def message_interrupts(scene: Scene) -> None:
    thread = scene.thread(desk)
    first = scene.enqueue(thread, "work first")
    scene.until(lambda: len(first.messages()) >= scene.chance.randint(1, 2), "the run is under way")
    second = scene.enqueue(thread, "second", on_busy="interrupt")
    scene.done(second, "heard second")
    scene.ended(first, "cancelled")
    assert _said(scene, thread.id) == ["work first", "second"]


@scenario(model=2, tool=1, enqueued=2)
def message_joins_the_run(scene: Scene) -> None:
    thread = scene.thread(desk)
    first = scene.enqueue(thread, "work first")
    scene.until(lambda: scene.marked("model"), "the run is under way")
    key = scene.unique("steer")
    second = scene.enqueue(thread, "second", on_busy="steer", idempotency_key=key)
    again = scene.enqueue(thread, "second", on_busy="steer", idempotency_key=key)
    assert second.id == again.id == first.id
    scene.done(first, "heard second")
    assert _said(scene, thread.id) == ["work first", "second"]


@scenario(model=2, tool=1, decided=1)
def message_is_held_while_a_person_is_asked(scene: Scene) -> None:
    thread = scene.thread(asking_desk)
    first = scene.enqueue(thread, "work first")
    (waiting,) = scene.asked(first)
    second = scene.enqueue(thread, "second", on_waiting="hold")
    assert second.run().is_held
    first.approve(waiting.call_id)
    scene.decided()
    scene.done(first, "heard work first")
    scene.done(second, "heard second")
    assert _said(scene, thread.id) == ["work first", "second"]


@scenario(model=2, enqueued=2)
def message_denies_what_is_asked(scene: Scene) -> None:
    thread = scene.thread(asking_desk)
    first = scene.enqueue(thread, "work first")
    scene.asked(first)
    second = scene.enqueue(thread, "second", on_waiting="deny_and_continue")
    assert second.id == first.id
    scene.done(first, "heard second")
    scene.came_back(first, ("pay", "rejected", None))
    assert _said(scene, thread.id) == ["work first", "second"]
    assert scene.effects("pay") == 0
