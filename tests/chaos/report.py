"""The report of a chaos: Markdown, put between two marks of a page whose rest is written by hand."""

import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

from agentq import __version__
from tests.chaos.audit import Verdict
from tests.chaos.faults import Fault, counts
from tests.chaos.idle import FINISHED, WAITING, Cost
from tests.chaos.load import Asked
from tests.chaos.place import Place
from tests.chaos.recovery import Held, quantile

BEGIN, END = "<!-- the last run of make chaos: begin -->", "<!-- the last run of make chaos: end -->"


@dataclass
class Outcome:
    """Everything a chaos found out."""

    seed: int
    minutes: float
    open_runs: int
    machine: str
    lease_secs: float
    asked: Asked
    verdict: Verdict
    starts: int
    faults: list[Fault]
    recoveries: dict[str, list[Held]]
    problems: list[str]
    tracebacks: Counter[str]
    kills: dict[float, list[Held]] = field(default_factory=dict)
    idle_cost: Cost | None = None
    drain_secs: float = 0.0


def machine(place: Place) -> str:
    """Where this ran: versions and size."""
    ((number,),) = place.server.ask("SELECT current_setting('server_version')")
    with place.broker.client() as client:
        redis = client.info("server")["redis_version"]
    postgres = f"Postgres {number.split()[0]} {'of its own' if place.server.is_ours else 'shared'}"
    parts = [f"agentq {__version__}", f"Python {platform.python_version()}", f"Celery {version('celery')}"]
    memory = round(psutil.virtual_memory().total / 2**30)
    return ", ".join([*parts, postgres, f"Redis {redis}", f"{os.cpu_count()} cores, {memory} GB"])


def write(path: Path, text: str) -> None:
    """Put the report into the page, in place of the one before."""
    page = path.read_text() if path.exists() else f"# Reliability\n\n{BEGIN}\n{END}\n"
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def markdown(outcome: Outcome) -> str:
    """The report."""
    verdict = outcome.verdict
    result = "nothing lost, nothing done twice" if verdict.is_good else "FAILED"
    parts = [
        f"**{datetime.now(UTC):%Y-%m-%d}: {result}.** {outcome.minutes:g} minutes, {outcome.open_runs} open runs at "
        f"any time, two workers a pool, lease {outcome.lease_secs:g} s, seed {outcome.seed}. {outcome.machine}.",
        _table(("", "count"), _totals(outcome)),
        _table(("fault", "times"), sorted(counts(outcome.faults).items())),
        "How long what a lost worker held took to be noticed, and to go on (done, or begun again by another worker); "
        "all faults of the run above overlap, so some of these waited for a database or a broker too. Seconds:",
        _recoveries(outcome.recoveries),
    ]
    if outcome.kills:
        parts += [
            "The same with nothing else going on: 50 runs, `kill -9` of a steps worker and a tools worker at once. "
            "Seconds:",
            _recoveries({f"lease {secs:g} s": held for secs, held in outcome.kills.items()}),
        ]
    if cost := outcome.idle_cost:
        figures = [f"{quantile(ms, share):.2f}" for ms in (cost.in_server, cost.round_trip) for share in (0.5, 0.99)]
        parts.append(
            f"The sweep with nothing to do, {FINISHED:,} finished and {WAITING:,} waiting runs in the table: one query "
            f"a round, p50 {figures[0]} ms and p99 {figures[1]} ms in the server, {figures[2]} and {figures[3]} ms "
            "with the way there and back."
        )
    for title, lines in (
        ("Lost", verdict.lost),
        ("Doubled", verdict.doubled),
        ("Wrong", verdict.wrong),
        ("Faults that could not be made", outcome.problems),
        (
            "Tracebacks in the workers' logs",
            [f"{count} times `{line}`" for line, count in outcome.tracebacks.most_common()],
        ),
    ):
        if lines:
            parts.append(f"{title}:\n\n" + "\n".join(f"- {line}" for line in lines[:50]))
    return "\n\n".join(parts)


def _totals(outcome: Outcome) -> list[tuple[str, object]]:
    verdict, found = outcome.verdict, outcome.verdict.counts
    ended = ", ".join(f"{found[f'runs {status}']} {status}" for status in ("completed", "cancelled", "failed"))
    codes = ", ".join(f"{count} {name[6:]}" for name, count in sorted(found.items()) if name.startswith("calls "))
    return [
        ("**lost** (runs, results, effects)", len(verdict.lost)),
        ("**doubled** effects that are not marked safe", len(verdict.doubled)),
        ("other violations", len(verdict.wrong)),
        ("runs", f"{found['runs']:,} ({ended})"),
        ("… enqueued while the broker was away", outcome.asked.counts["while the broker was away"]),
        ("steps", f"{found['steps']:,}"),
        ("model calls made", f"{found['model calls made']:,}"),
        ("tool calls", f"{found['calls']:,} ({codes})"),
        ("unsafe effects", f"{found['unsafe effects']:,}, each once"),
        (
            "effects that are looked for before they are begun again",
            f"{found['checked effects']:,}: {found['checked effects begun again']} begun again, "
            f"{found['questions']} times a person was asked, "
            f"{found['checked effects twice']} happened again in a process that had been frozen",
        ),
        (
            "safe effects",
            f"{found['safe effects']:,}, repeated {found['safe effects repeated']} times, with the same key",
        ),
        ("worker processes started", outcome.starts),
        ("until the last run had ended, after the last fault", f"{outcome.drain_secs:.0f} s"),
    ]


def _recoveries(kinds: dict[str, list[Held]]) -> str:
    header = ("", "leases", "noticed p50", "p99", "goes on p50", "p99", "max")
    rows = []
    for kind, held in kinds.items():
        noticed = [one.noticed for one in held if one.noticed is not None]
        goes_on = [one.goes_on for one in held if one.goes_on is not None]
        never = f", {len(held) - len(goes_on)} never" if len(goes_on) < len(held) else ""
        figures = [quantile(noticed, 0.5), quantile(noticed, 0.99)]
        figures += [quantile(goes_on, 0.5), quantile(goes_on, 0.99), max(goes_on, default=None)]
        rows.append((kind, f"{len(held)}{never}", *[f"{value:.1f}" if value is not None else "-" for value in figures]))
    return _table(header, rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)
