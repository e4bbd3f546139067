"""What was measured, round by round, and the medians and ratios of it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from benchmarks.drive import percentile

Values = Mapping[str, float]


@dataclass(frozen=True)
class Measured:
    """One case in one round: figures by name, and the seconds of each run where those count."""

    values: Values
    run_secs: tuple[float, ...] = ()


@dataclass
class Results:
    """By work and case, in the order of the rounds."""

    rounds: dict[tuple[str, str], list[Measured]] = field(default_factory=lambda: defaultdict(list))

    def add(self, work: str, case: str, measured: Measured) -> None:
        self.rounds[work, case].append(measured)

    def each(self, work: str, case: str, key: str) -> list[float]:
        """A figure in all rounds that have it."""
        return [one.values[key] for one in self.rounds.get((work, case), ()) if key in one.values]

    def median(self, work: str, case: str, key: str) -> float | None:
        found = self.each(work, case, key)
        return median(found) if found else None

    def ratio(self, work: str, case: str, key: str, *, to: str) -> float | None:
        """The median of one case's figure over another's of the same round, so that both had the same machine."""
        pairs = list(zip(self.each(work, case, key), self.each(work, to, key), strict=False))
        return median(one / other for one, other in pairs) if pairs else None

    def run_ms(self, work: str, case: str, share: float) -> float | None:
        """A percentile of the runs of all rounds."""
        secs = [each for one in self.rounds.get((work, case), ()) for each in one.run_secs]
        return percentile(secs, share) * 1000 if secs else None

    def works(self) -> Iterator[str]:
        yield from dict.fromkeys(work for work, _ in self.rounds)

    def cases(self, work: str) -> list[str]:
        return [case for found, case in self.rounds if found == work]
