"""The schema's revisions: applied once, checked before work, printable, and equal to what queries expect."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from agentq import SchemaOutdatedError, UnavailableError
from agentq.errors import ConfigError
from agentq.storage import migrate
from agentq.storage.database import Database
from agentq.storage.schema import SCHEMA, metadata

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
        connection.exec_driver_sql("select * from agentq.runs")
    database.dispose()


def test_a_schema_newer_than_this_release_is_refused(new_database_url: NewDatabase) -> None:
    database = Database(new_database_url())
    migrate.upgrade(database)
    with database.transaction() as connection:
        connection.exec_driver_sql("update agentq.alembic_version set version_num = '9999'")
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


def test_the_printed_sql_makes_the_same_schema(new_database_url: NewDatabase) -> None:
    url = new_database_url()
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(migrate.sql())  # type: ignore[call-overload]
    database = Database(url)
    migrate.check(database)
    database.dispose()


def test_the_revisions_make_what_the_queries_expect(migrated_database: Database) -> None:
    with migrated_database.transaction() as connection:
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
        ("postgresql://me@/x?host=/tmp&port=5432?options=x", "is not a URL"),
        ("postgresql://localhost:abc/x", "is not a URL"),
        ("postgresql://[::1/x", "is not a URL"),
        ("postgresql://localhost/x?foo=bar", "foo"),
    ],
)
def test_a_wrong_url_is_one_clear_line(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Database(url)


def test_an_unreachable_server_is_one_clear_line_without_the_password() -> None:
    database = Database("postgresql://me:geheim@127.0.0.1:1/nothing")
    with pytest.raises(UnavailableError, match="check AGENTQ_DATABASE_URL") as caught, database.transaction():
        pass
    assert "geheim" not in str(caught.value)
    assert "\n" not in str(caught.value)
