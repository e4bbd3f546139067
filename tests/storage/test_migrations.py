"""The schema's revisions: applied once, checked before work, printable, and equal to what queries expect."""

import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from agentq import Agent, SchemaOutdatedError, ToolMessage, UnavailableError, UserMessage, tool
from agentq.errors import ConfigError
from agentq.providers.scripted import Scripted
from agentq.storage import migrate
from agentq.storage.database import Database
from agentq.storage.schema import SCHEMA, metadata
from agentq.wire import StepMessage
from tests.engine.drain import Drain
from tests.waiting import eventually

NewDatabase = Callable[[], str]


def test_a_database_without_the_schema_is_refused_and_the_command_is_named(new_database_url: NewDatabase) -> None:
    database = Database(new_database_url())
    with pytest.raises(SchemaOutdatedError, match="run: agentq db upgrade"):
        migrate.check(database)
    migrate.upgrade(database)
    migrate.check(database)
    assert migrate.current(database) == migrate.head()
    database.dispose()


def test_a_query_on_a_database_without_the_schema_says_what_to_do(new_database_url: NewDatabase) -> None:
    database = Database(new_database_url())
    with pytest.raises(SchemaOutdatedError, match="agentq db upgrade"), database.autocommit() as connection:
        connection.execute("select * from agentq.runs")
    database.dispose()


def test_a_schema_newer_than_this_release_is_refused(new_database_url: NewDatabase) -> None:
    database = Database(new_database_url())
    migrate.upgrade(database)
    with database.transaction() as connection:
        connection.execute("update agentq.alembic_version set version_num = '9999'")
    for refused in (migrate.check, migrate.upgrade):
        with pytest.raises(SchemaOutdatedError, match="newer than this release"):
            refused(database)
    database.dispose()


def test_deployments_that_upgrade_at_the_same_moment_do_not_meet(new_database_url: NewDatabase) -> None:
    upgrade = "import sys; from agentq.storage.database import Database; from agentq.storage import migrate; "
    upgrade += "migrate.upgrade(Database(sys.argv[1]))"
    command = [sys.executable, "-W", "ignore", "-c", upgrade, new_database_url()]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=60)[1] for process in processes] == [""] * 4
    assert [process.returncode for process in processes] == [0] * 4


# A run that release 0003 left when its model had asked for one call.
OF_0003 = (
    """
    INSERT INTO agentq.runs (id, agent, status, phase, seq, turn, depth, progress, context, tags, message_count,
                             event_count, open_calls, queue, timeout_secs, due_at, sweep_at)
    VALUES ('run_old', 'test', 'running', 'tools', 1, 1, 0, '{"version":1,"limits":{},"model_calls":1,"tool_calls":1,
            "usage":{"input_tokens":5,"output_tokens":3}}', '{}', '{}', 3, 2, 1, 'agentq.tools', 60, now(), now())
    """,
    """
    INSERT INTO agentq.messages (run_id, position, payload) VALUES ('run_old', 0, '{"role":"user","text":"go"}'),
        ('run_old', 1, '{"role":"assistant","calls":[{"id":"call_a","name":"act","arguments":"{}"}]}')
    """,
    """
    INSERT INTO agentq.events (run_id, number, type, data) VALUES ('run_old', 1, 'run.enqueued', '{"agent":"test"}'),
        ('run_old', 2, 'step', '{"phase":"model","seq":0,"input_tokens":5,"output_tokens":3}')
    """,
    """
    INSERT INTO agentq.tool_calls (run_id, turn, index, position, call_id, tool, kind, queue, timeout_secs, on_unknown,
                                   needs_approval, status)
    VALUES ('run_old', 1, 0, 2, 'call_a', 'act', 'tool', 'agentq.tools', 60, 'report', false, 'pending')
    """,
)


