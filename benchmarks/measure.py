"""How each work is measured: subject up, warm-up, the stretch that counts, what the notes tell about it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.drive import drive, drive_all
from benchmarks.meters import Cost, Meter, peak_memory, statements
from benchmarks.notes import Note, Notes
from benchmarks.place import Place
from benchmarks.results import Measured
from benchmarks.scripts import SCRIPTS, Script
from benchmarks.subjects import Subject

Make = Callable[[Place, Script, Path, Notes], Subject]
# Runs whose statements are counted: many enough that the sweeps meanwhile weigh little.
COUNTED = 10


@dataclass(frozen=True)
class Load:
    """What a case carries: whose workers, which script, how many runs, how many of them in progress."""

    make: Make
    script: str
    runs: int
    at_once: int = 1
    warm: int = 2

    def names(self, share: float) -> list[str]:
        """Of the runs that count; ``share`` makes a measurement shorter."""
        return [f"run-{number}" for number in range(max(2, round(self.runs * share)))]


@contextmanager
def _warm(place: Place, load: Load) -> Iterator[Subject]:
    """The subject after its first runs, and the server after its checkpoint: neither is part of the figures."""
    with place.fresh_folder() as folder, closing(Notes(folder)) as notes:
        subject = load.make(place, SCRIPTS[load.script], folder, notes)
        with subject.running():
            with place.connect() as server:
                server.execute("CHECKPOINT")
            drive(subject, [f"warm-{number}" for number in range(load.warm)], at_once=load.at_once)
            yield subject


def loop(load: Load, place: Place, share: float) -> Measured:
    """Throughput, latency, and what a run costs."""
    with _warm(place, load) as subject:
        names = load.names(share)
        meter = Meter(place, subject.pids)
        took = drive(subject, names, at_once=load.at_once)
        cost = meter.stop()
        values = _of_cost(cost, len(names), subject.script)
        if load.at_once == 1:
            with statements(place) as counted:
                drive(subject, [f"counted-{number}" for number in range(COUNTED)], at_once=1)
            values |= {"statements": counted.all / COUNTED, "around": counted.around / COUNTED}
    return Measured(values | {"p50": median(took) * 1000}, tuple(took))


def _of_cost(cost: Cost, runs: int, script: Script) -> dict[str, float]:
    return {
        "runs_s": runs / cost.secs,
        "steps_s": runs * script.steps / cost.secs,
        "cpu": cost.cpu / runs * 1000,
        "cpu_app": cost.cpu_app / runs * 1000,
        "cpu_postgres": cost.cpu_postgres / runs * 1000,
        "cpu_redis": cost.cpu_redis / runs * 1000,
        "wal": cost.wal / runs / 1000,
        "images": cost.images / runs / 1000,
        "commits": cost.commits / runs,
        "others": cost.cpu_others / cost.secs,
    }


def growth(load: Load, place: Place, share: float) -> Measured:
    """What each turn costs, from its model call to the next one's."""
    with _warm(place, load) as subject:
        names = load.names(share)
        meter = Meter(place, subject.pids)
        took = drive(subject, names, at_once=1)
        cost = meter.stop()
        content = subject.script.turns * subject.script.result_chars
        turns = _turns(subject.notes.calls())
    return Measured(turns | {"of_content": cost.wal / len(names) / content}, tuple(took))


def _turns(calls: Iterable[Note]) -> dict[str, float]:
    """Medians over the runs: milliseconds and WAL kilobytes of each turn, counted from 1."""
    models: dict[str, list[Note]] = defaultdict(list)
    for call in calls:
        if call.kind == "model" and not call.run.startswith("warm"):
            models[call.run].append(call)
    costs: dict[str, list[float]] = defaultdict(list)
    for of_run in models.values():
        for this, following in pairwise(sorted(of_run, key=lambda call: call.at)):
            turn = int(this.key) + 1
            costs[f"ms_{turn}"].append((following.at - this.at) / 1e6)
            costs[f"wal_{turn}"].append((following.wal - this.wal) / 1e3)
    return {key: median(each) for key, each in costs.items()}


def fan_out(load: Load, place: Place, share: float) -> Measured:
    """From the model's reply to the end of the last call, beside the best that eight lanes can do."""
    with _warm(place, load) as subject:
        took = drive(subject, load.names(share), at_once=1)
        ideal = subject.script.ideal_secs
        spans, most = _spans(subject)
    values = {"tools": median(spans) * 1000, "ideal": ideal * 1000, "stretch": median(spans) / ideal, "most": most}
    return Measured(values | {"p50": median(took) * 1000}, tuple(took))


def _spans(subject: Subject) -> tuple[list[float], int]:
    """The seconds from a run's first model call to its last tool call's end; the most calls at the same time."""
    models: dict[str, list[int]] = defaultdict(list)
    ends: dict[str, list[int]] = defaultdict(list)
    changes: list[tuple[int, int]] = []
    for call in subject.notes.calls():
        run = subject.names.get(call.run, call.run)
        if call.kind == "model":
            models[run].append(call.at)
        else:
            ends[run].append(call.at)
            # A tool notes itself when it is done.
            part = int(call.key.split(".")[1])
            changes += [(call.at, -1), (call.at - int(subject.script.secs_of(part) * 1e9), 1)]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return [(max(ends[run]) - min(models[run])) / 1e9 for run in ends if not run.startswith("warm")], most


def slow_models(load: Load, place: Place, share: float) -> Measured:
    """Until the last of many runs has ended that were all enqueued at once, and the workers' memory meanwhile."""
    with _warm(place, load) as subject:
        names = load.names(share)
        meter = Meter(place, subject.pids)
        with peak_memory(subject.pids) as samples:
            took = drive_all(subject, names)
        cost = meter.stop()
    values = {"makespan": max(took), "first": min(took), "memory": max(samples), "cpu": cost.cpu / len(names) * 1000}
    return Measured(values | {"others": cost.cpu_others / cost.secs}, tuple(took))


def twice(calls: Iterable[Note], kind: str) -> int:
    """Calls of this kind that were made again."""
    made = Counter((call.run, call.key) for call in calls if call.kind == kind)
    return sum(count - 1 for count in made.values())
