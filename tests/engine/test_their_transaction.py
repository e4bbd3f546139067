"""A run in the caller's own transaction: it is there when that is committed, and the transaction is as it was."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg import IsolationLevel
from psycopg.rows import dict_row, scalar_row
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from agentq import (
    Agent,
    Approve,
    ConfigError,
    ContentError,
    Handle,
    Image,
    SchemaOutdatedError,
    ThreadBusyError,
    UnknownAgentError,
    UserMessage,
    tool,
)
from agentq.providers.scripted import Call, Scripted
from agentq.storage import leases
from agentq.storage.database import Database
from tests.engine.drain import Drain
from tests.images import png
from tests.waiting import eventually

TEST = Agent("test", model=Scripted(["done"]))


@pytest.fixture
def drain(database: Database) -> Drain:
    with database.autocommit() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS public.orders (id int)")
        connection.execute("DELETE FROM public.orders")
    return Drain(database, TEST)


def alchemy_url(database: Database) -> str:
    return "postgresql+psycopg://" + database.url.split("://", 1)[1]


@pytest.fixture
def engine(database: Database) -> Iterator[sqlalchemy.Engine]:
    engine = create_engine(alchemy_url(database))
    yield engine
    engine.dispose()


class Guest:
    """A caller's connection of one kind: what is given, and how its owner uses it."""

    def __init__(self, given: Any, execute: Callable[[str], Any], commit: Callable[[], None], roll: Callable[[], None]):
        self.given, self.execute, self.commit, self.rollback = given, execute, commit, roll

    def insert(self) -> None:
        self.execute("INSERT INTO public.orders VALUES (1)")


Open = Callable[[], Guest]


@pytest.fixture(params=["psycopg", "core", "session", "scoped session"])
def guest(request: pytest.FixtureRequest, database: Database, engine: sqlalchemy.Engine) -> Iterator[Open]:
    """Opens connections of each kind in turn."""
    with ExitStack() as stack:

        def of_psycopg() -> Guest:
            connection = stack.enter_context(psycopg.connect(database.url))
            return Guest(connection, connection.execute, connection.commit, connection.rollback)

        def of_core() -> Guest:
            connection = stack.enter_context(engine.connect())
            return Guest(connection, connection.exec_driver_sql, connection.commit, connection.rollback)

        def of_session() -> Guest:
            session = stack.enter_context(Session(engine))
            return Guest(session, lambda sql: session.execute(sqlalchemy.text(sql)), session.commit, session.rollback)

        def of_scoped_session() -> Guest:
            scoped = scoped_session(sessionmaker(engine))
            stack.callback(scoped.remove)
            return Guest(scoped, lambda sql: scoped.execute(sqlalchemy.text(sql)), scoped.commit, scoped.rollback)

        yield locals()[f"of_{request.param.replace(' ', '_')}"]


def count(database: Database, table: str = "agentq.runs") -> int:
    with database.autocommit() as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").scalar())


def begins(drain: Drain, handle: Handle) -> None:
    drain.sweep()
    drain.work()
    assert handle.status() == "completed"


# ---------------------------------------------------------------------------------------------- commit and rollback


def test_the_run_is_there_with_what_else_the_transaction_wrote(drain: Drain, database: Database, guest: Open) -> None:
    theirs = guest()
    theirs.insert()
    handle = drain.enqueue(TEST, connection=theirs.given, tags={"order": "1"})
    assert (count(database), drain.sent, drain.sweep()) == (0, [], 0)
    theirs.commit()
    assert (count(database), count(database, "public.orders")) == (1, 1)
    begins(drain, handle)
    assert handle.is_new


