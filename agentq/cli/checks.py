"""What the doctor looks at. A check gives findings and never raises: whatever goes wrong in it is its finding."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import token_hex
from time import monotonic
from typing import Any, Literal

from celery import Celery
from kombu import Exchange, Queue

from agentq import producer
from agentq.agent import AgentSpec
from agentq.cli.options import missing_keys, settings_of
from agentq.cli.output import count
from agentq.cli.program import INFRASTRUCTURE, exit_code
from agentq.cli.stuck import told_of
from agentq.cli.worker import services
from agentq.config import Settings, unknown_variables
from agentq.errors import AgentqError
from agentq.facts import EXAMPLE
from agentq.rabbitmq_queues import knows_priorities
from agentq.registry import load_agents
from agentq.storage import cooldowns, migrate, queries
from agentq.storage.cooldowns import Cooldown
from agentq.storage.database import Database
from agentq.storage.outdated import outdated
from agentq_workers.app import tool_queues

OLDEST_POSTGRES = 15
ROUND_TRIP_SECS = 5.0
# A worker says every 15 s that it is there.
SILENCE_SECS = 20.0


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``fix`` is what to do, a command where there is one; ``code`` is for the exit."""

    status: Literal["OK", "WARN", "FAIL"]
    check: str
    message: str
    fix: str | None = None
    code: int = 0


@dataclass(frozen=True)
class Site:
    """What the checks look at: settings with real URLs, and the agents named here."""

    settings: Settings
    agents: Mapping[str, AgentSpec]
    database: Database
    are_agents_known: bool = True


def examine(given: Mapping[str, Any], *, agents: str | None = None) -> Iterator[Finding]:
    """Every finding, as soon as it is made. What depends on something that failed is left out."""
    with ExitStack() as stack:
        try:
            settings = settings_of(given, agents=agents)
            unknown = [Finding("WARN", "settings", line, "correct or unset it") for line in unknown_variables()]
            yield from unknown or [Finding("OK", "settings", "every variable is understood")]
        except AgentqError as error:
            yield _failed("settings", error)
            return
        known: dict[str, AgentSpec] | None = None
        try:
            known = load_agents(settings.agents)
        except AgentqError as error:
            yield _failed("agents", error)
        for line in missing_keys(known or {}):
            yield Finding("WARN", "keys", line, "set it where the workers run")
        try:
            running = stack.enter_context(services(settings))
            database = Database(str(running.database_url), pool_size=1)
        except AgentqError as error:
            yield _failed("database", error)
            return
        stack.callback(database.dispose)
        yield from _look_around(Site(running, known or {}, database, known is not None))


def _look_around(site: Site) -> Iterator[Finding]:
    database = _guarded("database", _database, site)
    yield from database
    if not _has_failed(database):
        schema = _guarded("schema", _schema, site)
        yield from schema
    broker = _guarded("broker", _broker, site)
    yield from broker
    if not _has_failed(broker):
        yield from _guarded("lease", _lease, site)
    if not _has_failed(database) and not _has_failed(schema):
        if site.are_agents_known:
            yield from _guarded("agents", _agents, site)
        yield from _guarded("queues", _queues, site)
        yield from _guarded("held", _held, site)
        yield from _guarded("limits", _limits, site)
        yield from _guarded("connections", _connections, site)


def _guarded(check: str, look: Callable[[Site], Sequence[Finding]], site: Site) -> Sequence[Finding]:
    try:
        return look(site)
    except Exception as error:
        return [_failed(check, error)]


def _has_failed(findings: Sequence[Finding]) -> bool:
    return any(finding.status == "FAIL" for finding in findings)


def _failed(check: str, error: Exception) -> Finding:
    if not isinstance(error, AgentqError):
        first = (str(error).splitlines() or [""])[0]
        return Finding("FAIL", check, f"{type(error).__name__}: {first}", code=INFRASTRUCTURE)
    # Our messages end with the next step: "what is wrong; what to do".
    what, separator, fix = error.message.rpartition("; ")
    if not separator:
        return Finding("FAIL", check, fix, code=exit_code(error))
    return Finding("FAIL", check, what, fix.removeprefix("run: "), exit_code(error))


def _database(site: Site) -> Sequence[Finding]:
    with site.database.autocommit() as connection:
        version = queries.server(connection).version // 10_000
    where = site.database.shown_url
    if version < OLDEST_POSTGRES:
        fix = f"use Postgres {OLDEST_POSTGRES} or newer"
        return [Finding("FAIL", "database", f"{where} is Postgres {version}", fix, INFRASTRUCTURE)]
    return [Finding("OK", "database", f"Postgres {version} at {where}")]


def _schema(site: Site) -> Sequence[Finding]:
    migrate.check(site.database)
    return [Finding("OK", "schema", f"at {migrate.head()}, which this release needs")]


def _broker(site: Site) -> Sequence[Finding]:
    app = _app(site)
    producer.check_broker(app)
    where = app.connection_for_write().as_uri()
    found = [Finding("OK", "broker", f"{where}: there and back in {_round_trip(app):.0f} ms")]
    return [*found, *_priorities(site, app)]


def _priorities(site: Site, app: Celery) -> list[Finding]:
    """Queues of RabbitMQ that an earlier release declared: they stay as they are."""
    if not producer.is_rabbitmq(str(site.settings.broker_url)):
        return []
    queues = [site.settings.queue, *tool_queues(site.settings, site.agents.values())]
    with app.connection_for_write() as connection:
        without = [queue for queue in queues if not knows_priorities(connection, queue)]
    if not without:
        return []
    message = f"{', '.join(without)}: declared without priorities, so messages are taken in their order"
    fix = "stop workers and producers, rabbitmqctl delete_queue each, start again; workers send what was in them again"
    return [Finding("WARN", "priorities", message, fix)]


