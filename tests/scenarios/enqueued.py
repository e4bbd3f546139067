"""What a run is enqueued with: the caller's transaction, keys, due times, priorities, so many at once, in bulk."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from agentq import Agent, Handle, RunNotFoundError
from agentq.providers.scripted import Call
from tests.scenarios.scenario import scenario
from tests.scenarios.scene import Scene
from tests.scenarios.stage import Played, look, pay

simple = Agent("simple", model=Played([Call("pay", {"n": 1}), "done"], "simple"), tools=[pay])
quick = Agent("quick", model=Played([Call("look", {"n": 1}), "done"], "quick", secs=0.02), tools=[look])
keyed = Agent("keyed", model=Played([Call("look", {"n": 1}), "done"], "keyed"), tools=[look])


def _engine(scene: Scene) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine("postgresql+psycopg://" + scene.crew.database.url.split("://", 1)[1])


@scenario(model=2, tool=1, enqueued=1)
def in_the_callers_transaction(scene: Scene) -> None:
    engine = _engine(scene)
    try:
        with Session(engine) as session:
            lost = simple.enqueue("never", client=scene.client, connection=session)
            session.rollback()
        with pytest.raises(RunNotFoundError):
            lost.run()
        with Session(engine) as session:
            handle = simple.enqueue("go", client=scene.client, connection=session)
            with pytest.raises(RunNotFoundError):
                handle.run()
            session.commit()
        scene.add(handle)
        with engine.begin() as connection:
            other = simple.enqueue("go", client=scene.client, connection=connection)
        scene.add(other)
        for each in (handle, other):
            scene.done(each)
            scene.came_back(each, ("pay", None, "pay 1"))
    finally:
        engine.dispose()


@scenario(model=2, tool=1, enqueued=1)
def same_key_is_one_run(scene: Scene) -> None:
    key = scene.unique("mail")
    with ThreadPoolExecutor(8) as producers:
        handles = list(
            producers.map(lambda _: simple.enqueue("go", client=scene.client, idempotency_key=key), range(8))
        )
    assert len({handle.id for handle in handles}) == 1
    assert sum(handle.is_new for handle in handles) == 1
    scene.done(scene.add(handles[0]))
    assert not simple.enqueue("again", client=scene.client, idempotency_key=key).is_new
    assert scene.effects("pay") <= 1


@scenario(model=2, tool=1)
def begins_when_it_is_due(scene: Scene) -> None:
    handle = scene.enqueue(simple, delay_secs=1.5)
    run = handle.run()
    assert run.start_at is not None
    assert handle.why().waiting_for
    scene.done(handle)
    first = next(event for event in handle.events(follow=False) if event.type == "step")
    assert first.at >= run.start_at


@scenario(model=8, tool=4)
def higher_priority_goes_first(scene: Scene) -> None:
    ranks = ["low"] * 20 + ["high"] * 4
    handles = [scene.enqueue(quick, priority=rank) for rank in ranks]
    for handle in handles:
        scene.done(handle)
    finished = [handle.run().finished_at for handle in handles]
    low, high = sorted(filter(None, finished[:20])), sorted(filter(None, finished[20:]))
    # What a killed worker had waits for its lease, whatever its priority: the first of each tell.
    assert high[0] < low[-1]
    assert all(handle.run().priority == rank for handle, rank in zip(handles, ranks, strict=True))


@scenario(model=6, tool=3)
def so_many_of_a_key_at_once(scene: Scene) -> None:
    key = scene.unique("tenant")
    handles = [scene.enqueue(keyed, concurrency_key=key, concurrency_limit=2) for _ in range(6)]
    most = 0

    def all_done() -> bool:
        nonlocal most
        runs = [handle.run() for handle in handles]
        most = max(most, sum(run.has_place is True for run in runs if not run.is_terminal))
        return all(run.is_terminal for run in runs)

    scene.until(all_done, "all runs have ended")
    for handle in handles:
        scene.done(handle)
    assert most <= 2
    assert _most_at_once(scene) <= 2
    _assert_in_order(handles)


def _assert_in_order(handles: Sequence[Handle]) -> None:
    """Two begin at a time; one whose worker was lost says so, and shows later that it has begun."""
    of_each = [list(handle.events(follow=False)) for handle in handles]
    began = [
        next(event.at for event in events if event.type == "step")
        for events in of_each
        if not any("lost_worker" in event.data for event in events)
    ]
    assert all(earlier <= later for earlier, later in zip(began, began[2:], strict=False)), began


def _most_at_once(scene: Scene) -> int:
    """Runs between their first commit and their end, by the database's clock."""
    with scene.crew.connect() as connection:
        rows = connection.execute(
            "SELECT min(e.at), max(r.finished_at) FROM agentq.events e JOIN agentq.runs r ON r.id = e.run_id"
            " WHERE r.id = ANY(%s) AND e.type = 'step' GROUP BY r.id",
            [[handle.id for handle in scene.handles]],
        ).fetchall()
    # At the same moment one that ends makes place for one that begins.
    changes: list[tuple[datetime, int]] = [(row[1], -1) for row in rows] + [(row[0], 1) for row in rows]  # type: ignore[misc]
    changes.sort()
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


@scenario(model=30, tool=15)
def many_in_bulk_with_tags(scene: Scene) -> None:
    tags = {"batch": scene.unique("batch")}
    texts = [f"text {n}" for n in range(40)]
    keys = [scene.unique(f"key-{n}") for n in range(40)]
    handles = scene.client.enqueue_many("quick", texts, tags=tags, idempotency_keys=keys)
    again = scene.client.enqueue_many("quick", texts, tags=tags, idempotency_keys=keys)
    assert [each.id for each in again] == [each.id for each in handles]
    for handle in handles:
        scene.add(handle)
    for handle in handles:
        scene.done(handle)
    assert {run.id for run in scene.client.runs(tags=tags, limit=100)} == {handle.id for handle in handles}
    assert len(scene.client.runs(tags=tags, status="completed", limit=100)) == 40
