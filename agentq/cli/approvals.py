"""``agentq approvals``: the calls that wait for a person, and the person's decision."""

from typing import Any

import click

from agentq.approvals import Approve, Reject
from agentq.arguments import load_json
from agentq.cli import options
from agentq.cli.output import age, approval_json, local, print_fields, print_json, print_table
from agentq.errors import ApprovalNotPendingError
from agentq.handle import Handle
from agentq.run import Approval


@click.group()
def approvals() -> None:
    """Decide on calls that wait for a person."""


@approvals.command()
@click.option("--run", "run_id", metavar="RUN", help="Only calls of this run.")
@click.option("--all", "decided_too", is_flag=True, help="Those already decided too.")
@options.limit
@click.option("--after", metavar="ID", help="The page after this one: the id of the last call you have seen.")
@options.as_json
@click.pass_obj
def ls(
    given: dict[str, Any],
    /,
    *,
    run_id: str | None,
    decided_too: bool,
    limit: int,
    after: str | None,
    as_json: bool,
) -> None:
    """List waiting calls, the oldest first."""
    status = None if decided_too else "pending"
    with options.reading_client(given) as client:
        found = client.approvals(run_id=run_id, status=status, after=after, limit=limit + 1)
        found = options.page(found, limit, "--after")
        if run_id is not None and not found:
            # To tell a run that asks nothing from one that is not there.
            client.handle(run_id).status()
    if as_json:
        for approval in found:
            print_json(approval_json(approval))
        return
    print_table(
        ("RUN", "CALL", "STATUS", "ASKS", "AGE", "UNTIL", "BY", "TOOL", "KEY", "ARGUMENTS"), map(_row, found), status=2
    )


_ASKS = {"approval": "may it run", "outcome": "did it happen", "deferred": "its result"}


def _row(approval: Approval) -> tuple[Any, ...]:
    return (
        approval.run_id,
        approval.call_id,
        approval.status,
        _ASKS[approval.kind],
        age(approval.requested_at),
        local(approval.expires_at) if approval.expires_at else None,
        approval.decided_by,
        approval.tool,
        # What to look for at the destination.
        approval.idempotency_key if approval.kind != "approval" else "",
        approval.arguments,
    )


def _decide(handle: Handle, call_id: str, decision: Approve | Reject, by: str | None) -> None:
    """Decide, and say so; a call that was decided on in the same way before is left as it is."""
    word = "approved" if isinstance(decision, Approve) else "rejected"
    try:
        handle.decide({call_id: decision}, by=by)
    except ApprovalNotPendingError as error:
        if error.details.get("status") != word or not _is_same(handle, call_id, decision):
            raise
        click.echo(f"nothing to do: {error.message}")
    else:
        click.echo(f"{word} {call_id} of run {handle.id}")


def _is_same(handle: Handle, call_id: str, decision: Approve | Reject) -> bool:
    """Whether the call's record says all that the decision does."""
    record = [approval for approval in handle.approvals(status=None) if approval.call_id == call_id][-1]
    given = decision.arguments if isinstance(decision, Approve) else None
    edited = None if record.edited is None else load_json(record.edited)
    return given == edited and (record.sticky or not decision.sticky)


_by = click.option("--by", metavar="NAME", help="Who decides.  [default: you, at this machine]")


_reason = click.option("--reason", help="Why, for the record.")
_sticky = click.option("--sticky", is_flag=True, help="For the tool's other calls in this run as well, now and later.")


@approvals.command()
@click.argument("run_id", metavar="RUN")
@click.argument("call_id", metavar="CALL_ID")
@options.as_json
@click.pass_obj
def show(given: dict[str, Any], /, *, run_id: str, call_id: str, as_json: bool) -> None:
    """Everything about a call that waits, or was decided on."""
    with options.reading_client(given) as client:
        client.handle(run_id).status()
        of_run = client.approvals(run_id=run_id, status=None)
    found = [approval for approval in of_run if approval.call_id == call_id]
    if not found:
        raise ApprovalNotPendingError(f"run {run_id} has no call {call_id!r} that waits, or waited, for a person")
    for approval in found:
        if as_json:
            print_json(approval_json(approval))
        else:
            print_fields(approval_json(approval))


@approvals.command()
@click.argument("run_id", metavar="RUN")
@click.argument("call_id", metavar="CALL_ID")
@click.option(
    "--arguments",
    metavar="JSON",
    callback=options.json_object,
    help="A JSON object in the place of the model's arguments; the tool checks it before it runs.",
)
@_reason
@_sticky
@_by
@click.pass_obj
def approve(
    given: dict[str, Any],
    /,
    *,
    run_id: str,
    call_id: str,
    arguments: dict[str, Any] | None,
    reason: str | None,
    sticky: bool,
    by: str | None,
) -> None:
    """Let a waiting call run."""
    with options.reading_client(given) as client:
        _decide(client.handle(run_id), call_id, Approve(arguments, reason, sticky), by)


@approvals.command()
@click.argument("run_id", metavar="RUN")
@click.argument("call_id", metavar="CALL_ID")
@click.option("--result", required=True, metavar="TEXT", help="What the model gets, as if the tool had returned it.")
@_reason
@_by
@click.pass_obj
def respond(
    given: dict[str, Any], /, *, run_id: str, call_id: str, result: str, reason: str | None, by: str | None
) -> None:
    """Answer in the place of a waiting call's tool, which is not run."""
    with options.reading_client(given) as client:
        client.handle(run_id).respond(call_id, result, reason=reason, by=by)
    click.echo(f"answered {call_id} of run {run_id}")


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
@click.option("--result", metavar="TEXT", help="What the model gets, as if the tool had returned it.")
@click.option("--failed", metavar="TEXT", help="What went wrong, where there is no result.")
@_by
@click.pass_obj
def complete(
    given: dict[str, Any], /, *, run_id: str, call_id: str, result: str | None, failed: str | None, by: str | None
) -> None:
    """Give the result of a call that was handed to the outside (it asks for "its result")."""
    if (result is None) == (failed is None):
        raise click.UsageError("say what came back with --result, or what went wrong with --failed")
    with options.reading_client(given) as client:
        handle = client.handle(run_id)
        handle.complete(call_id, result, by=by) if failed is None else handle.fail(call_id, failed, by=by)
    click.echo(f"completed {call_id} of run {run_id}")


@approvals.command()
@click.argument("run_id", metavar="RUN")
@click.argument("call_id", metavar="CALL_ID")
@click.option("--reason", required=True, help="What the model is told.")
@_sticky
@_by
@click.pass_obj
def reject(given: dict[str, Any], /, *, run_id: str, call_id: str, reason: str, sticky: bool, by: str | None) -> None:
    """Do not let a waiting call run; the model sees the reason."""
    with options.reading_client(given) as client:
        _decide(client.handle(run_id), call_id, Reject(reason, sticky), by)