def _app(site: Site) -> Celery:
    return producer.make_app(str(site.settings.broker_url), queue=site.settings.queue)


def _round_trip(app: Celery) -> float:
    """Milliseconds for a message to a queue of our own and back."""
    name = f"agentq.doctor.{token_hex(4)}"
    exchange = Exchange(name, durable=False, auto_delete=True)
    queue: Any = Queue(name, exchange, routing_key=name, durable=False, exclusive=True, auto_delete=True)
    with app.connection_for_write() as connection:
        try:
            with connection.SimpleQueue(queue, no_ack=True) as simple:
                started = monotonic()
                simple.put({"doctor": name})
                simple.get(timeout=ROUND_TRIP_SECS)
                return (monotonic() - started) * 1000
        finally:
            queue(connection.default_channel).delete()


def _lease(site: Site) -> Sequence[Finding]:
    lease = site.settings.lease_secs
    with _app(site).connection_for_write() as connection:
        # Only Redis gives a message back after a time, and only where acknowledgements are emulated.
        channel: Any = connection.default_channel
        visibility = channel.visibility_timeout if getattr(channel, "ack_emulation", False) else None
    if visibility is not None and visibility < lease:
        message = f"Redis gives messages back after {visibility:g} s, before a lease of {lease:g} s ends"
        return [Finding("WARN", "lease", message, "a visibility_timeout of 3600 in every app on this broker")]
    message = f"{lease:g} s: a lost worker's step goes on within about {lease + 3:g} s"
    return [Finding("OK", "lease", message)]


def _agents(site: Site) -> Sequence[Finding]:
    with site.database.autocommit() as connection:
        workers = queries.workers(connection)
        ever = queries.known_agents(connection)
    served = {agent for worker in workers for agent in worker.agents}
    lost = sorted(set(site.agents) - served)
    if not site.agents and not ever:
        fix = "agentq worker --agents my_agents.py, or set AGENTQ_AGENTS"
        return [Finding("WARN", "agents", "none is known: no worker ever had one, and AGENTQ_AGENTS names none", fix)]
    if workers and lost:
        return [Finding("WARN", "agents", f"no running worker has {', '.join(lost)}", "restart the workers")]
    told = ", ".join(sorted(served or set(site.agents) | set(ever)))
    others = sorted(set(ever) - served) if served else []
    return [Finding("OK", "agents", told + (f"; no running worker has {', '.join(others)}" if others else ""))]


def _held(site: Site) -> Sequence[Finding]:
    with site.database.autocommit() as connection:
        return [Finding("WARN", "held", *told_of(runs)) for runs in outdated(connection)]


def _limits(site: Site) -> Sequence[Finding]:
    with site.database.autocommit() as connection:
        return [Finding("WARN", "limits", *_told_of(each)) for each in cooldowns.live(connection)]


def _told_of(cooldown: Cooldown) -> tuple[str, str]:
    name = f"{cooldown.provider}:{cooldown.model}, key {cooldown.account}"
    left = f"nobody calls it for {cooldown.left_secs:.0f} s more" if cooldown.left_secs else "calls are let go again"
    message = f"{name}: {cooldown.code} {count(cooldown.refused, 'time')}, {left}, about {cooldown.waiting} in line"
    return message, "none if it is rare; else a higher limit at the provider, fewer workers, or fallback=[…]"


def _queues(site: Site) -> Sequence[Finding]:
    with site.database.autocommit() as connection:
        workers = queries.workers(connection)
    steps, tools = site.settings.queue, tool_queues(site.settings, site.agents.values())
    findings = [_silent(worker) for worker in workers if _silence(worker) > SILENCE_SECS]
    for queue in (steps, *tools):
        consumers = sum(queue in worker.queues for worker in workers if _silence(worker) <= SILENCE_SECS)
        only = "" if queue == steps else " --only tools" + ("" if queue == tools[0] else f" --queues {queue}")
        fix = f"agentq worker{only} --agents {site.settings.agents or EXAMPLE}"
        if consumers:
            findings.append(Finding("OK", "queues", f"{queue}: {count(consumers, 'worker')}"))
        else:
            findings.append(Finding("WARN", "queues", f"{queue}: nobody consumes it, its work waits", fix))
    return findings


def _silence(worker: queries.Worker) -> float:
    return (datetime.now(UTC) - worker.seen_at).total_seconds()


def _silent(worker: queries.Worker) -> Finding:
    message = f"worker {worker.id}: last seen {_silence(worker):.0f} s ago"
    return Finding("WARN", "queues", message, "none if it was killed: it is forgotten soon; else look at its log")


def _connections(site: Site) -> Sequence[Finding]:
    with site.database.autocommit() as connection:
        there = queries.server(connection).connections
        workers = queries.workers(connection)
    settings = site.settings
    # A pool of processes has one for each call at once, and the main one.
    processes = sum(1 if worker.pool == "thread" else 1 + settings.tool_concurrency for worker in workers)
    processes = max(processes, 2 + settings.tool_concurrency)
    expected = processes * settings.db_pool_size
    message = f"{count(processes, 'process', 'processes')} may open {expected} of {there}"
    if expected > there:
        fix = "lower AGENTQ_DB_POOL_SIZE or AGENTQ_TOOL_CONCURRENCY, raise max_connections, or use PgBouncer"
        return [Finding("WARN", "connections", message, fix)]
    return [Finding("OK", "connections", message)]
