"""What ended long ago is deleted, and nothing else."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest

from agentq import Agent, ConfigError, Handle, Image, RunNotFoundError, ThreadNotFoundError, tool
from agentq.providers.scripted import Call, Scripted
from agentq.retention import Purged, purge
from agentq.storage.database import Database
from agentq.storage.retention import FEW, PAGE
from tests.engine.counting import observed
from tests.engine.drain import Died, Drain
from tests.engine.mishaps import Moment, ObservedDatabase

DAY = 86_400
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000 1f15c4890000000d49444154789c6360000002000001e221bc33"
    "0000000049454e44ae426082".replace(" ", "")
)
ACT = tool(name="act")(lambda: "acted")
CHILD = Agent("child", model=Scripted(["did it"] * 9))
ANSWERING = Agent("answering", model=Scripted(["done"] * 9))
ASKING = Agent("asking", model=Scripted([Call("act")] * 9), tools=[ACT], approve=["act"])
CALLING = Agent("calling", model=Scripted([Call("child", {"input": "x"}), "done"]), tools=[CHILD.as_tool()])


@pytest.fixture
def drain(database: Database) -> Drain:
    return Drain(database, ANSWERING, ASKING, CALLING, CHILD)


def make_old(drain: Drain, days: float, *handles: Handle) -> None:
    """As if these, or all, had been made and ended so many days earlier."""
    ids = [handle.id for handle in handles]
    with drain.database.transaction() as connection:
        which = "where id = any(%(ids)s)" if ids else ""
        shift = "make_interval(secs => %(secs)s)"
        connection.execute(
            f"update agentq.runs set created_at = created_at - {shift}, finished_at = finished_at - {shift} {which}",
            {"secs": days * DAY, "ids": ids},
        )
        if not ids:
            connection.execute(f"update agentq.threads set created_at = created_at - {shift}", {"secs": days * DAY})


def tables(database: Database) -> dict[str, int]:
    names = ("runs", "journal", "tool_calls", "approvals", "threads", "inbox", "blobs", "blob_refs")
    with database.autocommit() as connection:
        return {name: connection.execute(f"select count(*) from agentq.{name}").scalar() for name in names}


def test_what_ended_long_ago_goes_with_all_that_belongs_to_it(drain: Drain) -> None:
    drain.run(ANSWERING, ["look", Image.from_bytes(PIXEL)])
    drain.run(CALLING)
    for _ in range(2):
        drain.run(ANSWERING, thread="t")
    drain.client.thread("t").fork("copy")
    make_old(drain, 31)
    assert drain.client.purge(keep_days=30) == Purged(runs=5, threads=2, blobs=1)
    assert set(tables(drain.database).values()) == {0}
    assert drain.client.purge(keep_days=30) == Purged()


def test_what_is_younger_stays(drain: Drain) -> None:
    old, young = (drain.enqueue(ANSWERING) for _ in range(2))
    drain.work()
    make_old(drain, 31, old)
    make_old(drain, 29, young)
    assert drain.client.purge(keep_days=30).runs == 1
    assert young.result().text == "done"
    with pytest.raises(RunNotFoundError):
        old.run()


def test_what_has_not_ended_stays_however_old(drain: Drain) -> None:
    queued, asking = drain.enqueue(ANSWERING), drain.enqueue(ASKING)
    later = drain.enqueue(ANSWERING, delay_secs=90 * DAY)
    del drain.wake_ups[0]
    drain.work()
    make_old(drain, 400)
    assert drain.client.purge(keep_days=30) == Purged()
    assert [handle.status() for handle in (queued, asking, later)] == ["queued", "waiting", "queued"]


@pytest.mark.parametrize("latest", ["young", "open", "held"])
def test_a_thread_stays_whole_while_anything_of_it_is_young_or_open(drain: Drain, latest: str) -> None:
    for _ in range(3):
        drain.run(ANSWERING, thread="t")
    make_old(drain, 31)
    if latest == "young":
        drain.run(ANSWERING, thread="t")
    else:
        drain.enqueue(ASKING, thread="t")
        drain.work()
        if latest == "held":
            drain.enqueue(ANSWERING, thread="t", on_waiting="hold")
        make_old(drain, 31)
    before = drain.client.history("t")
    assert drain.client.purge(keep_days=30) == Purged()
    assert drain.client.history("t") == before


def test_a_run_whose_end_somebody_is_still_to_hear_of_stays(drain: Drain) -> None:
    handle = drain.enqueue(ANSWERING)
    drain.work()
    make_old(drain, 31)
    with drain.database.transaction() as connection:
        connection.execute("update agentq.runs set sweep_at = now()")
    assert drain.client.purge(keep_days=30) == Purged()
    assert handle.status() == "completed"


def test_many_that_purge_at_once_delete_each_once_and_do_not_wait_for_a_thread_in_use(drain: Drain) -> None:
    for number in range(30):
        drain.run(ANSWERING, thread=f"t{number}" if number % 2 else None)
    make_old(drain, 31)
    purged: list[Purged] = []
    with drain.database.transaction() as connection:
        connection.execute("select 1 from agentq.threads where id = 't1' for update")
        threads = [Thread(target=lambda: purged.append(drain.client.purge(keep_days=30))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    drain.client.purge(keep_days=30)
    assert sum(each.runs for each in purged) == 29
    assert tables(drain.database)["runs"] == tables(drain.database)["threads"] == 0


def test_threads_that_live_are_not_locked_and_of_the_others_a_few_at_a_time(drain: Drain) -> None:
    for number in range(3 * FEW):
        drain.run(ANSWERING, thread=f"t{number}")
    for number in range(FEW):
        drain.client.thread(f"t{number}").fork(f"bare{number}")
    make_old(drain, 31)
    alive = {f"t{number}" for number in range(FEW)}
    for thread in alive:
        drain.run(ANSWERING, thread=thread)
    observed, locked = ObservedDatabase(drain.database.url), set[frozenset[str]]()

    def moment(what: Moment) -> None:
        with drain.database.transaction() as connection:
            rows = connection.execute("select id from agentq.threads").scalars()
            free = connection.execute("select id from agentq.threads for no key update skip locked").scalars()
        locked.add(frozenset(rows) - frozenset(free))

    observed.moment = moment
    assert purge(observed, keep_days=30).threads == 3 * FEW
    observed.dispose()
    assert max(map(len, locked)) == FEW
    assert not frozenset.union(*locked) & alive


def test_of_runs_that_are_too_young_no_more_than_a_page_is_looked_at(drain: Drain) -> None:
    drain.client.enqueue_many("answering", ["x"] * (3 * PAGE))
    looks: list[str] = []
    with observed(drain.database, lambda _, statement: looks.append(statement) if "AS is_old" in statement else None):
        drain.client.purge(keep_days=30)
    assert len(looks) == 1
    assert f"LIMIT {PAGE}" in looks[0]


def test_images_that_a_purge_died_before_are_deleted_by_the_next(drain: Drain) -> None:
    drain.run(ANSWERING, ["look", Image.from_bytes(PIXEL)])
    make_old(drain, 31)
    with pytest.MonkeyPatch.context() as patch, suppress(Died):
        patch.setattr("agentq.storage.blobs.delete_unreferenced", dies)
        drain.client.purge(keep_days=30)
    assert (tables(drain.database)["runs"], tables(drain.database)["blobs"]) == (0, 1)
    assert drain.client.purge(keep_days=30) == Purged(blobs=1)


def test_a_sub_agents_run_stays_with_its_caller_and_goes_alone_where_that_was_deleted_by_sql(drain: Drain) -> None:
    drain.run(CALLING)
    child, parent = sorted(drain.client.runs(), key=lambda run: run.agent == "calling")
    make_old(drain, 31, drain.client.handle(child.id))
    assert drain.client.purge(keep_days=30) == Purged()
    with drain.database.transaction() as connection:
        connection.execute("delete from agentq.runs where id = %s", (parent.id,))
    assert drain.client.purge(keep_days=30) == Purged(runs=1)
    assert set(tables(drain.database).values()) == {0}


def dies(*_: Any) -> None:
    raise Died


@pytest.mark.parametrize("old", ["talk", "copy"])
def test_a_message_on_an_old_thread_is_never_deleted_with_it_whenever_it_comes(drain: Drain, old: str) -> None:
    observed = ObservedDatabase(drain.database.url)
    at, has_come = 0, True
    while has_come:
        drain.run(ANSWERING, thread="talk")
        with suppress(ThreadNotFoundError):
            drain.client.thread("copy").delete()
        drain.client.thread("talk").fork("copy")
        make_old(drain, 31)
        said: list[Handle] = []
        saying = Thread(target=lambda said=said: said.append(drain.enqueue(ANSWERING, thread=old)))
        observed.moment = _at(at, saying)
        purge(observed, keep_days=30)
        if has_come := saying.ident is not None:
            saying.join()
            assert said[0].status() == "queued", at
            drain.work()
            assert said[0].result().text == "done"
        at += 1
    observed.dispose()
    assert at > 8


def _at(number: int, thread: Thread) -> Callable[[Moment], None]:
    """Starts the thread at that statement or commit, and lets it come as far as it can."""
    count = itertools.count()

    def moment(what: Moment) -> None:
        if next(count) == number:
            thread.start()
            thread.join(0.3)

    return moment


@pytest.mark.parametrize("days", [0, -1, float("nan"), float("inf"), "30", True, None])
def test_days_that_are_none_are_refused_and_nothing_is_deleted(drain: Drain, days: Any) -> None:
    drain.run(ANSWERING)
    make_old(drain, 400)
    with pytest.raises(ConfigError, match="keep_days is a positive number of days"):
        drain.client.purge(keep_days=days)
    assert tables(drain.database)["runs"] == 1