def test_a_run_of_an_older_release_goes_on_after_the_upgrade(new_database_url: NewDatabase) -> None:
    @tool
    def act() -> str:
        """Act."""
        return "acted"

    database = upgraded_to(new_database_url(), "0003")
    with database.transaction() as rows:
        for statement in OF_0003:
            rows.execute(statement)
    migrate.upgrade(database)
    drain = Drain(database, Agent("test", model=Scripted(["unused", "done"]), tools=[act]))
    handle = drain.client.handle("run_old")
    drain.do(StepMessage("run_old", 1))
    drain.work()
    assert handle.result().text == "done"
    asked, _, back, _ = handle.messages()
    assert asked == UserMessage(text="go")
    assert isinstance(back, ToolMessage)
    assert (back.result.call_id, back.result.text) == ("call_a", "acted")
    assert [event.number for event in handle.events(follow=False)] == [1, 2, 3, 4, 5]
    run = handle.run()
    assert (run.model_calls, run.tool_calls, (run.usage.input_tokens or 0) > 5) == (2, 1, True)
    assert run.updated_at == [*handle.events(follow=False)][-1].at
    new = drain.enqueue(drain.client.agents["test"])
    drain.work()
    assert new.run().is_terminal
    database.dispose()


def upgraded_to(url: str, revision: str) -> Database:
    database = Database(url)
    config = migrate._config()
    with migrate.connected(database) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    return database


ENQUEUE = """
    WITH run AS (
        INSERT INTO agentq.runs (id, agent, status, phase, seq, turn, depth, progress, context, tags, message_count,
                                 event_count, queue, due_at)
        VALUES (%s, 'test', 'queued', 'recall', 0, 0, 0, '{}', '{}', '{}', 1, 1, 'agentq', now())
        RETURNING number)
"""
TOLD = """INSERT INTO agentq.journal (run, number, events) SELECT number, 1, '[["run.enqueued",{}]]' FROM run"""


# The server locks the two tables in the order of their statements.
@pytest.mark.parametrize("rest", [TOLD, f", told AS ({TOLD}) SELECT 1"], ids=["journal first", "runs first"])
def test_what_producers_write_during_an_upgrade_is_not_lost(new_database_url: NewDatabase, rest: str) -> None:
    database = upgraded_to(url := new_database_url(), "0005")
    written: list[str] = []
    done = threading.Event()

    def produce() -> None:
        with closing(psycopg.connect(url, autocommit=True, prepare_threshold=None)) as connection:
            while not done.is_set():
                connection.execute(ENQUEUE + rest, (new := f"run_{len(written)}",))
                written.append(new)

    producer = threading.Thread(target=produce)
    producer.start()
    eventually(lambda: len(written) > 500, within=30, what="some runs are there")
    migrate.upgrade(database)
    before = len(written)
    eventually(lambda: len(written) > before + 10, within=30, what="the producer goes on")
    done.set()
    producer.join()
    with database.autocommit() as connection:
        assert set(connection.execute("SELECT id FROM agentq.runs").scalars()) == set(written)
        orphans = "SELECT count(*) FROM agentq.journal WHERE run NOT IN (SELECT number FROM agentq.runs)"
        assert connection.execute(orphans).scalar() == 0
    database.dispose()


def test_an_upgrade_keeps_what_others_have_attached_to_the_runs(new_database_url: NewDatabase) -> None:
    database = upgraded_to(new_database_url(), "0005")
    with database.autocommit() as connection:
        connection.execute("GRANT SELECT ON agentq.runs TO public")
        connection.execute("CREATE VIEW failures AS SELECT id, error FROM agentq.runs WHERE status = 'failed'")
        connection.execute("CREATE INDEX own_index ON agentq.runs (agent)")
        connection.execute("ALTER TABLE agentq.runs REPLICA IDENTITY FULL")
    migrate.upgrade(database)
    with database.autocommit() as connection:
        kept = connection.execute("""
            SELECT array_to_string(relacl, ' ') LIKE '%=r/%' AS grants, relreplident,
                to_regclass('failures') IS NOT NULL AS view, to_regclass('agentq.own_index') IS NOT NULL AS own,
                reloptions
            FROM pg_class WHERE oid = 'agentq.runs'::regclass
        """)
        assert tuple(kept.one()) == (True, "f", True, True, ["fillfactor=70"])
    database.dispose()


