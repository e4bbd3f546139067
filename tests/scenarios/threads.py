"""Conversations: one message after another, cut back, copied, retried, deleted."""

import pytest

from agentq import (
    Agent,
    AssistantMessage,
    Handle,
    RunCancelledError,
    RunNotFoundError,
    ThreadBusyError,
    ThreadNotFoundError,
    UserMessage,
)
from agentq.errors import ProviderError
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Answer, Call
from tests.scenarios.audit import legal
from tests.scenarios.scenario import Moment, scenario
from tests.scenarios.scene import Scene
from tests.scenarios.stage import FOLDER, Played, look, pay

# Two of its own: a count that went on over messages would end the second.
talk = Agent(
    "talk",
    model=Played([Call("pay", {"n": 1}), "done"], "talk"),
    tools=[pay, look],
    limits={"model_calls": 2, "tool_calls": 1},
)
other = Agent("other", model=Played([Call("look", {"n": 2}), "other done"], "other"), tools=[pay, look])
slow_talk = Agent(
    "slow_talk", model=Played([Call("pay", {"n": 1}), Call("look", {"n": 2}), "done"], "slow_talk"), tools=[pay, look]
)


def once_away(request: ModelRequest) -> Answer:
    """A provider that refuses until somebody has paid the bill."""
    return "done" if (FOLDER / "paid").exists() else ProviderError("quota_exceeded", "no money left")


retried = Agent("retried", model=Played([Call("pay", {"n": 1}), once_away], "retried"), tools=[pay])
deadly = Agent("deadly", model=Played([Call("look", {"n": 1}), "done"], "deadly", secs=0.6), tools=[look])


@scenario(model=6, tool=3)
def one_message_after_another(scene: Scene) -> None:
    thread = scene.thread(talk)
    handles = []
    for n in range(3):
        handles.append(scene.enqueue(thread, f"message {n}"))
        scene.done(handles[-1])
    for handle in handles:
        scene.came_back(handle, ("pay", None, "pay 1"))
        run = handle.run()
        assert (run.model_calls, run.tool_calls) == (2, 1)
    history = thread.history(client=scene.client)
    assert history == sum((handle.messages() for handle in handles), ())
    legal(history)
    assert scene.effects("pay") <= 3


@scenario(model=4, tool=2)
def history_of_two_agents(scene: Scene) -> None:
    thread = scene.thread(talk)
    first = scene.enqueue(thread, "one")
    scene.done(first)
    second = scene.enqueue(other.thread(thread.id), "two")
    scene.done(second, "other done")
    history = scene.client.thread(thread.id).history()
    assert [each.text for each in history if isinstance(each, UserMessage)] == ["one", "two"]
    assert [each.provider for each in history if isinstance(each, AssistantMessage)] == ["talk"] * 2 + ["other"] * 2
    legal(history)


@scenario(model=1, tool=1)
def busy_thread_refuses(scene: Scene) -> None:
    thread = scene.thread(slow_talk)
    handle = scene.enqueue(thread, "first")
    for _ in range(3):
        with pytest.raises(ThreadBusyError):
            thread.enqueue("second", client=scene.client)
    scene.done(handle)
    scene.done(scene.enqueue(thread, "second"))
    assert [each.text for each in thread.history(client=scene.client) if isinstance(each, UserMessage)] == [
        "first",
        "second",
    ]


@scenario(model=3, tool=2)
def rewind_during_a_run_voids_it(scene: Scene) -> None:
    thread = scene.thread(slow_talk)
    scene.done(scene.enqueue(thread, "first"))
    before = thread.history(client=scene.client)
    second = scene.enqueue(thread, "second")
    scene.until(lambda: len(second.messages()) >= 1 + scene.chance.randint(1, 3), "the run is under way")
    done = thread.rewind(len(before), client=scene.client)
    assert done.messages == len(before)
    assert {each.run_id for each in done.effects} <= {second.id}
    third = scene.enqueue(thread, "third")
    scene.done(third)
    scene.ended(second, "cancelled")
    assert thread.history(client=scene.client) == before + third.messages()
    # An effect that was there is told of, or came back to nobody later.
    told = {each.call_id for each in done.effects}
    seen = {each["call"] for each in scene.marked("effect", run=second.id)}
    assert seen <= told | {each.id for m in second.messages() if isinstance(m, AssistantMessage) for each in m.calls}


