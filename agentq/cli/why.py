"""``agentq why``: what a run waits for, since when, and what would move it."""

from dataclasses import asdict
from typing import Any

import click
from pydantic_core import to_json

from agentq.cli import options
from agentq.cli.output import age, local, paint, paint_status, print_json
from agentq.why import Wait, Why


@click.command()
@click.argument("run_id", metavar="RUN")
@options.as_json
@click.pass_obj
def why(given: dict[str, Any], /, *, run_id: str, as_json: bool) -> None:
    """Say who or what a run waits for, since when, and what would move it."""
    with options.reading_client(given) as client:
        found = client.handle(run_id).why()
    if as_json:
        print_json(asdict(found) | {"is_stuck": found.is_stuck})
    else:
        _print(found)


def _print(found: Why, indent: str = "") -> None:
    click.echo(f"{indent}{found.run_id} ({found.agent}) is {paint_status(found.status)}{_where(found)}")
    for wait in found.waiting_for:
        _print_wait(wait, indent + "  ")
    if found.row is not None:
        click.echo(f"{indent}  row: {to_json(found.row).decode()}")


def _where(found: Why) -> str:
    since = f"since {local(found.since)} ({age(found.since)})"
    if found.ended is not None:
        return f" {since}: {found.ended}"
    leaving = ", cancel requested" if found.cancel_requested else ""
    deadline = f", ends at {local(found.deadline_at)} at the latest" if found.deadline_at else ""
    return f": turn {found.turn}, {found.phase}{leaving}{deadline}"


def _print_wait(wait: Wait, indent: str) -> None:
    since = f", since {local(wait.since)} ({age(wait.since)})" if wait.since else ""
    word, colour = ("stuck: ", "red") if wait.kind == "nothing" else ("waits for ", "yellow")
    click.echo(f"{indent}{paint(word, colour)}{wait.what}{since}")
    until = f" ({_UNTIL.get(wait.kind, 'next looked at')} {local(wait.until)})" if wait.until else ""
    click.echo(f"{indent}  what moves it: {wait.moves}{until}")
    if wait.run is not None:
        _print(wait.run, indent + "  ")


_UNTIL = {"step": "lease until", "call": "lease until", "lost": "lease ended", "time": "due at", "person": "until"}
