"""``agentq runs``: what runs there are, what one did, and ending it."""

from dataclasses import asdict
from typing import Any, get_args

import click
from pydantic_core import to_json

from agentq.cli import options, timeline
from agentq.cli.messages import print_messages
from agentq.cli.output import age, approval_json, count, local, paint_status, print_json, print_table
from agentq.cli.program import say
from agentq.cli.run import print_approvals
from agentq.errors import AgentqError, RunNotFoundError, RunNotHeldError
from agentq.handle import Handle
from agentq.run import Run, Status


@click.group()
def runs() -> None:
    """List, show, retry, adopt and cancel runs."""


@runs.command()
@click.option("--status", type=click.Choice(get_args(Status)), help="Only runs with this status.")
@click.option("--agent", help="Only runs of this agent.")
@options.tags
@click.option("--thread", help="Only runs of this conversation.")
@click.option("--outdated", is_flag=True, help="Only those that are held because their agent has changed.")
@options.limit
@click.option("--before", metavar="RUN", help="The page after this one: the last run you have seen.")
@options.as_json
@click.pass_obj
def ls(given: dict[str, Any], /, *, as_json: bool, limit: int, **filters: Any) -> None:
    """List runs, the newest first."""
    with options.reading_client(given) as client:
        if filters["before"]:
            client.handle(filters["before"]).status()
        found = options.page(client.runs(**filters, limit=limit + 1), limit, "--before")
    if as_json:
        for run in found:
            print_json(run)
        return
    head = ("RUN", "STATUS", "AGENT", "TURN", "AGE", "TAGS", "END")
    print_table(head, map(_row, found), status=1)


def _row(run: Run) -> tuple[Any, ...]:
    tags = " ".join(f"{key}={value}" for key, value in run.tags.items())
    return (run.id, run.status, run.agent, run.turn, age(run.created_at), tags, _end(run))


def _end(run: Run) -> str | None:
    if run.status == "queued":
        return _wait(run)
    if run.outdated_at is not None:
        versions = f"from {run.agent_version} to {run.outdated_by}"
        return f"held at {run.phase}: agent changed {versions}"
    if run.error is not None:
        return f"{run.error.code}: {run.error.message}"
    return run.stop_reason


def _wait(run: Run) -> str | None:
    """What it was told to wait for."""
    if run.is_held:
        return f"behind others on thread {run.thread_id}"
    if run.has_place is False:
        return f"in line of {run.concurrency_key}"
    return f"due at {local(run.start_at)}" if run.start_at is not None else None


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option("--messages", is_flag=True, help="The conversation too.")
@options.as_json
@click.pass_obj
def show(given: dict[str, Any], /, *, run_id: str, messages: bool, as_json: bool) -> None:
    """Show one run: where it stands, what it did, what it waits for."""
    with options.reading_client(given) as client:
        handle = client.handle(run_id)
        run = handle.run()
        transcript = handle.messages() if messages else None
        if as_json:
            more = {} if transcript is None else {"messages": transcript}
            events = list(handle.events(follow=False))
            approvals = [approval_json(approval) for approval in client.approvals(run_id=run_id, status=None)]
            print_json(asdict(run) | {"events": events, "approvals": approvals} | more)
            return
        _print_run(run)
        _print_events(handle)
        if transcript is not None:
            print_messages(transcript)
        _print_outcome(run)
        print_approvals(client.approvals(run_id=run_id), err=False)


