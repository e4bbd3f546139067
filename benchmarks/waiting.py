"""``python -m benchmarks.waiting``: what ten thousand threads that wait for a person cost, and how soon one goes on."""

import argparse
import logging
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import psycopg

from agentq.config import Settings
from agentq.storage import migrate
from agentq.storage.database import Database
from benchmarks.drive import percentile
from benchmarks.notes import Notes
from benchmarks.place import Place, place
from benchmarks.report import machine
from benchmarks.waiting_crew import QUEUE, Crew, Idle
from tests.servers import RabbitMQ, running

GOAL_MS = 200.0
# What the sweeps do is jittered; beyond this it is more.
SHARE, BUFFERS = 1.2, 10
# Of a worker and of a client, at most: docs/guide.md. How many of them have been opened is chance.
CONNECTIONS = 15 + 5


@dataclass(frozen=True)
class Found:
    """Everything that was measured; times in milliseconds by broker and by where the tool runs."""

    waiting: int
    secs: float
    idle: Mapping[str, tuple[Idle, Idle]]
    sizes: Mapping[str, tuple[float, float]]
    took: Mapping[tuple[str, str], Sequence[float]]

    def problems(self) -> Iterator[str]:
        """What is not as it is meant to be."""
        for broker, (none, many) in self.idle.items():
            kept = (many.processes, many.queued, many.unacked) == (none.processes, 0, 0)
            if not kept or many.connections > max(none.connections, CONNECTIONS):
                yield f"{broker}: waiting runs hold something: {none}, {many}"
            if many.statements_s > none.statements_s * SHARE or many.sweep_buffers > none.sweep_buffers + BUFFERS:
                yield f"{broker}: the sweeps do more for waiting runs: {none}, {many}"
        for (broker, tool), took in self.took.items():
            if percentile(took, 0.95) > GOAL_MS:
                yield f"{broker}, {tool}: a decided run goes on after {percentile(took, 0.95):.0f} ms (p95)"


def say(text: str) -> None:
    sys.stderr.write(f"waiting: {text}\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waiting", description=__doc__)
    parser.add_argument("--waiting", type=int, default=10_000, help="threads that wait")
    parser.add_argument("--decisions", type=int, default=300, help="of each kind, on each broker")
    parser.add_argument("--idle-secs", type=float, default=20, help="how long nothing is done, four times")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    logging.getLogger("agentq").addHandler(logging.NullHandler())
    with place() as found, found.database() as url, found.fresh_folder() as folder, closing(Notes(folder)) as notes:
        os.environ |= notes.variables()
        database = Database(url)
        migrate.upgrade(database)
        database.dispose()
        with _crews(found, url, folder, notes) as crews:
            measured = measure(crews, options)
        where = machine(found)
    problems = list(measured.problems())
    sys.stdout.write("\n\n".join([where, text(measured), *problems]) + "\n")
    return 1 if problems else 0


@contextmanager
def _crews(found: Place, url: str, folder: Path, notes: Notes) -> Iterator[list[Crew]]:
    """Of Redis, and of RabbitMQ where it is installed."""

    def settings(broker_url: str) -> Settings:
        return Settings(database_url=url, broker_url=broker_url, queue=QUEUE, agents="benchmarks.waiting_agents")

    with ExitStack() as exits:
        crews = [Crew(found, folder, notes, settings(found.redis.url))]
        if shutil.which("rabbitmq-server") or Path("/usr/lib/rabbitmq/bin").exists():
            own = folder / "rabbitmq"
            own.mkdir()
            rabbitmq = exits.enter_context(running(RabbitMQ(own)))
            crews.append(Crew(found, folder, notes, settings(rabbitmq.url), rabbitmq))
        else:
            say("RabbitMQ is not installed, so it is left out")
        yield crews


def measure(crews: Sequence[Crew], options: argparse.Namespace) -> Found:
    """Idle with none, on each broker; then so many that wait; then the same again, and decisions among them."""
    none, many, took = {}, {}, {}
    for crew in crews:
        with crew.at_work():
            _tidy(crew)
            none[crew.broker] = crew.idle(options.idle_secs)
        say(f"{crew.broker}, none waiting: {none[crew.broker]}")
    before = crews[0].sizes()
    with crews[0].at_work() as client:
        began = time.monotonic()
        ids = crews[0].have_waiting(client, options.waiting, prefix="ticket")
        secs = time.monotonic() - began
    _tidy(crews[0])
    after = crews[0].sizes()
    say(f"{len(ids)} wait, after {secs:.0f} s")
    chance = random.Random(1)
    chance.shuffle(ids)
    for crew in crews:
        with crew.at_work() as client:
            many[crew.broker] = crew.idle(options.idle_secs)
            say(f"{crew.broker}, {options.waiting} waiting: {many[crew.broker]}")
            agents = dict(_agents(crew, ids))
            for agent in sorted(set(agents.values())):
                chosen = [run_id for run_id in ids if agents[run_id] == agent][: options.decisions]
                ids = [run_id for run_id in ids if run_id not in set(chosen)]
                took[crew.broker, agent] = crew.decide(client, chosen)
                say(f"{crew.broker}, {agent}: {_times(took[crew.broker, agent])}")
    sizes = {
        name: (
            (after[name][0] - before[name][0]) / options.waiting,
            (after[name][1] - before[name][1]) / options.waiting,
        )
        for name in after
    }
    return Found(options.waiting, secs, {name: (none[name], many[name]) for name in none}, sizes, took)


def _tidy(crew: Crew) -> None:
    """What autovacuum would have done within the minute."""
    with psycopg.connect(str(crew.settings.database_url), autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def _agents(crew: Crew, ids: Sequence[str]) -> Iterator[tuple[str, str]]:
    with psycopg.connect(str(crew.settings.database_url)) as connection:
        yield from connection.execute("SELECT id, agent FROM agentq.runs WHERE id = ANY(%s)", [list(ids)])


def _times(took: Sequence[float]) -> str:
    shown = ", ".join(f"p{share * 100:.0f} {percentile(took, share):.1f}" for share in (0.5, 0.95, 0.99))
    return f"{shown}, max {max(took):.1f} ms ({len(took)})"


def text(found: Found) -> str:
    """The report, in Markdown."""
    lines = [f"{found.waiting:,} threads with a run that waits for a person, brought there in {found.secs:.0f} s.", ""]
    lines += ["| idle | " + " | ".join(each.name for each in fields(Idle)) + " |", "| --- " * 9 + "|"]
    for broker, pair in found.idle.items():
        for label, idle in zip(("none", f"{found.waiting:,}"), pair, strict=True):
            values = [getattr(idle, each.name) for each in fields(Idle)]
            shown = [f"{value:.2f}" if isinstance(value, float) else str(value) for value in values]
            lines.append(f"| {broker}, {label} waiting | {' | '.join(shown)} |")
    lines += ["", "| bytes a waiting run | table | indexes |", "| --- | --- | --- |"]
    lines += [f"| {name} | {table:.0f} | {indexes:.0f} |" for name, (table, indexes) in found.sizes.items() if table]
    whole = sum(table + indexes for table, indexes in found.sizes.values())
    lines += [f"| **all together** | {whole:.0f} | |", ""]
    lines += [f"| decided until its tool has begun, goal {GOAL_MS:.0f} ms (p95) | ms |", "| --- | --- |"]
    lines += [f"| {broker}, {tool} | {_times(took)} |" for (broker, tool), took in found.took.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
