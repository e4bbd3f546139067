"""The schema's revisions: bring a database up to date, say where it is, print the SQL."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from agentq.errors import ConfigError, SchemaOutdatedError
from agentq.storage.database import Database
from agentq.storage.schema import SCHEMA


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def head() -> str:
    """The newest revision this release knows."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


@contextmanager
def connected(database: Database) -> Iterator[Connection]:
    """One transaction of a connection as Alembic wants it."""
    connect: Any = lambda: psycopg.connect(database.url, connect_timeout=5)  # noqa: E731
    try:
        with create_engine("postgresql+psycopg://", creator=connect, poolclass=NullPool).begin() as connection:
            yield connection
    except DBAPIError as error:
        raise (database.translate(error.orig) if isinstance(error.orig, psycopg.Error) else error) from error


def current(database: Database) -> str | None:
    """The database's revision; None when it has no agentq schema."""
    with connected(database) as connection:
        options = {"version_table_schema": SCHEMA}
        return MigrationContext.configure(connection, opts=options).get_current_revision()


def upgrade(database: Database) -> None:
    """Apply what is missing, in one transaction; safe to run twice and from two places at once."""
    _refuse_newer(current(database))
    config = _config()
    with connected(database) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def sql(revisions: str = "head") -> str:
    """The SQL of ``from:to`` (or all up to ``to``), for a database that only its administrators may change.

    Raises ConfigError for a revision that does not exist.
    """
    config = _config()
    config.output_buffer = io.StringIO()
    try:
        command.upgrade(config, revisions, sql=True)
    except CommandError as error:
        raise ConfigError(f"{error}; the newest revision is {head()}", range=revisions) from error
    return config.output_buffer.getvalue()


def _refuse_newer(found: str | None) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if found is not None and found not in known:
        raise SchemaOutdatedError(
            f"the database's schema {found} is newer than this release ({head()}); install the newer agentq here",
            found=found,
            wanted=head(),
        )


def check(database: Database) -> None:
    """Raises SchemaOutdatedError, naming the command, unless the database is at this release's revision."""
    found, wanted = current(database), head()
    if found == wanted:
        return
    if found is None:
        raise SchemaOutdatedError(
            "the database has no agentq schema; run: agentq db upgrade", found=None, wanted=wanted
        )
    _refuse_newer(found)
    raise SchemaOutdatedError(
        f"the database's schema is at {found}, this release needs {wanted}; run: agentq db upgrade",
        found=found,
        wanted=wanted,
    )
