"""``agentq db``: the schema's revision, and how to bring it up to date."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from agentq import embedded
from agentq.cli import options
from agentq.cli.output import print_json
from agentq.storage import migrate
from agentq.storage.database import Database


@click.group()
def db() -> None:
    """Bring the database's schema up to date."""


@contextmanager
def _database(given: Mapping[str, Any]) -> Iterator[Database]:
    settings = options.settings_of(given)
    if settings.database_url is not None:
        database = Database(settings.database_url)
        yield database
        database.dispose()
        return
    with embedded.start(settings.home) as services:
        database = Database(services.database_url)
        yield database
        database.dispose()


@db.command()
@click.pass_obj
def upgrade(given: dict[str, Any], /) -> None:
    """Create or upgrade the schema; safe to repeat, and from two places at once.

    Stop the workers of the older release first: they cannot save on a newer schema.
    """
    with _database(given) as database:
        before = migrate.current(database)
        migrate.upgrade(database)
        after = migrate.current(database)
    click.echo(f"the schema is at {after}" + ("" if before == after else f", it was at {before or 'nothing'}"))


@db.command()
@options.as_json
@click.pass_obj
def current(given: dict[str, Any], /, *, as_json: bool) -> None:
    """Print the schema's revision."""
    with _database(given) as database:
        found = migrate.current(database)
    if as_json:
        print_json({"current": found, "head": migrate.head()})
    else:
        click.echo(found or "none")


@db.command()
@options.as_json
@click.pass_obj
def check(given: dict[str, Any], /, *, as_json: bool) -> None:
    """Exit with 0 if the schema is the one this release needs, else with 2."""
    with _database(given) as database:
        migrate.check(database)
    if as_json:
        print_json({"current": migrate.head(), "head": migrate.head()})
    else:
        click.echo(f"the schema is current: {migrate.head()}")


@db.command()
@click.argument("revisions", metavar="[RANGE]", default="head")
def sql(revisions: str) -> None:
    """Print the SQL of RANGE, FROM:TO or TO, for whoever may change the database. The default is everything."""
    click.echo(migrate.sql(revisions), nl=False)