@scenario(model=3, tool=2)
def fork_during_a_run(scene: Scene) -> None:
    thread = scene.thread(slow_talk)
    first = scene.enqueue(thread, "first")
    scene.until(lambda: len(first.messages()) >= 2, "the run is under way")
    copy = thread.fork(scene.unique("copy"), client=scene.client)
    begun = copy.history(client=scene.client)
    legal(begun)
    second = scene.enqueue(copy, "second")
    scene.done(second)
    scene.done(first)
    assert copy.history(client=scene.client) == begun + second.messages()
    assert thread.history(client=scene.client) == first.messages()


@scenario(model=2, in_tool=1)
def failed_run_goes_on_with_its_counts(scene: Scene) -> None:
    (scene.crew.folder / "paid").unlink(missing_ok=True)
    thread = scene.thread(retried)
    handle = scene.enqueue(thread, "go")
    scene.failed(handle, "provider_quota_exceeded")
    before = handle.run()
    (scene.crew.folder / "paid").touch()
    assert thread.retry(client=scene.client).id == handle.id
    scene.decided()
    scene.done(handle)
    scene.came_back(handle, ("pay", None, "pay 1"))
    after = handle.run()
    assert (after.tool_calls, after.model_calls) == (before.tool_calls, before.model_calls + 1)
    assert scene.effects("pay") <= 1


@scenario(in_model=1)
def crashed_run_goes_on_with_its_counts(scene: Scene) -> None:
    """The same model call loses three workers; what it did before is kept."""
    scene.killer.aim(*(Moment("model", nth, False, scene.chance.uniform(0, 0.2)) for nth in (2, 3, 4)))
    handle = scene.enqueue(deadly)
    scene.failed(handle, "crashed")
    assert len(scene.killer.kills) == 3
    before = handle.run()
    scene.cli("runs", "retry", handle.id)
    scene.done(handle)
    scene.came_back(handle, ("look", None, "look 1"))
    after = handle.run()
    assert (after.tool_calls, after.model_calls) == (1, before.model_calls + 1)


@scenario(model=2, tool=2)
def busy_thread_is_not_deleted(scene: Scene) -> None:
    thread = scene.thread(slow_talk)
    handle = scene.enqueue(thread, "first")
    with pytest.raises(ThreadBusyError):
        thread.delete(client=scene.client)
    scene.done(handle)
    assert thread.delete(client=scene.client) == 1
    with pytest.raises(RunNotFoundError):
        handle.run()
    with pytest.raises(ThreadNotFoundError):
        thread.delete(client=scene.client)
    assert _rows_of(scene, handle) == 0
    scene.handles.remove(handle)
    scene.done(scene.enqueue(thread, "again"))


def _rows_of(scene: Scene, handle: Handle) -> int:
    with scene.crew.connect() as connection:
        row = connection.execute(
            "SELECT (SELECT count(*) FROM agentq.tool_calls WHERE run_id = %(id)s)"
            " + (SELECT count(*) FROM agentq.messages WHERE run_id = %(id)s)",
            {"id": handle.id},
        ).fetchone()
    assert row is not None
    return int(str(row[0]))


@scenario(model=1, tool=1)
def cancelled_on_a_thread_at_any_moment(scene: Scene) -> None:
    thread = scene.thread(slow_talk)
    handle = scene.enqueue(thread, "first")
    scene.until(lambda: len(handle.messages()) >= scene.chance.randint(1, 4), "the run is under way")
    handle.cancel()
    scene.until(lambda: handle.run().is_terminal, "the run has ended")
    if handle.status() == "cancelled":
        with pytest.raises(RunCancelledError):
            handle.result()
    scene.done(scene.enqueue(thread, "second"))
    legal(thread.history(client=scene.client))
