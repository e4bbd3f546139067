"""A scenario: who kills its worker when, and what is done and promised; all of them by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.scenarios.scene import Scene

SCENARIOS: "dict[str, Scenario]" = {}
# Seconds that a kill comes after its moment: within what goes on there, or among the commit and the message after it.
WITHIN, AFTER, CLAIMED = 0.07, 0.012, 0.03
# What only the producer knows of; whoever takes the run up then is killed.
TOLD = ("enqueued", "decided")


@dataclass(frozen=True)
class Moment:
    """The ``nth`` time that ``point`` is come to (or left, with ``end``) in this scenario, and so many seconds more."""

    point: str
    nth: int
    end: bool
    delay: float

    def __str__(self) -> str:
        word = "after" if self.end else "at" if self.point in TOLD else "in"
        return f"{word} {self.point} {self.nth}, {self.delay * 1000:.0f} ms later"

    @property
    def is_told(self) -> bool:
        return self.point in TOLD


@dataclass(frozen=True)
class Scenario:
    """``kills`` maps points to how often they surely come; "in tool" and "after tool" are the halves of "tool"."""

    name: str
    act: "Callable[[Scene], None]"
    kills: Mapping[str, int]

    def moment(self, chance: Random) -> Moment:
        """One of the moments in which a worker may be killed; each point is as likely as another."""
        point = chance.choice(sorted(self.kills))
        nth = chance.randint(1, self.kills[point])
        half, _, name = point.rpartition(" ")
        if name in TOLD:
            return Moment(name, nth, False, chance.uniform(0, CLAIMED))
        end = half == "after" if half else chance.random() < 0.3
        return Moment(name, nth, end, chance.uniform(0, AFTER if end else WITHIN))


def scenario(**kills: int) -> "Callable[[Callable[[Scene], None]], Callable[[Scene], None]]":
    """Register a function as a scenario of its name; keywords such as ``in_tool=2`` are ``kills``."""

    def register(act: "Callable[[Scene], None]") -> "Callable[[Scene], None]":
        known = {point.replace("_", " "): times for point, times in kills.items()}
        assert act.__name__ not in SCENARIOS, act.__name__
        SCENARIOS[act.__name__] = Scenario(act.__name__, act, known)
        return act

    return register
