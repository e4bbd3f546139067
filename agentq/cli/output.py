"""What commands print: JSON for programs, tables for people, colour only where somebody looks."""

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click
from pydantic_core import from_json, to_json

from agentq.run import Approval

_STATUS_COLOURS = {
    "completed": "green",
    "failed": "red",
    "cancelled": "red",
    "waiting": "yellow",
    "running": "cyan",
    "OK": "green",
    "WARN": "yellow",
    "FAIL": "red",
}


def print_json(value: Any) -> None:
    """One value, one line."""
    click.echo(to_json(value, fallback=str).decode())


def approval_json(approval: Approval) -> dict[str, Any]:
    """An approval with its arguments as the object they are; as text only where the model sent no JSON."""
    try:
        return asdict(approval) | {"arguments": from_json(approval.arguments)}
    except ValueError:
        return asdict(approval)


def print_fields(fields: Mapping[str, Any]) -> None:
    """A line for each that has a value."""
    for name, value in fields.items():
        if value not in (None, ""):
            shown = local(value) if isinstance(value, datetime) else value
            click.echo(f"{name:<18}{shown if isinstance(shown, str) else to_json(shown).decode()}")


def paint(text: str, colour: str | None = None, **style: Any) -> str:
    """``text`` in colour, unless NO_COLOR is set; click takes colours out where no terminal is."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour, **style)


def paint_status(status: str, text: str | None = None) -> str:
    return paint(text or status, _STATUS_COLOURS.get(status))


def print_check(status: str, check: str, message: str, fix: str | None = None) -> None:
    """What was looked at and how it is, and below it what to do."""
    click.echo(f"{paint_status(status, f'{status:<4}')}  {check:<11} {message}")
    if fix:
        click.echo(f"{'':<18}fix: {fix}")


def print_table(head: Sequence[str], rows: Iterable[Sequence[Any]], *, status: int | None = None) -> None:
    """Columns as wide as they must be; the last one is cut only at the edge of a terminal.

    ``status`` is the column to colour by its word.
    """
    lines = [[_cell(value) for value in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    edge = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for number, line in enumerate(lines):
        cells = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
        cells[-1] = _cut(line[-1], edge and edge - sum(widths[:-1]) - 2 * len(widths[:-1]))
        if number == 0:
            cells = [paint(cell, bold=True) for cell in cells]
        elif status is not None:
            cells[status] = paint_status(line[status], cells[status])
        click.echo("  ".join(cells).rstrip())


def _cell(value: Any) -> str:
    return "-" if value is None or value == "" else " ".join(str(value).split())


def _cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: max(width - 1, 8)] + "…"


def age(since: datetime) -> str:
    """How long ago, in its largest unit."""
    seconds = max((datetime.now(UTC) - since).total_seconds(), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def count(number: int, one: str, many: str | None = None) -> str:
    """A number and its noun: ``1 worker``, ``2 workers``."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