def test_a_rollback_leaves_nothing(drain: Drain, database: Database, guest: Open) -> None:
    theirs = guest()
    theirs.insert()
    drain.enqueue(TEST, connection=theirs.given, thread="t")
    drain.client.enqueue_many("test", ["a", "b"], connection=theirs.given)
    theirs.rollback()
    assert [count(database, f"agentq.{name}") for name in ("runs", "journal", "threads")] == [0, 0, 0]
    # Nor does a later commit of the same session send anything of it.
    theirs.insert()
    theirs.commit()
    assert drain.sent == []


def test_many_runs_are_one_transaction_with_the_callers(drain: Drain, database: Database, guest: Open) -> None:
    theirs = guest()
    handles = drain.client.enqueue_many("test", [f"text {n}" for n in range(30)], connection=theirs.given)
    assert count(database) == 0
    theirs.commit()
    assert count(database) == 30
    begins(drain, handles[-1])


def test_a_thread_and_an_agent_take_a_connection_too(drain: Drain, guest: Open) -> None:
    theirs = guest()
    handle = TEST.thread("t").enqueue("hello", client=drain.client, connection=theirs.given)
    other = TEST.enqueue("hello", client=drain.client, connection=theirs.given)
    theirs.commit()
    begins(drain, handle)
    assert other.status() == "completed"