def _print_run(run: Run) -> None:
    tokens = f"{run.usage.input_tokens or 0} tokens in, {run.usage.output_tokens or 0} out"
    if run.usage.known_cost is not None:
        tokens += f", ${run.usage.known_cost.normalize():f}" + (" and more" if run.cost is None else "")
    leaving = " (cancel requested)" if run.cancel_requested and not run.is_terminal else ""
    rows = {
        "run": run.id,
        "agent": run.agent,
        "status": paint_status(run.status) + leaving,
        "step": None if run.is_terminal else f"{run.seq} {run.phase}, turn {run.turn}",
        "attempt": run.attempt if run.attempt > 1 else None,
        "worker": run.worker if run.lease_until else None,
        "due at": local(run.due_at) if run.due_at and run.has_place is not False and not run.is_terminal else None,
        "priority": run.priority if run.priority != "normal" else None,
        "key": _place(run),
        "created": local(run.created_at),
        "finished": local(run.finished_at) if run.finished_at else None,
        "version": run.agent_version,
        "held": f"since {local(run.outdated_at)}: agent changed to {run.outdated_by}" if run.outdated_at else None,
        "thread": run.thread_id,
        "parent": run.parent_run_id,
        "tags": " ".join(f"{key}={value}" for key, value in run.tags.items()),
        "usage": f"{run.model_calls} model calls, {run.tool_calls} tool calls, {tokens}",
    }
    for name, value in rows.items():
        if value:
            click.echo(f"{name:<10}{value}")


def _place(run: Run) -> str | None:
    if run.concurrency_key is None:
        return None
    where = {None: "", True: ", at work", False: ", in line"}[run.has_place]
    return f"{run.concurrency_key}, {run.concurrency_limit} at a time{where}"


def _print_events(handle: Handle) -> None:
    click.echo()
    for event in handle.events(follow=False):
        # What it says in the end is in the conversation.
        if event.type != "model.delta":
            click.echo(timeline.line(event))


def _print_outcome(run: Run) -> None:
    if run.error is not None:
        click.echo(f"\n{paint_status(run.status)}: {run.error.message} ({run.error.code})")
    elif run.text is not None or run.output is not None:
        click.echo(f"\n{run.text if run.text is not None else to_json(run.output).decode()}")


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.pass_obj
def cancel(given: dict[str, Any], /, *, run_id: str) -> None:
    """End a run: nothing new starts, a call that is running may still come back."""
    with options.reading_client(given) as client:
        before = client.handle(run_id).run()
        status = client.handle(run_id).cancel()
    if before.is_terminal:
        click.echo(f"run {run_id} had ended before: {status}")
    elif status == "cancelled":
        click.echo(f"run {run_id} is cancelled")
    else:
        click.echo(f"run {run_id} ends as soon as its worker hears of it")


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option("--limit", "limits", multiple=True, type=(str, float), metavar="NAME N", help="A limit it has reached.")
@click.pass_obj
def retry(given: dict[str, Any], /, *, run_id: str, limits: tuple[tuple[str, float], ...]) -> None:
    """Let a run that failed or was cancelled go on where it stood, with its counts."""
    with options.reading_client(given) as client:
        client.handle(run_id).retry(limits=dict(limits))
    click.echo(f"run {run_id} goes on")


@runs.command()
@click.argument("run_ids", nargs=-1, metavar="RUN...")
@click.option("--agent", help="All runs of this agent that are held so.")
@click.pass_obj
def adopt(given: dict[str, Any], /, *, run_ids: tuple[str, ...], agent: str | None) -> None:
    """Let runs that are held because their agent has changed go on with the new code."""
    if bool(run_ids) == bool(agent):
        raise click.UsageError("name the runs, or --agent for all that are held of one")
    with options.reading_client(given) as client:
        if agent:
            click.echo(f"{count(client.adopt(agent), 'run')} of {agent} adopted")
        refused = [error for run_id in run_ids if (error := _adopt(client.handle(run_id))) is not None]
    for error in refused[:-1]:
        say(str(error))
    if refused:
        raise refused[-1]


def _adopt(handle: Handle) -> AgentqError | None:
    """Why it cannot be: a worker with the old code may have come to it meanwhile, which is no matter of the others."""
    try:
        handle.adopt()
    except (RunNotFoundError, RunNotHeldError) as error:
        return error
    click.echo(f"run {handle.id} goes on with the new code")
    return None
