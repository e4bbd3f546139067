"""Idempotency keys, one by one and many at once; and runs found again by their tags."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from agentq import Agent, ConfigError, UserMessage
from agentq.providers.scripted import Scripted
from agentq.storage import queries
from agentq.storage.database import Database
from tests.engine.drain import Drain

TEST = Agent("test", model=Scripted(["done"]))


@pytest.fixture
def drain(database: Database) -> Drain:
    return Drain(database, TEST)


def test_a_key_that_is_known_gives_the_first_run_with_its_message(drain: Drain) -> None:
    first = drain.enqueue(TEST, "one", idempotency_key="k")
    second = drain.enqueue(TEST, "two", idempotency_key="k", tags={"a": "b"})
    assert (second.id, first.is_new, second.is_new) == (first.id, True, False)
    assert second.messages() == (UserMessage(text="one"),)
    assert second.run().tags == {}
    assert len(drain.sent) == 1
    assert not drain.client.handle(first.id).is_new


def test_of_many_each_has_its_key(drain: Drain) -> None:
    early = drain.enqueue(TEST, "early", idempotency_key="b")
    keys = ["a", "b", None, "c", "a", None]
    handles = drain.client.enqueue_many("test", [f"text {n}" for n in range(6)], idempotency_keys=keys)
    assert [handle.is_new for handle in handles] == [True, False, True, True, False, True]
    assert (handles[1].id, handles[4].id) == (early.id, handles[0].id)
    assert len({handle.id for handle in handles}) == 5
    # Which of two with one key is the first is that of the list.
    assert handles[0].messages() == (UserMessage(text="text 0"),)
    again = drain.client.enqueue_many("test", [f"text {n}" for n in range(6)], idempotency_keys=keys)
    assert [handle.is_new for handle in again] == [False, False, True, False, False, True]
    drain.work()
    assert {run.status for run in drain.client.runs()} == {"completed"}
    assert len(drain.sent) == 7


@pytest.mark.parametrize(("keys", "says"), [(["a"], "each of the 2 texts"), ("ab", "each of"), (["a", ""], "1 to 200")])
def test_keys_that_do_not_fit_the_texts_are_refused(drain: Drain, keys: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        drain.client.enqueue_many("test", ["a", "b"], idempotency_keys=keys)
    assert drain.client.runs() == []


def test_producers_that_send_the_same_keys_at_once_in_any_order_make_one_run_of_each(drain: Drain) -> None:
    keys = [f"key {n}" for n in range(300)]

    def produce(turn: int) -> list[str]:
        mine = keys[turn * 30 :] + keys[: turn * 30]
        handles = drain.client.enqueue_many("test", mine, idempotency_keys=mine)
        return [handle.id for _, handle in sorted(zip(mine, handles, strict=True), key=lambda pair: pair[0])]

    with ThreadPoolExecutor(5) as threads:
        found = list(threads.map(produce, range(10)))
    assert all(ids == found[0] for ids in found)
    assert len(set(found[0])) == 300


def test_runs_are_found_by_their_tags_through_the_index(drain: Drain, database: Database) -> None:
    for n in range(20):
        drain.client.enqueue_many("test", ["x"] * 200, tags={"customer": str(n), "kind": "bulk"})
    wanted = drain.enqueue(TEST, tags={"customer": "7", "order": "77"})
    with database.autocommit() as connection:
        connection.execute("ANALYZE agentq.runs")
        values = {"status": None, "agent": None, "tags": '{"order":"77"}', "before": None, "limit": 50, "thread": None}
        plan = connection.execute(b"EXPLAIN " + queries._LIST_ALL, values).scalars()
    assert any("runs_tags" in line for line in plan), plan
    assert [run.id for run in drain.client.runs(tags={"order": "77"})] == [wanted.id]
    assert len(drain.client.runs(tags={"customer": "7"}, limit=500)) == 201
    assert drain.client.runs(tags={"customer": "7", "order": "78"}) == []
