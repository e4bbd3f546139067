"""What a process knows of conversations: nothing is read twice, and memory is bounded."""

from dataclasses import replace

import pytest

from agentq import Agent, UserMessage, tool
from agentq.messages import Message
from agentq.providers.scripted import Call, Scripted
from agentq.run import Snapshot
from agentq.storage import control, steps
from agentq.storage.database import Database
from agentq.storage.sql import Connection
from agentq.transcripts import Transcripts
from tests.engine.counting import counted
from tests.engine.drain import Drain


@tool
def act(n: int) -> str:
    """Do something."""
    return f"did {n}" * 100


def talk(database: Database, turns: int, **options: str) -> tuple[Drain, Snapshot]:
    test = Agent("test", model=Scripted([*[Call("act", {"n": n}) for n in range(turns)], "done"] * 2), tools=[act])
    drain = Drain(database, test)
    handle = drain.enqueue(test, **options)
    drain.work()
    with database.transaction() as connection:
        return drain, control.lock(connection, handle.id)[0]


def test_what_was_read_is_not_read_again(database: Database) -> None:
    drain, snapshot = talk(database, 3)
    transcripts = Transcripts(database)
    with counted(database) as counts:
        first = transcripts.read(snapshot)
        again = transcripts.read(snapshot)
    assert counts["reads"] == 1
    assert first == again == drain.client.handle(snapshot.run_id).messages()


def test_only_what_is_new_is_read(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    real, read = steps.messages_after, []

    def messages_after(connection: Connection, run_id: str, after: int) -> dict[int, Message]:
        found = real(connection, run_id, after)
        read.append(sorted(found))
        return found

    _, snapshot = talk(database, 3)
    whole, transcripts = Transcripts(database).read(snapshot), Transcripts(database)
    monkeypatch.setattr(steps, "messages_after", messages_after)
    # As a model step in the middle of the run would have left it, and a commit of this process after that.
    transcripts._keep(snapshot.run_id, (), dict(enumerate(whole[:3])), 3)
    transcripts.add(replace(snapshot, event_count=4), [(3, whole[3])], events=1)
    assert transcripts.read(snapshot) == whole
    assert read == [list(range(4, len(whole)))]


def test_what_others_committed_in_between_is_read(database: Database) -> None:
    _, snapshot = talk(database, 3)
    whole, transcripts = Transcripts(database).read(snapshot), Transcripts(database)
    transcripts._keep(snapshot.run_id, (), dict(enumerate(whole[:3])), 3)
    transcripts.add(replace(snapshot, event_count=5), [(4, whole[4])], events=1)
    assert transcripts.read(snapshot) == whole


def test_a_run_sees_what_was_said_before_on_its_thread(database: Database) -> None:
    drain, first = talk(database, 1, thread="t")
    handle = drain.enqueue(drain.agents["test"], "and then", thread="t")  # type: ignore[arg-type]
    drain.work()
    with database.transaction() as connection:
        second, _ = control.lock(connection, handle.id)
    transcripts = Transcripts(database)
    for _ in range(2):
        found = transcripts.read(second)
        assert found == drain.client.history("t")
        assert found[: first.message_count] == transcripts.read(first)
        assert found[first.message_count] == UserMessage(text="and then")


def test_the_run_that_was_idle_longest_is_forgotten_first(database: Database) -> None:
    _, one = talk(database, 2)
    _, two = talk(database, 2)
    transcripts = Transcripts(database)
    transcripts.read(one)
    transcripts = Transcripts(database, max_chars=int(transcripts._chars * 1.5))
    for snapshot in (one, two):
        transcripts.read(snapshot)
    assert one.run_id not in transcripts._known
    assert two.run_id in transcripts._known


def test_a_transcript_that_is_larger_than_all_memory_is_read_each_time(database: Database) -> None:
    drain, snapshot = talk(database, 2)
    transcripts = Transcripts(database, max_chars=100)
    for _ in range(2):
        assert transcripts.read(snapshot) == drain.client.handle(snapshot.run_id).messages()
    assert snapshot.run_id not in transcripts._known


def test_a_run_that_has_ended_is_forgotten(database: Database) -> None:
    drain, snapshot = talk(database, 2)
    assert snapshot.run_id not in drain.engine.services.transcripts._known


def test_a_gap_in_what_was_thought_to_be_known_is_read_again(database: Database) -> None:
    _, snapshot = talk(database, 3)
    whole, transcripts = Transcripts(database).read(snapshot), Transcripts(database)
    transcripts._keep(snapshot.run_id, (), dict(enumerate(whole[:3])), snapshot.event_count)
    assert transcripts.read(snapshot) == whole
