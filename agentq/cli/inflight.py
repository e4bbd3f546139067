"""``agentq check-inflight``: which open runs this code could not go on with; for CI, before a deploy."""

from dataclasses import asdict

import click

from agentq.cli import options
from agentq.cli.output import count, print_check, print_json
from agentq.cli.program import FAILED
from agentq.errors import ConfigError
from agentq.inflight import Affected, Report
from agentq.registry import load_agents, unknown
from agentq.storage import queries
from agentq.storage.inflight import open_runs


@click.command()
@options.agents
@click.option("--agent", "names", multiple=True, metavar="NAME", help="Only runs of this agent; repeat it for more.")
@click.option("--show", type=click.IntRange(0), default=10, show_default=True, help="So many runs of each problem.")
@options.as_json
@click.pass_context
def check_inflight(
    ctx: click.Context, /, *, places: str | None, names: tuple[str, ...], show: int, as_json: bool
) -> None:
    """Look for open runs that the agents named here could not go on with; needs the database only.

    That is: their agent is not here, or has changed and holds or fails them, a tool that a call of theirs waits for is
    not there any more, or does not take the stored arguments. Exit code 1 if there is one. Where other projects share
    the database, name your own agents with --agent: those that you have taken away, too.
    """
    agents = load_agents(options.settings_of(ctx.obj, agents=places).agents)
    if not agents:
        raise ConfigError("name the agents of the new code: agentq check-inflight --agents my_agents.py")
    report = Report(shown=show)
    with options.reading_client(ctx.obj) as client, client.database.transaction() as connection:
        known = agents.keys() | queries.known_agents(connection) if names else set()
        for name in names:
            if name not in known:
                raise unknown(name, known)
        for run in open_runs(connection):
            if not names or run.agent in names:
                report.add(run, agents)
    if as_json:
        found = [asdict(each.problem) | {"runs": each.runs, "run_ids": each.run_ids} for each in report.worst_first]
        told = {"ok": not found, "open": report.looked_at, "affected": report.affected, "found": found}
        print_json(told)
    else:
        _print(report)
    ctx.exit(FAILED if report.found else 0)


def _print(report: Report) -> None:
    open_ones = count(report.looked_at, "open run")
    if not report.found:
        print_check("OK", "in flight", f"{open_ones}: this code can go on with all of them")
        return
    for each in report.worst_first:
        print_check("FAIL", each.problem.reason, f"{count(each.runs, 'run')}: {each.problem.message}", each.problem.fix)
        if each.run_ids:
            click.echo(f"{'':<18}{_ids(each)}")
    click.echo(f"{report.affected} of {open_ones} would not go on with this code")


def _ids(affected: Affected) -> str:
    more = affected.runs - len(affected.run_ids)
    return " ".join(affected.run_ids) + (f" and {more} more" if more else "")
