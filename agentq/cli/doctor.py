"""``agentq doctor``: is everything there that runs need, and what to do where it is not."""

import click

from agentq.cli import options, stuck
from agentq.cli.checks import Finding, examine
from agentq.cli.output import print_check, print_json


@click.command()
@options.agents
@click.option("--stuck", "only_stuck", is_flag=True, help="Look for runs that nothing will ever move instead.")
@options.as_json
@click.pass_context
def doctor(ctx: click.Context, /, *, places: str | None, only_stuck: bool, as_json: bool) -> None:
    """Check the installation, one line a check, with the fix.

    Exit code 3 if the database or the broker does not work, 2 if settings, agents or the schema are wrong; with --stuck
    1 if there is a run that has no live lease, no due time and no person it waits for.
    """
    if only_stuck:
        ctx.exit(stuck.report(ctx.obj, as_json=as_json))
    findings: list[Finding] = []
    for finding in examine(ctx.obj, agents=places):
        findings.append(finding)
        if not as_json:
            print_check(finding.status, finding.check, finding.message, finding.fix)
    is_ok = all(finding.status != "FAIL" for finding in findings)
    if as_json:
        print_json({"ok": is_ok, "checks": findings})
    ctx.exit(max((finding.code for finding in findings), default=0))
