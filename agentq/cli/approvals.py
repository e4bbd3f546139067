"""``agentq approvals``: the calls that wait for a person, and the person's decision."""

from typing import Any

import click

from agentq.cli import options
from agentq.cli.output import age, approval_json, print_json, print_table
from agentq.run import Approval


@click.group()
def approvals() -> None:
    """Decide on calls that wait for a person."""


@approvals.command()
@click.option("--run", "run_id", metavar="RUN", help="Only calls of this run.")
@click.option("--all", "decided_too", is_flag=True, help="Those already decided too.")
@options.as_json
@click.pass_obj
def ls(given: dict[str, Any], /, *, run_id: str | None, decided_too: bool, as_json: bool) -> None:
    """List waiting calls, the oldest first."""
    with options.reading_client(given) as client:
        found = client.approvals(run_id=run_id, status=None if decided_too else "pending")
    if as_json:
        for approval in found:
            print_json(approval_json(approval))
        return
    print_table(("RUN", "CALL", "STATUS", "ASKS", "AGE", "BY", "TOOL", "KEY", "ARGUMENTS"), map(_row, found), status=2)


def _row(approval: Approval) -> tuple[Any, ...]:
    return (
        approval.run_id,
        approval.call_id,
        approval.status,
        "may it run" if approval.kind == "approval" else "did it happen",
        age(approval.requested_at),
        approval.decided_by,
        approval.tool,
        # What to look for at the destination.
        approval.idempotency_key if approval.kind == "outcome" else "",
        approval.arguments,
    )


_by = click.option("--by", metavar="NAME", help="Who decides.  [default: you, at this machine]")


@approvals.command()
@click.argument("run_id", metavar="RUN")
@click.argument("call_id", metavar="CALL_ID")
@_by
@click.pass_obj
def approve(given: dict[str, Any], /, *, run_id: str, call_id: str, by: str | None) -> None:
    """Let a waiting call run."""
    with options.reading_client(given) as client:
        client.handle(run_id).approve(call_id, by=by)
    click.echo(f"approved {call_id} of run {run_id}")


@approvals.command()
@click.argument("run_id", metavar="RUN")
@click.argument("call_id", metavar="CALL_ID")
@click.option(
    "--happened",
    type=click.Choice(["yes", "no", "unknown"]),
    required=True,
    help="yes: the model gets the result; no: the tool runs again; unknown: the model is told that nobody knows.",
)
@click.option("--result", metavar="TEXT", help="What the tool returned, with --happened yes.")
@click.option("--reason", help="What the model is told, with --happened unknown.")
@_by
@click.pass_obj
def settle(
    given: dict[str, Any],
    /,
    *,
    run_id: str,
    call_id: str,
    happened: str,
    result: str | None,
    reason: str | None,
    by: str | None,
) -> None:
    """Say whether a call took effect whose worker was lost (it asks "did it happen")."""
    answer = {"yes": True, "no": False, "unknown": None}[happened]
    if result is not None and not answer:
        raise click.UsageError(f"--happened {happened} has no result; --result goes with --happened yes")
    if reason is not None and answer is not None:
        raise click.UsageError("--reason goes with --happened unknown")
    with options.reading_client(given) as client:
        client.handle(run_id).settle(call_id, happened=answer, result=result, reason=reason, by=by)
    click.echo(f"settled {call_id} of run {run_id}: happened: {happened}")


@approvals.command()
@click.argument("run_id", metavar="RUN")
@click.argument("call_id", metavar="CALL_ID")
@click.option("--reason", required=True, help="What the model is told.")
@_by
@click.pass_obj
def reject(given: dict[str, Any], /, *, run_id: str, call_id: str, reason: str, by: str | None) -> None:
    """Do not let a waiting call run; the model sees the reason."""
    with options.reading_client(given) as client:
        client.handle(run_id).reject(call_id, reason=reason, by=by)
    click.echo(f"rejected {call_id} of run {run_id}")
