"""Count what a step asks of the database: statements, transactions, and those that wait for the disk."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, event

from agentq.storage.database import Database


@contextmanager
def counted(database: Database) -> Iterator[Counter[str]]:
    """Counts of ``claims``, ``reads``, ``writes`` (statements of commits) and ``commits`` (durable transactions)."""
    counts: Counter[str] = Counter()
    wrote: set[int] = set()

    def executed(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if "synchronous_commit" in statement:
            counts["claims"] += 1
        elif statement.lstrip().upper().startswith(("SELECT", "(SELECT")):
            counts["reads"] += 1
        else:
            counts["writes"] += 1
            # One statement is a transaction of its own here.
            counts["commits"] += _is_autocommit(connection)
            wrote.add(id(connection))

    def committed(connection: Connection) -> None:
        if id(connection) in wrote and not _is_autocommit(connection):
            counts["commits"] += 1
        wrote.discard(id(connection))

    event.listen(database.engine, "after_cursor_execute", executed)
    event.listen(database.engine, "commit", committed)
    try:
        yield counts
    finally:
        event.remove(database.engine, "after_cursor_execute", executed)
        event.remove(database.engine, "commit", committed)


def _is_autocommit(connection: Connection) -> bool:
    return bool(connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT")
