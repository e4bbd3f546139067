"""``agentq threads``: what was said on a conversation, and cutting, copying or deleting it."""

from typing import Any

import click

from agentq.cli import options
from agentq.cli.messages import print_messages
from agentq.cli.output import age, count, print_json, print_table


@click.group()
def threads() -> None:
    """List, show, cut, copy and delete conversations."""


@threads.command()
@options.limit
@click.option("--before", metavar="THREAD", help="The page after this one: the last thread you have seen.")
@options.as_json
@click.pass_obj
def ls(given: dict[str, Any], /, *, limit: int, before: str | None, as_json: bool) -> None:
    """List conversations, those begun last first."""
    with options.reading_client(given) as client:
        found = options.page(client.threads(before=before, limit=limit + 1), limit, "--before")
    if as_json:
        for each in found:
            print_json(each)
        return
    rows = ((each.id, each.status, each.runs, age(each.created_at), each.last_run_id, each.agent) for each in found)
    print_table(("THREAD", "STATUS", "RUNS", "AGE", "LAST RUN", "AGENT"), rows, status=1)


_thread = click.argument("thread_id", metavar="THREAD")


@threads.command()
@_thread
@options.as_json
@click.pass_obj
def show(given: dict[str, Any], /, *, thread_id: str, as_json: bool) -> None:
    """Show the messages of a thread, numbered as rewind counts them."""
    with options.reading_client(given) as client:
        client.thread(thread_id).info()
        history = client.thread(thread_id).history()
    if as_json:
        for message in history:
            print_json(message)
        return
    print_messages(history, numbered=True)


@threads.command()
@_thread
@click.argument("to", type=int)
@options.as_json
@click.pass_obj
def rewind(given: dict[str, Any], /, *, thread_id: str, to: int, as_json: bool) -> None:
    """Leave the first TO messages in a thread (-- -2 takes the last two away), and say what cannot be undone."""
    with options.reading_client(given) as client:
        rewound = client.thread(thread_id).rewind(to)
    if as_json:
        print_json(rewound)
        return
    click.echo(f"thread {thread_id} has {count(rewound.messages, 'message')} left")
    for effect in rewound.effects:
        became = (effect.result.code or effect.result.status) if effect.result else "not back yet"
        click.echo(f"not undone: {effect.tool} {effect.arguments} ({became}, run {effect.run_id or 'copied'})")


@threads.command()
@_thread
@click.argument("name", metavar="NEW_THREAD")
@click.option("--at", type=int, help="Copy so many messages only.  [default: all]")
@click.pass_obj
def fork(given: dict[str, Any], /, *, thread_id: str, name: str, at: int | None) -> None:
    """Begin a new thread with a copy of this one."""
    with options.reading_client(given) as client:
        copied = client.thread(thread_id).fork(name, at=at).history()
    click.echo(f"thread {name} begins with {count(len(copied), 'message')}")


@threads.command()
@_thread
@click.pass_obj
def delete(given: dict[str, Any], /, *, thread_id: str) -> None:
    """Delete a thread with all of its runs."""
    with options.reading_client(given) as client:
        runs = client.thread(thread_id).delete()
    click.echo(f"thread {thread_id} is deleted, with {count(runs, 'run')}")
