"""``agentq doctor --stuck``: the runs that nothing will ever move, and those whose worker is not there."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agentq.cli import options
from agentq.cli.output import age, count, local, print_check, print_json
from agentq.cli.program import FAILED
from agentq.storage import outdated, stuck
from agentq.storage.outdated import Outdated
from agentq.storage.stuck import Later, Overdue, Stuck
from agentq.why import PROBLEMS


def report(given: Mapping[str, Any], *, as_json: bool) -> int:
    """Print what was found and return the exit code."""
    with options.reading_client(given) as client, client.database.autocommit() as connection:
        lost = stuck.stuck(connection)
        overdue = stuck.overdue(connection, prefix=client.settings.queue)
        later = stuck.later(connection)
        changed = outdated.outdated(connection)
    if as_json:
        found = [asdict(run) | {"message": PROBLEMS[run.problem]} for run in lost]
        waiting = {"waiting_for_a_worker": [asdict(runs) for runs in overdue], "waiting": asdict(later)}
        waiting |= {"agent_changed": [asdict(runs) for runs in changed]}
        print_json({"ok": not lost, "stuck": found} | waiting)
    else:
        for run in lost:
            _print_stuck(run)
        for runs in overdue:
            _print_overdue(runs)
        for each in changed:
            print_check("WARN", "held", *told_of(each))
        _print_later(later)
        if not lost:
            promise = "every open run has a live lease, a due time, a turn it waits for, or a person"
            print_check("OK", "stuck", promise)
    return FAILED if lost else 0


def _print_later(found: Later) -> None:
    if found.first_at is not None:
        print_check("OK", "later", f"{count(found.later, 'run')} for later, the first due at {local(found.first_at)}")
    if found.in_line:
        message = f"{count(found.in_line, 'run')} in the line of {count(found.keys, 'concurrency key')}"
        print_check("OK", "in line", message)
    if found.held:
        print_check("OK", "held", f"{count(found.held, 'run')} waiting for their turn on their threads")


def told_of(runs: Outdated) -> tuple[str, str]:
    """What there is to say of runs that are held because their agent has changed, and what to do."""
    versions = f"began with version {runs.agent_version}, the code is {runs.outdated_by}"
    others = "; workers with the old code are alive, and go on with them" if runs.has_worker else ""
    message = f"{count(runs.runs, 'run')} of {runs.agent} since {age(runs.since)}: its agent has changed, {versions}"
    fix = f"agentq runs adopt --agent {runs.agent}, or start a worker with the old code; see: agentq why {runs.oldest}"
    return f"{message}{others}", fix


def _print_stuck(run: Stuck) -> None:
    cancel = f"; agentq runs cancel {run.run_id} ends it" if run.can_cancel else ""
    message = f"{run.run_id} ({run.agent}, {run.status}) since {age(run.since)}: {PROBLEMS[run.problem]}"
    print_check("FAIL", "stuck", message, f"report what this says: agentq why {run.run_id}{cancel}")


def _print_overdue(runs: Overdue) -> None:
    waits = f"{count(runs.runs, 'run')} of {runs.agent} since {age(runs.since)}: waits for {runs.gap.what}"
    print_check("WARN", "no worker", waits, f"{runs.gap.fix}; see: agentq why {runs.oldest}")
