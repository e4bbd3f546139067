"""``agentq purge``: delete what ended long ago."""

from dataclasses import asdict
from typing import Any

import click

from agentq.cli import options
from agentq.cli.output import count, print_json
from agentq.inputs import MAX_DAYS


@click.command()
@click.option(
    "--days",
    type=click.FloatRange(0, MAX_DAYS, min_open=True, max_open=True),
    required=True,
    help="What ended earlier than so many days ago goes.",
)
@options.as_json
@click.pass_obj
def purge(given: dict[str, Any], /, *, days: float, as_json: bool) -> None:
    """Delete runs that ended long ago, and threads in which nothing has happened since.

    Open runs stay, however old, and so does a thread with one. For a timer; workers do it by themselves where
    AGENTQ_KEEP_DAYS is set.
    """
    with options.reading_client(given) as client:
        purged = client.purge(keep_days=days)
    if as_json:
        print_json(asdict(purged))
        return
    what = [count(purged.runs, "run"), count(purged.threads, "thread"), count(purged.blobs, "image or file")]
    click.echo(f"deleted: {', '.join(what)}")
