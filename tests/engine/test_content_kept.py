"""Stored images and files: kept through deletions, races and crashes for who refers to them, and gone with the last."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from agentq import (
    Agent,
    ContentMissingError,
    Handle,
    Image,
    RunFailedError,
    tool,
)
from agentq.errors import UnavailableError
from agentq.messages import media_of
from agentq.providers.scripted import Call, Scripted
from agentq.storage import blobs
from agentq.storage.database import Database
from agentq.storage.journal import messages_in
from tests.engine.drain import Drain
from tests.engine.mishaps import Fate, Mishap, Moment, ObservedDatabase, Worker
from tests.engine.seeing import SEES, answer, count, draw, draws, results, saw, stored
from tests.images import png
from tests.waiting import eventually


def test_a_thread_takes_its_images_along_but_not_those_of_others(database: Database) -> None:
    drain = Drain(database, SEES)
    both, own = Image.from_bytes(png(1)), Image.from_bytes(png(2))
    drain.enqueue(SEES, ["a", both, own], thread="t")
    drain.enqueue(SEES, ["b", both], thread="u")
    drain.work()
    drain.client.thread("t").delete()
    assert stored(database) == {png(1)}
    drain.client.thread("u").delete()
    assert stored(database) == set()


def test_a_fork_keeps_what_its_messages_refer_to(database: Database) -> None:
    drain = Drain(database, SEES, drawer := draws(2))
    drain.enqueue(drawer, ["a", Image.from_bytes(png(1))], thread="t")
    drain.work()
    thread = drain.client.thread("t")
    fork = thread.fork("u")
    thread.delete()
    assert stored(database) == {png(1), png(2)}
    handle = drain.enqueue(SEES, "and now?", thread="u")
    drain.work()
    assert handle.result().text == saw(png(1), png(2))
    fork.delete()
    assert stored(database) == set()


def test_a_rewind_takes_an_image_out_of_the_conversation(database: Database) -> None:
    drain = Drain(database, SEES)
    drain.enqueue(SEES, "hi", thread="t")
    drain.work()
    drain.enqueue(SEES, ["a", Image.from_bytes(png(1))], thread="t")
    drain.work()
    drain.client.thread("t").rewind(2)
    handle = drain.enqueue(SEES, "and?", thread="t")
    drain.work()
    assert handle.result().text == saw()
    # It goes with the run that it came with.
    assert stored(database) == {png(1)}


def test_runs_deleted_by_sql_leave_images_that_go_when_asked(database: Database) -> None:
    drain = Drain(database, SEES)
    for n in range(120):
        drain.enqueue(SEES, Image.from_bytes(png(n)))
    kept = drain.enqueue(SEES, Image.from_bytes(png(0)))
    with database.autocommit() as connection:
        connection.execute("delete from agentq.runs where id <> %s", [kept.id])
    assert count(database, "blob_refs") == 1
    assert drain.client.delete_unreferenced() == 119
    assert drain.client.delete_unreferenced() == 0
    assert stored(database) == {png(0)}


def test_an_image_that_somebody_took_away_by_force_ends_the_run_with_its_own_code(database: Database) -> None:
    drain = Drain(database, SEES)
    handle = drain.enqueue(SEES, Image.from_bytes(png(1)))
    with database.autocommit() as connection:
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            connection.execute("delete from agentq.blobs")
        connection.execute("delete from agentq.blob_refs")
    assert drain.client.delete_unreferenced() == 1
    drain.work()
    with pytest.raises(RunFailedError) as raised:
        handle.result()
    assert raised.value.code == "content_missing"
    with pytest.raises(ContentMissingError):
        drain.client.read(media_of(handle.messages()[0])[0])


# ---------------------------------------------------------------------------------------------- races


@contextmanager
def open_transaction(drain: Drain, data: bytes) -> Iterator[tuple[Handle, psycopg.Connection[Any]]]:
    with psycopg.connect(drain.database.url) as theirs:
        yield drain.enqueue(SEES, Image.from_bytes(data), connection=theirs), theirs


def orphan(drain: Drain, data: bytes) -> None:
    """An image that nobody refers to."""
    drain.enqueue(SEES, Image.from_bytes(data))
    with drain.database.autocommit() as connection:
        connection.execute("delete from agentq.runs")
    assert stored(drain.database) == {data}


def test_what_an_open_transaction_refers_to_is_not_taken_away_and_nobody_waits_for_it(database: Database) -> None:
    drain = Drain(database, SEES)
    orphan(drain, png(1))
    with open_transaction(drain, png(1)) as (handle, theirs):
        assert drain.client.delete_unreferenced() == 0
        theirs.commit()
    assert drain.client.delete_unreferenced() == 0
    drain.sweep()
    drain.work()
    assert handle.result().text == saw(png(1))


def test_what_is_being_taken_away_is_stored_again_by_who_refers_to_it_meanwhile(database: Database) -> None:
    drain = Drain(database, SEES)
    orphan(drain, png(1))
    sha256 = Image.from_bytes(png(1)).sha256
    made: list[Handle] = []
    with database.transaction() as purge:
        purge.execute(blobs._TRY_ALONE, {"bucket": int(sha256[0], 16)})
        producer = threading.Thread(target=lambda: made.append(drain.enqueue(SEES, Image.from_bytes(png(1)))))
        producer.start()
        waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        eventually(lambda: purge.execute(waiting).scalar() == 1, what="the producer waits")
        assert purge.execute(blobs._DELETE, {"hashes": [sha256]}).rowcount == 1
    producer.join()
    drain.work()
    assert made[0].result().text == saw(png(1))


def test_a_moment_in_which_somebody_refers_keeps_few_from_being_taken_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = Drain(database, SEES)
    with database.autocommit() as connection:
        connection.execute("""insert into agentq.blobs (sha256, media_type, size, data)
            select 'a' || lpad(n::text, 63, '0'), 'image/png', 1, 'x' from generate_series(1, 5) n""")
    monkeypatch.setattr(blobs, "BATCH", 1)
    monkeypatch.setattr(blobs, "PAGE", 2)
    monkeypatch.setattr(blobs, "_FIND", re.sub(rb"LIMIT \d+", b"LIMIT 2", blobs._FIND))
    delete = blobs._delete

    def meet(*given: Any) -> int:
        monkeypatch.setattr(blobs, "_delete", delete)
        with database.transaction() as somebody:
            somebody.execute(blobs._HOLD, {"buckets": "10"})
            return delete(*given)

    monkeypatch.setattr(blobs, "_delete", meet)
    assert (drain.client.delete_unreferenced(), count(database, "blobs")) == (4, 1)
    assert (drain.client.delete_unreferenced(), count(database, "blobs")) == (1, 0)


def test_who_stores_what_a_stuck_transaction_has_stored_is_told_after_some_seconds(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = Drain(database, SEES)
    monkeypatch.setattr(blobs, "_HOLD", blobs._HOLD.replace(b"'8000'", b"'300'"))
    with open_transaction(drain, png(1)) as (_, theirs):
        with pytest.raises(UnavailableError, match="locked by somebody else"):
            drain.enqueue(SEES, Image.from_bytes(png(1)))
        # Nobody else waits for it.
        drain.enqueue(SEES, Image.from_bytes(png(2)))
        theirs.rollback()
    assert stored(database) == {png(2)}


def test_who_interrupts_a_run_locks_it_only_once_the_images_are_stored(database: Database) -> None:
    drain = Drain(database, SEES)
    busy = drain.enqueue(SEES, "x", thread="t")
    image, is_waiting = Image.from_bytes(png(1)), "datname = current_database() and wait_event_type = 'Lock'"
    interrupt = threading.Thread(target=lambda: drain.enqueue(SEES, image, thread="t", on_busy="interrupt"))
    with open_transaction(drain, png(1)) as (_, theirs), database.autocommit() as connection:
        interrupt.start()
        waiting = f"select count(*) from pg_stat_activity where {is_waiting}"
        eventually(lambda: connection.execute(waiting).scalar() == 1, what="the image waits")
        locked = connection.execute("select id from agentq.runs where id = %s for update nowait", [busy.id]).all()
        theirs.commit()
    interrupt.join()
    assert (len(locked), busy.status()) == (1, "cancelled")


def side_by_side(*acts: Callable[[], object]) -> list[BaseException]:
    """Each in a thread of its own, until one of them says that it is enough by StopIteration, or fails."""
    stop, faults = threading.Event(), list[BaseException]()

    def loop(act: Callable[[], object]) -> None:
        while not stop.is_set():
            try:
                act()
            except StopIteration:
                stop.set()
            except BaseException as error:
                faults.append(error)
                stop.set()

    threads = [threading.Thread(target=loop, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return faults


def test_producers_and_a_sweep_at_once_never_leave_a_run_without_its_image(database: Database) -> None:
    drain = Drain(database, SEES)
    rounds = iter(range(60))
    of_run = "select count(*) from agentq.blob_refs join agentq.blobs using (sha256) where run_id = %s"

    def produce() -> None:
        for n in range(3):
            handle = drain.enqueue(SEES, ["x", Image.from_bytes(png(n)), Image.from_bytes(png(n + 1))])
            with database.autocommit() as connection:
                assert connection.execute(of_run, [handle.id]).scalar() == 2
                connection.execute("delete from agentq.runs where id = %s", [handle.id])

    def purge() -> None:
        drain.client.delete_unreferenced()
        next(rounds)

    assert side_by_side(produce, produce, produce, purge) == []
    drain.client.delete_unreferenced()
    assert count(database, "blobs") == 0


def test_two_who_store_the_same_images_at_once_do_not_stop_each_other(database: Database) -> None:
    drain = Drain(database, SEES)
    gate = threading.Barrier(4)
    faults: list[BaseException] = []

    def produce(turn: int) -> None:
        numbers = range(30) if turn % 2 else range(29, -1, -1)
        try:
            gate.wait()
            drain.client.enqueue_many("sees", [Image.from_bytes(png(n, filled_to=3_000)) for n in numbers])
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=produce, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (faults, count(database, "blobs"), count(database, "blob_refs")) == ([], 30, 120)


# ---------------------------------------------------------------------------------------------- crashes

MOMENTS: tuple[Moment, ...] = ("statement", "locked", "committed", "probe", "send")


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("numbers", [(1,), (1, 2)])
@pytest.mark.parametrize("kind", ["dies", "outage"])
@pytest.mark.parametrize("at", MOMENTS)
def test_whenever_its_worker_dies_a_result_is_there_with_its_image_or_not_at_all(
    database: Database, at: Moment, kind: Any, numbers: tuple[int, ...], idempotent: bool
) -> None:
    again = tool(idempotent=idempotent)(draw.function)
    asked = [Call("draw", {"n": n}, id=f"call_{n}") for n in numbers]
    test = Agent("draws", model=Scripted([asked, answer]), tools=[again])
    after = 0
    while strike(database, test, Mishap(kind, after, at=at), numbers):
        after += 1
    # Else it never came to it: an outage only comes with a statement.
    assert after > 2 or (kind == "outage" and at in ("probe", "send"))


def strike(database: Database, test: Agent, mishap: Mishap, numbers: tuple[int, ...]) -> bool:
    """One run in which the mishap comes; False where it did not come to it."""
    with database.transaction() as connection:
        connection.execute("delete from agentq.runs")
        connection.execute("delete from agentq.blobs")
    hits: list[bool] = []
    waiting: list[Any] = []
    fate = Fate(lambda: hits.append(True), lambda _: None)
    observed = ObservedDatabase(database.url)
    observed.moment = fate.moment
    worker = Worker(observed, fate, waiting.append, lambda: 0.0, 0)
    worker.agents["draws"] = worker.client.agents["draws"] = test
    try:
        with fate.of(mishap):
            handle = test.enqueue(["go", Image.from_bytes(png(9))], client=worker.client)
            work(worker, waiting, database)
        handle = worker.client.handle(worker.client.runs()[0].id) if worker.client.runs() else None
        if handle is None:
            # It died before the run was stored: nothing of it is there.
            assert count(database, "blobs") == 0
            return bool(hits)
        for _ in range(8):
            work(worker, waiting, database)
            if handle.run().is_terminal:
                break
            worker.age(130)
            worker.sweep()
        back = [n for n, result in zip(numbers, results(handle), strict=True) if result.status == "success"]
        assert len(back) == len(numbers) or test.tools["draw"].on_unknown != "retry"
        assert handle.result().text == saw(*map(png, (9, *back)))
        # Nor is anything there that nobody refers to.
        assert stored(database) == {png(n) for n in (9, *back)}
        assert count(database, "blob_refs") == 1 + len(back)
    finally:
        observed.dispose()
    return bool(hits)


def work(worker: Worker, waiting: list[Any], database: Database) -> None:
    while waiting:
        wake_up = waiting.pop(0)
        if hasattr(wake_up, "lanes"):
            waiting.extend(wake_up.lanes)
        else:
            worker.do(wake_up)
        with_their_images(database)


def with_their_images(database: Database) -> None:
    """Each reference of a transcript leads to what is stored, at any moment between two steps."""
    with database.autocommit() as connection:
        messages = [
            row.messages for row in connection.execute("select messages from agentq.journal where messages <> ''")
        ]
        known = set(connection.execute("select sha256 from agentq.blobs").scalars())
    referred = {one.sha256 for _, message in messages_in(messages) for one in media_of(message)}
    assert referred <= known
