"""The report: Markdown tables and a picture a work, put between two marks of a page whose rest is written by hand."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

from agentq import __version__
from benchmarks.goals import GOALS
from benchmarks.picture import bars
from benchmarks.place import Place
from benchmarks.results import Results
from benchmarks.works import WORKS, Column, Work

BEGIN, END = "<!-- the last run of make bench: begin -->", "<!-- the last run of make bench: end -->"
# More than this on other things, and a round says little.
BUSY_CORES = 0.2


def machine(place: Place) -> str:
    """Where this ran: versions and size."""
    with place.connect() as server, place.redis.client() as redis:
        row = server.execute("SELECT current_setting('server_version'), current_setting('fsync')").fetchone()
        of_redis = redis.info("server")["redis_version"]
    assert row is not None
    names = ("celery", "psycopg", "sqlalchemy")
    parts = [f"agentq {__version__}", f"Python {platform.python_version()}"]
    parts += [f"{name} {version(name)}" for name in names]
    parts += [f"Postgres {row[0].split()[0]} with its default settings (fsync {row[1]})", f"Redis {of_redis}"]
    memory = round(psutil.virtual_memory().total / 2**30)
    return ", ".join([*parts, f"{os.cpu_count()} cores, {memory} GB"])


def markdown(results: Results, where: str, minutes: float, *, pictures: str = "") -> str:
    """The tables; with ``pictures``, the folder of them as the page says it, also links to them."""
    works = [work for work in WORKS if work.name in results.works()]
    parts = [f"**{datetime.now(UTC):%Y-%m-%d}**, {minutes:.0f} minutes. {where}.", _goals(results)]
    for work in works:
        parts += [f"### {work.title}", work.about, _figures(results, work)]
        if pictures:
            parts.append(f"![{work.picture.title}]({pictures}/{work.name}.svg)")
    return "\n\n".join(parts + _busy(results))


def write(page: Path, text: str, results: Results, folder: Path) -> None:
    """Put the report into the page, in place of the one before, and the pictures into the folder."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    folder.mkdir(exist_ok=True)
    for work in WORKS:
        if work.name in results.works():
            (folder / f"{work.name}.svg").write_text(picture(results, work))


def picture(results: Results, work: Work) -> str:
    """The bars of a work."""
    shown = [
        (f"{case}, {name}" if name else case, value)
        for case in results.cases(work.name)
        for key, name in work.picture.bars
        if (value := results.median(work.name, case, key)) is not None
    ]
    return bars(work.picture.title, work.picture.unit, shown, work.picture.digits)


def _goals(results: Results) -> str:
    rows = []
    for goal in GOALS:
        if goal.work not in results.works():
            continue
        value = goal.value(results)
        found = (
            ("-", "not measured")
            if value is None
            else (f"{value:,.2f}", "met" if goal.is_met(value) else "**not met**")
        )
        rows.append((goal.work, goal.what, goal.wanted, *found))
    return _table(("work", "goal", "wanted", "measured", ""), rows)


def _figures(results: Results, work: Work) -> str:
    cases = results.cases(work.name)
    columns = [column for column in work.columns if any(results.each(work.name, case, column.key) for case in cases)]
    has_runs = any(results.run_ms(work.name, case, 0.99) for case in cases)
    rows = []
    for case in cases:
        cells = [_cell(results.each(work.name, case, column.key), results, work, case, column) for column in columns]
        p99 = results.run_ms(work.name, case, 0.99)
        last = [f"{p99:.1f}" if p99 is not None else ""] if has_runs else []
        rows.append((case, str(len(results.rounds[work.name, case])), *cells, *last))
    header = ["", "rounds", *[column.title for column in columns], *(["p99 ms a run"] if has_runs else [])]
    return _table(header, rows)


def _cell(found: Sequence[float], results: Results, work: Work, case: str, column: Column) -> str:
    middle = results.median(work.name, case, column.key)
    if middle is None:
        return ""
    low, high = (f"{bound:,.{column.digits}f}" for bound in (min(found), max(found)))
    shown = f"{middle:,.{column.digits}f}"
    return shown if low == high else f"{shown} ({low} to {high})"


def _busy(results: Results) -> list[str]:
    rounds = [one.values["others"] for each in results.rounds.values() for one in each if "others" in one.values]
    disturbed = sum(cores > BUSY_CORES for cores in rounds)
    if not disturbed:
        return []
    return [
        f"In {disturbed} of {len(rounds)} measurements something else on the machine used more than {BUSY_CORES:g} "
        f"of a core (at most {max(rounds):.1f}): read the ratios, not the figures, or measure again."
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
