"""Many runs in one call: all are stored or none, each ends, and no more wake-ups are sent at once than makes sense."""

import pytest

from agentq import Agent, ConfigError, UserMessage, intake
from agentq.messages import AssistantMessage
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Scripted
from agentq.storage import enqueue
from agentq.storage.database import Database
from tests.engine.counting import counted
from tests.engine.drain import Drain


def echo(request: ModelRequest) -> str:
    (message,) = request.messages
    assert isinstance(message, UserMessage)
    return f"heard {message.text}"


ECHO = Agent("echo", model=Scripted([echo]))


def test_each_text_is_a_run_of_its_own_in_their_order(database: Database) -> None:
    drain = Drain(database, ECHO)
    texts = [f'message {n} "quoted" \\ and é\n' for n in range(30)]
    handles = drain.client.enqueue_many("echo", texts, tags={"batch": "7"}, context={"by": "test"})
    drain.work()
    assert [handle.result().text for handle in handles] == [f"heard {text}" for text in texts]
    assert [handle.messages()[1] for handle in handles] == [
        AssistantMessage(text=f"heard {text}", provider="scripted", model="scripted") for text in texts
    ]
    assert {tuple(handle.run().tags.items()) for handle in handles} == {(("batch", "7"),)}
    assert [event.number for event in handles[-1].events(follow=False)] == [1, 2, 3]
    assert {run.id for run in drain.client.runs(tags={"batch": "7"})} == {handle.id for handle in handles}


def test_what_is_not_announced_at_once_is_announced_by_the_next_sweep(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "ANNOUNCED", 2)
    monkeypatch.setattr(enqueue, "MANY", 3)
    drain = Drain(database, ECHO)
    handles = drain.client.enqueue_many("echo", [f"run {n}" for n in range(7)])
    assert [wake_up.run_id for wake_up in drain.sent] == [handle.id for handle in handles[:2]]  # type: ignore[union-attr]
    drain.sweep()
    assert {wake_up.run_id for wake_up in drain.sent} == {handle.id for handle in handles}  # type: ignore[union-attr]
    drain.work()
    assert {handle.status() for handle in handles} == {"completed"}


def test_a_backlog_is_announced_again_with_two_statements_a_round(database: Database) -> None:
    drain = Drain(database, ECHO)
    drain.client.enqueue_many("echo", [f"run {n}" for n in range(90)])
    drain.wake_ups.clear()
    drain.age(20)
    with counted(database) as counts:
        assert drain.sweep() == 90
    assert len(drain.wake_ups) == 90
    assert counts["claims"] + counts["writes"] == 2


def test_a_text_that_cannot_be_taken_lets_none_be_stored(database: Database) -> None:
    drain = Drain(database, ECHO)
    with pytest.raises(ConfigError, match="not empty"):
        drain.client.enqueue_many("echo", ["good", " "])
    assert drain.client.runs() == []


def test_one_text_instead_of_a_list_is_an_error(database: Database) -> None:
    with pytest.raises(ConfigError, match="list of texts"):
        Drain(database, ECHO).client.enqueue_many("echo", "just one")


def test_no_texts_are_no_runs(database: Database) -> None:
    assert Drain(database, ECHO).client.enqueue_many("echo", []) == []


def test_a_time_limit_of_the_runs_begins_with_the_enqueue(database: Database) -> None:
    drain = Drain(database, ECHO)
    (handle,) = drain.client.enqueue_many("echo", ["hello"], limits={"run_secs": 30})
    with database.autocommit() as connection:
        left = connection.execute("select extract(epoch from deadline_at - created_at) from agentq.runs")
        assert left.scalar() == 30
    drain.work()
    assert handle.status() == "completed"
