"""Two transactions that wait for each other: the one that Postgres ends is told of a lock, not of a broken server."""

from threading import Barrier, Thread

from agentq.errors import LockedError
from agentq.storage.database import Database


def test_a_deadlock_is_a_row_locked_by_others_and_no_outage(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute("insert into agentq.threads (id) values ('a'), ('b')")
    both, told = Barrier(2), list[LockedError]()

    def lock(first: str, second: str) -> None:
        row = "select 1 from agentq.threads where id = '{}' for update"
        try:
            with database.transaction() as connection:
                connection.execute(row.format(first))
                both.wait()
                connection.execute(row.format(second))
        except LockedError as error:
            told.append(error)

    people = [Thread(target=lock, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for person in people:
        person.start()
    for person in people:
        person.join()
    (error,) = told
    assert "deadlock detected" in error.message
    assert "AGENTQ_DATABASE_URL" not in error.message
