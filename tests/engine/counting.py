"""Count what a step asks of the database: statements, transactions, and those that wait for the disk."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from psycopg.pq import TransactionStatus

from agentq.storage.database import Database
from agentq.storage.sql import Connection


@contextmanager
def observed(database: Database, executed: Callable[[Connection, str], None]) -> Iterator[None]:
    """``executed`` is told of each statement of this process on the database, after it; what it raises is raised."""

    def telling(method: Callable[..., Any]) -> Callable[..., Any]:
        def told(connection: Connection, query: Any, *args: Any, **options: Any) -> Any:
            brought = method(connection, query, *args, **options)
            if connection.info.dbname == database.name:
                executed(connection, query.decode() if isinstance(query, bytes) else query)
            return brought

        return told

    with (
        patch.object(Connection, "execute", telling(Connection.execute)),
        patch.object(Connection, "fetch", telling(Connection.fetch)),
    ):
        yield


@contextmanager
def counted(database: Database) -> Iterator[Counter[str]]:
    """Counts of ``claims``, ``reads``, ``writes`` (statements of commits) and ``commits`` (durable transactions).

    A claim is what waits for no fsync; so does a look of the sweep.
    """
    counts: Counter[str] = Counter()
    wrote: set[int] = set()
    transaction = database.transaction

    def executed(connection: Connection, statement: str) -> None:
        if "synchronous_commit" in statement:
            counts["claims"] += 1
        elif statement.lstrip().upper().startswith(("SELECT", "(SELECT")):
            counts["reads"] += 1
        else:
            counts["writes"] += 1
            if connection.info.transaction_status == TransactionStatus.IDLE:
                # One statement is a transaction of its own here.
                counts["commits"] += 1
            else:
                wrote.add(id(connection))

    @contextmanager
    def committed() -> Iterator[Connection]:
        with transaction() as connection:
            wrote.discard(id(connection))
            yield connection
        counts["commits"] += id(connection) in wrote

    with observed(database, executed), patch.object(database, "transaction", committed):
        yield counts
