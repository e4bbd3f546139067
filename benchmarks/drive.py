"""Submit runs, keep so many in progress, and take the time of each from the machine's own clock."""

import time
from collections.abc import Iterable, Sequence
from itertools import islice

from benchmarks.subjects import Subject

# No run of any script takes as long, the machine being busy included.
PATIENCE_SECS = 60.0


def drive(subject: Subject, names: Sequence[str], *, at_once: int) -> list[float]:
    """The seconds that each run took from before its submit until its end was committed."""
    began: dict[str, int] = {}
    took: list[float] = []
    waiting = iter(names)
    for name in islice(waiting, at_once):
        _submit(subject, name, began)
    while len(took) < len(names):
        run, ended = _next_end(subject)
        took.append((ended - began[run]) / 1e9)
        if name := next(waiting, ""):
            _submit(subject, name, began)
    return took


def drive_all(subject: Subject, names: Sequence[str]) -> list[float]:
    """All of them at once: the seconds from before the first submit until each one's end."""
    began = time.monotonic_ns()
    subject.submit_all(names)
    return [(ended - began) / 1e9 for _, ended in _ends(subject, len(names))]


def _submit(subject: Subject, name: str, began: dict[str, int]) -> None:
    began[name] = time.monotonic_ns()
    subject.submit(name)


def _ends(subject: Subject, count: int) -> Iterable[tuple[str, int]]:
    for _ in range(count):
        yield _next_end(subject)


def _next_end(subject: Subject) -> tuple[str, int]:
    """The name of the run that ended next, and when. Raises RuntimeError if it did not end well."""
    status, run, ended = subject.notes.next(within=PATIENCE_SECS)
    name = subject.names.get(run, run)
    if status != "completed":
        raise RuntimeError(f"{type(subject).__name__}: run {name} ended as {status}")
    return name, ended


def percentile(values: Iterable[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
