"""What agentq is meant to reach, and whether it did: ratios of one interleaved run, and a few plain bounds."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.modes import MODES
from benchmarks.results import Results
from benchmarks.works import HOPS_AND_COMMITS, ONE, PLAIN, agentq

LEASE_SECS = 15.0


@dataclass(frozen=True)
class Goal:
    """``value`` is None where that was not measured."""

    work: str
    what: str
    value: Callable[[Results], float | None]
    bound: float
    is_limit: bool = True
    digits: int = 2

    def is_met(self, value: float) -> bool:
        return value <= self.bound if self.is_limit else value >= self.bound

    @property
    def wanted(self) -> str:
        return f"{'≤' if self.is_limit else '≥'} {self.bound:,.{self.digits}f}"


def _ratio(work: str, case: str, key: str, to: str) -> Callable[[Results], float | None]:
    return lambda results: results.ratio(work, case, key, to=to)


def _median(work: str, case: str, key: str) -> Callable[[Results], float | None]:
    return lambda results: results.median(work, case, key)


def _most(work: str, case: str, key: str) -> Callable[[Results], float | None]:
    return lambda results: max(results.each(work, case, key), default=None)


def _growth(case: str, key: str) -> Callable[[Results], float | None]:
    def grown(results: Results) -> float | None:
        late, early = results.median("w2", case, f"{key}_25"), results.median("w2", case, f"{key}_2")
        return late / early if late is not None and early else None

    return grown


LOCAL, BROKER, DEFAULT = agentq("local"), agentq("broker"), agentq(MODES[0])
GOALS = [
    Goal(
        "w1", "broker: steps/s, of Celery hops + commits", _ratio("w1", BROKER, "steps_s", HOPS_AND_COMMITS), 0.9, False
    ),
    Goal("w1", "local: steps/s, of plain commits", _ratio("w1", LOCAL, "steps_s", PLAIN), 0.4, False),
    Goal("w1", "one at a time: p50 of a run, of plain commits", _ratio("w1", DEFAULT + ONE, "p50", PLAIN + ONE), 2.5),
    Goal("w1", "WAL kB a run", _median("w1", DEFAULT + ONE, "wal"), 12, digits=0),
    Goal("w1", "local: commits a run", _median("w1", LOCAL + ONE, "commits"), 24, digits=0),
    Goal("w1", "broker: commits a run", _median("w1", BROKER + ONE, "commits"), 46, digits=0),
    Goal("w2", "time of turn 25, of turn 2", _growth(DEFAULT, "ms"), 1.1),
    Goal("w2", "WAL of turn 25, of turn 2", _growth(DEFAULT, "wal"), 1.1),
    Goal("w2", "WAL, of the content", _median("w2", DEFAULT, "of_content"), 1.1),
    Goal("w3", "even calls, of the ideal", _median("w3", "agentq, even", "stretch"), 1.15),
    Goal("w3", "skewed calls, of the ideal", _median("w3", "agentq, skewed", "stretch"), 1.15),
    Goal("w4", "500 calls of 2 s, seconds", _median("w4", "agentq", "makespan"), 2.5),
    Goal("w4", "memory of the workers, MB", _median("w4", "agentq", "memory"), 300, digits=0),
    Goal("w5", "seconds from the kill to the last end", _most("w5", DEFAULT, "recovery"), LEASE_SECS + 5, digits=0),
    Goal("w5", "unsafe effects twice", _most("w5", DEFAULT, "twice_unsafe"), 0, digits=0),
    Goal("w5", "runs lost", _most("w5", DEFAULT, "lost"), 0, digits=0),
    Goal(
        "enqueue",
        "one, of INSERT … RETURNING",
        _ratio("enqueue", "enqueue", "per_sec", "INSERT … RETURNING"),
        0.5,
        False,
    ),
    Goal("enqueue", "in bulk, runs/s", _median("enqueue", "enqueue_many", "per_sec"), 20_000, False, digits=0),
    Goal("start", "first model call, seconds", _median("start", "agentq worker", "steps"), 2),
    Goal("start", "first tool call, seconds", _median("start", "agentq worker", "tools"), 2),
    Goal("start", "import agentq with its names, seconds", _median("start", "import agentq", "names"), 0.3),
    Goal("start", "import agentq brings Celery", _most("start", "import agentq", "celery"), 0, digits=0),
]
