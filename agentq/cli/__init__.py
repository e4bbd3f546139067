"""The command line. Commands live in modules of their own, which are imported when they are used."""

import logging
from typing import Any

import click

from agentq import __version__
from agentq.cli.program import Lazy, Program

__all__ = ["main"]

COMMANDS = {
    "demo": Lazy("agentq.cli.demo:demo", "Show runs that survive a kill -9; needs nothing, not even a key."),
    "worker": Lazy("agentq.cli.worker:worker", "Start the workers: one pool for steps, one for tools."),
    "run": Lazy("agentq.cli.run:run", "Run an agent and print its answer."),
    "runs": Lazy("agentq.cli.runs:runs", "List, show, retry, adopt and cancel runs."),
    "why": Lazy("agentq.cli.why:why", "Say what a run waits for, and what would move it."),
    "approvals": Lazy("agentq.cli.approvals:approvals", "Decide on calls that wait for a person."),
    "threads": Lazy("agentq.cli.threads:threads", "Show, cut, copy and delete conversations."),
    "purge": Lazy("agentq.cli.purge:purge", "Delete what ended long ago."),
    "check-inflight": Lazy("agentq.cli.inflight:check_inflight", "Find open runs that new code could not go on with."),
    "db": Lazy("agentq.cli.db:db", "Bring the database's schema up to date."),
    "doctor": Lazy("agentq.cli.doctor:doctor", "Check the installation and say how to fix it."),
}

EPILOG = """\b
Exit codes: 0 ok, 1 the run failed, 2 wrong usage or settings, 3 database or
broker unreachable, 4 waits for a person, 5 not found, 124 timeout passed,
130 interrupted."""


@click.group(cls=Program, commands={}, lazy=COMMANDS, epilog=EPILOG, context_settings={"max_content_width": 100})
@click.version_option(__version__, prog_name="agentq")
@click.option("--database-url", envvar="AGENTQ_DATABASE_URL", show_envvar=True, help="Postgres; else embedded.")
@click.option("--broker-url", envvar="AGENTQ_BROKER_URL", show_envvar=True, help="Redis or RabbitMQ; else embedded.")
@click.option("--home", envvar="AGENTQ_HOME", show_envvar=True, help="Where the embedded ones live: .agentq")
@click.pass_context
def main(ctx: click.Context, /, **settings: Any) -> None:
    """Durable LLM-agent runs on Celery and Postgres."""
    logging.basicConfig(level=logging.WARNING, format="agentq: %(message)s")
    ctx.obj = settings