def test_long_texts_are_kept_with_lz4_where_the_server_has_it(database: Database) -> None:
    with database.autocommit() as connection:
        try:
            connection.execute("CREATE TEMPORARY TABLE probe (text text COMPRESSION lz4)")
            method = "l"
        except psycopg.errors.FeatureNotSupported:
            method = ""
        kept = connection.execute("""
            SELECT attcompression FROM pg_attribute WHERE (attrelid, attname) IN (
                ('agentq.journal'::regclass, 'messages'), ('agentq.runs'::regclass, 'context'),
                ('agentq.runs'::regclass, 'output'), ('agentq.approvals'::regclass, 'arguments'))
        """)
        assert kept.scalars() == [method] * 4


def test_what_a_deleted_run_has_left_is_deleted_with_it(database: Database) -> None:
    test = Agent("test", model=Scripted(["done"] * 2))
    drain = Drain(database, test)
    gone, kept = drain.enqueue(test), drain.enqueue(test)
    drain.work()
    with database.autocommit() as connection:
        connection.execute("DELETE FROM agentq.runs WHERE id = %s", (gone.id,))
        left = connection.execute("SELECT DISTINCT run_id FROM agentq.messages UNION SELECT run_id FROM agentq.events")
        assert left.scalars() == [kept.id]
        assert connection.execute("SELECT count(DISTINCT run) FROM agentq.journal").scalar() == 1
        connection.execute("TRUNCATE agentq.runs CASCADE")
        assert connection.execute("SELECT count(*) FROM agentq.journal").scalar() == 0


def test_the_printed_sql_makes_the_same_schema(new_database_url: NewDatabase) -> None:
    url = new_database_url()
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(migrate.sql())  # type: ignore[call-overload]
    database = Database(url)
    migrate.check(database)
    database.dispose()


def test_the_revisions_make_what_the_queries_expect(migrated_database: Database) -> None:
    with migrate.connected(migrated_database) as connection:
        options = {
            "version_table_schema": SCHEMA,
            "include_schemas": True,
            "include_name": lambda name, kind, _: kind != "schema" or name == SCHEMA,
        }
        found = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(found, metadata) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("not a url", "is not a URL"),
        ("mysql://root@localhost/x", "must be a Postgres URL, not mysql"),
        ("", "is not a URL"),
        ("postgresql://me@/x?host=/tmp&port=5432?options=x", "AGENTQ_DATABASE_URL: extra key"),
        ("postgresql://localhost:abc/x", "is not a URL"),
        ("postgresql://[::1/x", "is not a URL"),
        ("postgresql://localhost/x?foo=bar", "foo"),
    ],
)
def test_a_wrong_url_is_one_clear_line(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Database(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:geheim%zz@127.0.0.1/x",
        "postgresql://me:geheim@[::1]x/x",
        "postgresql://me:geheim/x",
        "//me:geheim@127.0.0.1/x",
        "postgresql://me:geheim@[::1/x",
        "postgresql://me:geheim@127.0.0.1:abc/x",
    ],
)
def test_what_is_said_of_a_wrong_url_does_not_show_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a URL") as caught:
        Database(url)
    shown = "".join(traceback.format_exception(caught.value))
    assert "geheim" not in shown.replace(url, "")


def test_an_unreachable_server_is_one_clear_line_without_the_password() -> None:
    database = Database("postgresql://me:geheim@127.0.0.1:1/nothing")
    with pytest.raises(UnavailableError, match="check AGENTQ_DATABASE_URL") as caught, database.transaction():
        pass
    assert "geheim" not in str(caught.value)
    assert "\n" not in str(caught.value)
