"""``agentq worker``: everything that carries runs, in one command."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

from agentq import producer
from agentq.agent import AgentSpec
from agentq.cli import options
from agentq.cli.pools import Child, Kind, Lifeline, Pool, environment
from agentq.cli.program import say
from agentq.cli.supervisor import supervise
from agentq.config import Settings
from agentq.errors import ConfigError
from agentq.facts import START_WORKER
from agentq.link import start_embedded, with_embedded
from agentq.registry import load_agents
from agentq.storage import leases, migrate
from agentq.storage.database import Database
from agentq.wire import physical
from agentq_workers.app import tool_queues


@click.command()
@click.option("--only", type=click.Choice(["steps", "tools"]), help="One pool, for machines of its own kind.")
@options.agents
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    envvar="AGENTQ_CONCURRENCY",
    show_envvar=True,
    help="Steps at once (threads).  [default: 16]",
)
@click.option(
    "--tool-concurrency",
    type=click.IntRange(min=1),
    envvar="AGENTQ_TOOL_CONCURRENCY",
    show_envvar=True,
    help="Tool calls at once (processes).  [default: 4]",
)
@click.option("--queues", multiple=True, metavar="NAME", help="Tool queues to serve, instead of all; repeat it.")
@click.pass_context
def worker(
    ctx: click.Context, /, *, only: Kind | None, places: str | None, queues: tuple[str, ...], **numbers: int | None
) -> None:
    """Start the workers: a pool of threads for steps, a pool of processes for tools.

    SIGTERM or Ctrl-C lets work in progress finish; a second one does not. Whatever happens to a worker, its runs go on
    elsewhere.
    """
    if queues and only == "steps":
        raise click.UsageError("--queues is for tools; with --only steps there are none")
    options.warn_of_unknown_variables()
    settings = options.settings_of(ctx.obj, agents=places, **numbers)
    agents = load_agents(settings.agents)
    if not agents:
        raise ConfigError(f"a worker needs agents: {START_WORKER}, or set AGENTQ_AGENTS")
    with services(settings) as running:
        pools = make_pools(running, agents, only=only, queues=queues)
        check(running)
        _know_agents(running, agents)
        for line in options.missing_keys(agents):
            say(line)
        _say_what_runs(running, agents, pools, is_embedded=settings.is_embedded)
        if only and not settings.is_embedded:
            _become(pools[0], running)
        ctx.exit(_run(pools, running))


@contextmanager
def services(settings: Settings) -> Iterator[Settings]:
    """The settings to work with: the embedded services are started, and migrated, where none is configured."""
    if not settings.is_embedded:
        yield settings
        return
    with start_embedded(settings) as started:
        running = with_embedded(settings, started)
        if settings.database_url is None:
            database = Database(str(running.database_url))
            migrate.upgrade(database)
            database.dispose()
        yield running


def make_pools(
    settings: Settings, agents: Mapping[str, AgentSpec], *, only: Kind | None = None, queues: Sequence[str] = ()
) -> list[Pool]:
    """Steps first, then tools; one of them with ``only``."""
    served = tuple(physical(queue, settings.queue) for queue in queues)
    pools = [
        Pool("steps", (settings.queue,), settings.concurrency),
        Pool("tools", served or tuple(tool_queues(settings, agents.values())), settings.tool_concurrency),
    ]
    return [pool for pool in pools if only in (None, pool.kind)]


def check(settings: Settings) -> None:
    """Raises UnavailableError or SchemaOutdatedError: a worker that cannot work must say so, and not only in a log."""
    database = Database(str(settings.database_url))
    migrate.check(database)
    database.dispose()
    producer.check_broker(producer.make_app(str(settings.broker_url), queue=settings.queue))


def _know_agents(settings: Settings, agents: Mapping[str, AgentSpec]) -> None:
    """Before the pools are there, which takes seconds: a run enqueued right after this command is not refused."""
    database = Database(str(settings.database_url))
    with database.autocommit() as connection:
        hearing = [name for name, agent in agents.items() if agent.hears_ends]
        leases.know_agents(connection, sorted(agents), hearing=hearing)
    database.dispose()


def _say_what_runs(
    settings: Settings, agents: Mapping[str, AgentSpec], pools: Sequence[Pool], *, is_embedded: bool
) -> None:
    broker = producer.make_app(str(settings.broker_url)).connection_for_write().as_uri()
    lines = [f"database  {Database(str(settings.database_url)).shown_url}", f"broker    {broker}"]
    if is_embedded:
        lines.append(f"embedded  in {settings.home.resolve()}, for this machine")
    lines += [f"{pool.kind:<10}{pool.concurrency} at once from {', '.join(pool.queues)}" for pool in pools]
    lines.append(f"agents    {', '.join(sorted(agents))}")
    click.echo("\n".join(lines), err=True)


def _become(pool: Pool, settings: Settings) -> None:
    """One pool needs no supervisor of ours: systemd or the container's engine is one."""
    sys.stderr.flush()
    os.execve(sys.executable, pool.command(str(os.getpid()), settings), environment(settings))


def _run(pools: Sequence[Pool], settings: Settings) -> int:
    lifeline = Lifeline()
    try:
        return supervise([Child(pool, str(os.getpid()), settings, lifeline) for pool in pools])
    finally:
        lifeline.close()
