"""``agentq doctor``: is everything there that runs need, and what to do where it is not."""

import click

from agentq.cli import options
from agentq.cli.checks import Finding, examine
from agentq.cli.output import paint_status, print_json


@click.command()
@options.agents
@options.as_json
@click.pass_context
def doctor(ctx: click.Context, /, *, places: str | None, as_json: bool) -> None:
    """Check the installation, one line a check, with the fix.

    Exit code 3 if the database or the broker does not work, 2 if settings, agents or the schema are wrong.
    """
    findings: list[Finding] = []
    for finding in examine(ctx.obj, agents=places):
        findings.append(finding)
        if not as_json:
            _print(finding)
    is_ok = all(finding.status != "FAIL" for finding in findings)
    if as_json:
        print_json({"ok": is_ok, "checks": findings})
    ctx.exit(max((finding.code for finding in findings), default=0))


def _print(finding: Finding) -> None:
    click.echo(f"{paint_status(finding.status, f'{finding.status:<4}')}  {finding.check:<11} {finding.message}")
    if finding.fix:
        click.echo(f"{'':<18}fix: {finding.fix}")