def test_a_worker_hears_at_once_of_what_a_session_has_committed(drain: Drain, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        handle = drain.enqueue(TEST, connection=session)
        assert drain.sent == []
        session.commit()
        drain.work()
        assert handle.status() == "completed"


def test_nothing_is_sent_at_the_end_of_a_savepoint(drain: Drain, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        with session.begin_nested():
            handle = drain.enqueue(TEST, connection=session)
        assert drain.sent == []
        session.commit()
    drain.work()
    assert handle.status() == "completed"


def test_nothing_is_sent_by_a_session_that_is_a_guest_itself(drain: Drain, engine: sqlalchemy.Engine) -> None:
    with engine.connect() as connection, connection.begin() as transaction:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            drain.enqueue(TEST, connection=session)
            session.commit()
        assert drain.sent == []
        transaction.rollback()
    assert drain.client.runs() == []


def test_a_sessions_listeners_are_not_doubled(drain: Drain, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        for expected in (2, 4):
            for _ in range(2):
                drain.enqueue(TEST, connection=session)
            session.commit()
            assert len(drain.sent) == expected


# ---------------------------------------------------------------------------------------------- left as it was

SETTINGS = ("synchronous_commit", "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout",
            "search_path", "TimeZone")  # fmt: skip


def test_no_setting_of_the_callers_session_changes(drain: Drain, guest: Open) -> None:
    theirs = guest()

    def settings() -> list[Any]:
        found = theirs.execute("SELECT " + ", ".join(f"current_setting('{name}')" for name in SETTINGS))
        return list(found.fetchone())

    before = settings()
    drain.enqueue(TEST, connection=theirs.given, thread="t", concurrency_key="k", concurrency_limit=1)
    drain.client.enqueue_many("test", ["a", "b"], connection=theirs.given, delay_secs=5)
    assert settings() == before


def test_a_foreign_search_path_and_row_factory_do_not_matter(drain: Drain, database: Database) -> None:
    for factory in (dict_row, scalar_row):
        with psycopg.connect(database.url, row_factory=factory) as connection:
            connection.execute("CREATE TEMPORARY TABLE runs (id text) ON COMMIT DROP")
            connection.execute(
                "CREATE OR REPLACE FUNCTION pg_temp.now() RETURNS timestamptz LANGUAGE sql "
                "AS 'SELECT NULL::timestamptz'"
            )
            connection.execute("SET LOCAL search_path = pg_temp, public, pg_catalog")
            handle = drain.enqueue(TEST, connection=connection, thread=f"t {factory}", idempotency_key=f"k {factory}")
        begins(drain, handle)


@pytest.mark.parametrize("level", list(IsolationLevel))
def test_every_isolation_level_is_taken(drain: Drain, database: Database, level: IsolationLevel) -> None:
    with psycopg.connect(database.url) as connection:
        connection.isolation_level = level
        handle = drain.enqueue(TEST, connection=connection, thread="t", idempotency_key="k")
    begins(drain, handle)


def test_nothing_is_prepared_on_the_callers_connection(drain: Drain, database: Database) -> None:
    with psycopg.connect(database.url, prepare_threshold=0) as connection:
        for _ in range(3):
            drain.enqueue(TEST, connection=connection)
        prepared = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%%agentq%%' AND NOT from_sql"
        assert connection.execute(prepared, prepare=False).fetchone() == (0,)


# ---------------------------------------------------------------------------------------------- errors


def goes_on(theirs: Guest, database: Database) -> None:
    """The transaction is not aborted."""
    theirs.insert()
    theirs.commit()
    assert count(database, "public.orders") == 1


def test_a_busy_thread_is_refused_and_the_transaction_goes_on(drain: Drain, database: Database, guest: Open) -> None:
    drain.enqueue(TEST, thread="t")
    theirs = guest()
    with pytest.raises(ThreadBusyError):
        drain.enqueue(TEST, thread="t", connection=theirs.given)
    # Nor does it keep the thread from others until its end.
    with pytest.raises(ThreadBusyError):
        drain.enqueue(TEST, thread="t")
    goes_on(theirs, database)


def test_a_thread_that_went_on_unseen_is_busy_and_the_transaction_goes_on(drain: Drain, database: Database) -> None:
    with psycopg.connect(database.url) as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        theirs = Guest(connection, connection.execute, connection.commit, connection.rollback)
        first = drain.enqueue(TEST, thread="t")
        drain.work()
        theirs.execute("SELECT 1")
        drain.enqueue(TEST, thread="t")
        assert first.status() == "completed"
        with pytest.raises(ThreadBusyError, match="cannot see it"):
            drain.enqueue(TEST, thread="t", connection=connection)
        goes_on(theirs, database)


def test_an_unknown_agent_is_refused_and_the_transaction_goes_on(drain: Drain, database: Database, guest: Open) -> None:
    with database.autocommit() as connection:
        leases.know_agents(connection, ["other"])
    theirs = guest()
    theirs.execute("SELECT 1")
    with pytest.raises(UnknownAgentError):
        drain.client.enqueue("nobody", "hi", connection=theirs.given)
    goes_on(theirs, database)


def test_another_database_is_refused_and_its_transaction_goes_on(
    drain: Drain, new_database_url: Callable[[], str]
) -> None:
    with psycopg.connect(new_database_url()) as connection:
        with pytest.raises(ConfigError, match="another database"):
            drain.enqueue(TEST, connection=connection)
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_database_without_the_schema_is_refused_and_the_transaction_goes_on(
    new_database_url: Callable[[], str],
) -> None:
    database = Database(new_database_url())
    with psycopg.connect(database.url) as connection:
        with pytest.raises(SchemaOutdatedError, match="agentq db upgrade"):
            Drain(database, TEST).enqueue(TEST, connection=connection)
        assert connection.execute("SELECT 1").fetchone() == (1,)
    database.dispose()


@contextmanager
def role(database: Database) -> Iterator[str]:
    with database.autocommit() as connection:
        connection.execute("CREATE ROLE agentq_test_guest")
        connection.execute("GRANT USAGE ON SCHEMA public TO agentq_test_guest")
    try:
        yield "agentq_test_guest"
    finally:
        with database.autocommit() as connection:
            connection.execute("DROP OWNED BY agentq_test_guest; DROP ROLE agentq_test_guest")


@pytest.mark.xdist_group("roles")
def test_a_role_that_may_not_write_runs_is_refused_until_it_is_granted_what_is_said(
    drain: Drain, database: Database
) -> None:
    with role(database) as name, psycopg.connect(database.url) as connection:
        connection.execute(f"SET LOCAL ROLE {name}")
        with pytest.raises(ConfigError, match="grant it USAGE"):
            drain.enqueue(TEST, connection=connection)
        connection.execute("RESET ROLE")
        connection.execute(
            f"GRANT USAGE ON SCHEMA agentq TO {name}; GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA agentq TO {name}; "
            f"GRANT UPDATE ON agentq.threads TO {name}"
        )
        connection.execute(f"SET LOCAL ROLE {name}")
        handle = drain.enqueue(TEST, connection=connection, thread="t", idempotency_key="k")
        connection.commit()
        begins(drain, handle)


@pytest.mark.xdist_group("roles")
def test_a_role_that_may_not_store_images_may_still_enqueue_texts(drain: Drain, database: Database) -> None:
    image = Image.from_bytes(png(1))
    with role(database) as name, psycopg.connect(database.url) as connection:
        connection.execute(
            f"GRANT USAGE ON SCHEMA agentq TO {name}; GRANT SELECT, INSERT ON agentq.runs, agentq.journal TO {name}; "
            f"GRANT SELECT, INSERT, UPDATE ON agentq.threads TO {name}"
        )
        connection.execute(f"SET LOCAL ROLE {name}")
        begun = drain.enqueue(TEST, connection=connection)
        with pytest.raises(ConfigError, match="SELECT and INSERT on its tables"):
            drain.enqueue(TEST, image, connection=connection)
        connection.execute("RESET ROLE")
        connection.execute(f"GRANT SELECT, INSERT ON agentq.blobs, agentq.blob_refs TO {name}")
        connection.execute(f"SET LOCAL ROLE {name}")
        handle = drain.enqueue(TEST, image, connection=connection)
        connection.commit()
        begins(drain, begun)
        begins(drain, handle)


def test_an_image_is_there_with_the_run_and_a_rollback_leaves_none(
    drain: Drain, database: Database, guest: Open
) -> None:
    theirs = guest()
    drain.enqueue(TEST, [Image.from_bytes(png(1)), "look"], connection=theirs.given, thread="t")
    drain.client.enqueue_many("test", ["a", Image.from_bytes(png(2))], connection=theirs.given)
    theirs.rollback()
    assert [count(database, f"agentq.{name}") for name in ("runs", "blobs", "blob_refs")] == [0, 0, 0]
    handle = drain.enqueue(TEST, [Image.from_bytes(png(1, filled_to=50_000)), "look"], connection=theirs.given)
    with pytest.raises(ContentError, match="is not stored here any more"):
        drain.enqueue(TEST, Image.from_bytes(png(3)).with_data(None), connection=theirs.given)
    theirs.commit()
    begins(drain, handle)
    message = handle.messages()[0]
    assert isinstance(message, UserMessage)
    assert drain.client.read(message.media[0]) == png(1, filled_to=50_000)


def test_a_read_only_transaction_is_refused(drain: Drain, database: Database) -> None:
    with psycopg.connect(database.url) as connection:
        connection.read_only = True
        with pytest.raises(ConfigError, match="read-only"):
            drain.enqueue(TEST, connection=connection)


def test_a_connection_without_a_transaction_is_refused(drain: Drain, database: Database) -> None:
    with psycopg.connect(database.url, autocommit=True) as connection:
        with pytest.raises(ConfigError, match="autocommit mode"):
            drain.enqueue(TEST, connection=connection)
        with connection.transaction():
            handle = drain.enqueue(TEST, connection=connection)
        begins(drain, handle)
    engine = create_engine(alchemy_url(database), isolation_level="AUTOCOMMIT")
    with engine.connect() as given, pytest.raises(ConfigError, match="AUTOCOMMIT"):
        drain.enqueue(TEST, connection=given)
    engine.dispose()


@pytest.mark.parametrize("given", ["postgresql://x/y", 5, object()])
def test_what_is_no_connection_is_refused(drain: Drain, given: Any) -> None:
    with pytest.raises(ConfigError, match="takes a SQLAlchemy Connection or Session, or a psycopg Connection"):
        drain.enqueue(TEST, connection=given)


def test_a_database_that_is_no_postgres_is_refused(drain: Drain) -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as given, pytest.raises(ConfigError, match="is of sqlite"):
        drain.enqueue(TEST, connection=given)
    engine.dispose()


def test_who_waits_cannot_give_a_connection(drain: Drain, database: Database) -> None:
    with psycopg.connect(database.url) as connection:
        given: Any = {"connection": connection}
        with pytest.raises(ConfigError, match="after your commit only"):
            TEST.run("hi", client=drain.client, **given)
        with pytest.raises(ConfigError, match="after your commit only"):
            TEST.thread("t").send("hi", client=drain.client, **given)


def test_an_error_of_the_callers_connection_does_not_show_what_the_run_is_about(
    drain: Drain, database: Database, engine: sqlalchemy.Engine
) -> None:
    with Session(engine) as session:
        session.connection()
        with database.autocommit() as connection:
            pid = session.execute(sqlalchemy.text("SELECT pg_backend_pid()")).scalar()
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
        with pytest.raises(DBAPIError) as told:
            drain.enqueue(TEST, "the secret of the run", connection=session, thread="t")
        assert "secret" not in str(told.value)


# ---------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "rolled back"])
def test_of_two_transactions_with_one_key_the_second_waits_for_the_first(
    drain: Drain, database: Database, guest: Open, commits: bool
) -> None:
    first, second = guest(), guest()
    a = drain.enqueue(TEST, connection=first.given, idempotency_key="k")
    found: list[Handle] = []
    # A scoped session is another one in each thread.
    given = second.given() if isinstance(second.given, scoped_session) else second.given
    thread = threading.Thread(target=lambda: found.append(drain.enqueue(TEST, connection=given, idempotency_key="k")))
    second.execute("SELECT 1")
    thread.start()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with database.autocommit() as connection:
        eventually(lambda: connection.execute(waits).scalar() == 1, what="the second waits")
    (first.commit if commits else first.rollback)()
    thread.join()
    (b,) = found
    second.commit()
    assert (b.id == a.id, b.is_new) == (commits, not commits)
    assert [run.id for run in drain.client.runs()] == [b.id]
    begins(drain, b)


# ---------------------------------------------------------------------------------------------- what is imported


def test_sqlalchemy_is_not_imported_for_a_producer_that_does_not_use_it(database: Database) -> None:
    code = """
import sys, psycopg
from agentq import Client
client = Client(sys.argv[1], "redis://nowhere.invalid")
with psycopg.connect(sys.argv[1]) as connection:
    client.enqueue("test", "hi", connection=connection)
print([name for name in sys.modules if name.split(".")[0] in ("sqlalchemy", "celery")])
"""
    done = subprocess.run([sys.executable, "-c", code, database.url], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("calls", [1, 2])
def test_a_run_goes_on_while_its_thread_is_locked(database: Database, calls: int) -> None:
    """As it is while somebody's transaction puts a message behind it, which may take long."""
    agent = Agent(
        "test",
        model=Scripted([[Call("act")] * calls, [Call("ask")] * calls, "done"]),
        tools=[tool(name="act")(lambda: "acted"), tool(name="ask")(lambda: "asked")],
        approve=["ask"],
    )
    drain = Drain(database, agent)
    handle = drain.enqueue(agent, thread="t")
    with psycopg.connect(database.url) as theirs:
        later = drain.enqueue(agent, "more", thread="t", connection=theirs, on_busy="enqueue")
        # Each would wait in vain: this process does both.
        theirs.execute("select set_config('idle_in_transaction_session_timeout', '3000', true)")
        drain.work()
        handle.decide(dict.fromkeys(handle.approvals(), Approve()))
        drain.work()
        assert handle.result().text == "done"
    assert later.status() == "queued"
