"""The crash matrix: where a process can die and of what, what is impossible and why, and what each death may cost."""

from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

from tests.crash.death import Death, Kind

Point = Literal["claimed", "effect", "committed", "announced", "body"]
POINTS: tuple[Point, ...] = get_args(Point)
KINDS: tuple[Kind, ...] = get_args(Kind)
# These take everything that goes on in the worker with them.
WHOLE_WORKER: tuple[Kind, ...] = ("kill_worker", "stop")
LANES = 8


@dataclass(frozen=True)
class Place:
    """A part of a run of ``agent``: what the probe calls it, which of its times there is meant, and in which pool.

    ``is_tool`` where a call is run; one that is inline has begun when the step before it is committed.
    """

    agent: str
    what: str
    hits: tuple[int, ...] = (1,)
    pool: Literal["threads", "prefork"] = "threads"
    is_tool: bool = False


PHASES = {
    "recall": Place("one", "recall"),
    "model": Place("one", "model"),
    "review": Place("gated", "review"),
    # A single call is run by the tools step itself; of many, the first two to end have their lanes' next call sent.
    "tools": Place("one", "tools", pool="prefork", is_tool=True),
    "inline": Place("quick", "tools", is_tool=True),
    "batch": Place("many", "tools"),
    "call": Place("many", "call", pool="prefork", is_tool=True),
    "lanes": Place("many", "call", (1, 2), pool="prefork", is_tool=True),
    "child": Place("boss", "model", (2,)),
    "answer": Place("boss", "answer"),
    "end": Place("one", "model", (2,)),
}


@dataclass(frozen=True)
class Cell:
    """One death: at a point of a phase, of a kind; ``safe`` where its tool may be repeated."""

    phase: str
    point: Point
    kind: Kind
    safe: bool = False

    def __str__(self) -> str:
        return "-".join([self.phase, self.point, self.kind, *(["safe"] if self.safe else [])])

    @property
    def place(self) -> Place:
        return PHASES[self.phase]

    @property
    def agent(self) -> str:
        return self.place.agent + ("_safe" if self.safe else "")

    @property
    def death(self) -> Death:
        return Death(self.kind, self.point, self.place.what, self.place.hits)

    @property
    def is_tool(self) -> bool:
        return self.place.is_tool

    @property
    def in_progress(self) -> int:
        """How many calls of a tool were claimed and not committed by those that die themselves."""
        return len(self.death.hits) if self.is_tool and self.point in ("claimed", "effect") else 0

    @property
    def bystanders(self) -> int:
        """How many more calls may have been in progress, because the whole worker dies."""
        is_fan = self.place.what == "call" and self.point != "body"
        return LANES - 1 if is_fan and self.kind in WHOLE_WORKER else 0

    @property
    def taken_on(self) -> int:
        """How many more calls a lane may have claimed with the commit that came before its death."""
        return len(self.death.hits) if self.place.what == "call" and self.point in ("committed", "announced") else 0

    @property
    def repeated_model_calls(self) -> int:
        """A reply that was not saved is asked for again; one who was frozen before he asked does so when he wakes."""
        is_lost = self.point == "effect" or (self.point == "claimed" and self.kind == "stop")
        return int(self.place.what == "model" and is_lost)


def impossible(phase: str, point: str, kind: Kind | None = None) -> str | None:
    """Why there is no such cell; None where there is one."""
    if point == "body" and phase != "call":
        return "only the call whose commit was the last of its batch sends the chord's body, and only one is the last"
    if phase == "answer" and point in ("claimed", "effect"):
        return "a sub-agent's answer is a commit and no more: it holds no lease and has no effect"
    if kind == "kill_child" and PHASES[phase].pool == "threads":
        return "a threads pool has no children: see exit and kill_worker"
    if phase == "lanes" and kind in WHOLE_WORKER:
        return "the first death takes the other lanes with it: see call"
    return None


def safe_too(phase: str) -> tuple[bool, ...]:
    """Whether a tool may be repeated makes a difference where one is run."""
    return (False, True) if PHASES[phase].is_tool else (False,)


CELLS = [
    Cell(phase, point, kind, safe)
    for phase, point, kind in product(PHASES, POINTS, KINDS)
    if impossible(phase, point, kind) is None
    for safe in safe_too(phase)
]

# Run with every test run: each phase, each point and each death at least once.
COVERING = [
    Cell("recall", "effect", "exit"),
    Cell("model", "effect", "stop"),
    Cell("tools", "claimed", "kill_worker"),
    Cell("review", "committed", "exception"),
    Cell("batch", "announced", "exception"),
    Cell("child", "claimed", "exception"),
    Cell("call", "body", "kill_child"),
    Cell("lanes", "effect", "exit", safe=True),
    Cell("end", "announced", "stop"),
    Cell("answer", "committed", "kill_worker"),
    Cell("inline", "claimed", "exit"),
]
