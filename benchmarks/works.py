"""The works: which cases each has, beside which lines, and what its table and its picture show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks import crash, edges, measure
from benchmarks.measure import Load, Make
from benchmarks.modes import MODES, Mode
from benchmarks.place import Place
from benchmarks.results import Measured
from benchmarks.subjects import Agentq, Hops, Plain, Pools

PLAIN, HOPS, HOPS_AND_COMMITS, IDEAL = "plain commits", "Celery hops", "Celery hops + commits", "ideal"
ONE = ", one at a time"


@dataclass(frozen=True)
class Case:
    """One line of a work's table: ``measure`` does it once; its second argument makes it shorter."""

    label: str
    measure: Callable[[Place, float], Measured]


@dataclass(frozen=True)
class Column:
    """A figure of the table."""

    title: str
    key: str
    digits: int = 0


@dataclass(frozen=True)
class Picture:
    """Bars of one figure, one a case; several figures make several bars a case."""

    title: str
    unit: str
    bars: Sequence[tuple[str, str]]
    digits: int = 0


@dataclass(frozen=True)
class Work:
    """``rounds`` is how often it is measured at most."""

    name: str
    title: str
    about: str
    cases: Sequence[Case]
    columns: Sequence[Column]
    picture: Picture
    rounds: int = 5


def agentq(mode: Mode) -> str:
    """The label of agentq in a mode."""
    return f"agentq, {mode}"


def _pools(mode: Mode, of_broker: Pools, of_local: Pools) -> Pools:
    return of_local if mode == "local" else of_broker


def _loop_cases() -> list[Case]:
    single, many = Pools(threads=4, children=1), Pools(threads=8, children=4)
    # Without messages and tool processes, two processes of steps use both cores.
    local_single, local_many = Pools(threads=4, tools=0), Pools(steps=2, threads=8, tools=0)
    one: dict[str, Make] = {
        PLAIN: partial(Plain, programs=1, connections=1),
        HOPS: partial(Hops, pools=single),
        HOPS_AND_COMMITS: partial(Hops, pools=single, commits=True),
        **{agentq(mode): partial(Agentq, pools=_pools(mode, single, local_single), mode=mode) for mode in MODES},
    }
    best: dict[str, Make] = {
        PLAIN: partial(Plain, programs=2, connections=16),
        HOPS: partial(Hops, pools=many),
        HOPS_AND_COMMITS: partial(Hops, pools=many, commits=True),
        **{agentq(mode): partial(Agentq, pools=_pools(mode, many, local_many), mode=mode) for mode in MODES},
    }
    fast = {label: Load(make, "loop", runs=60 if label == PLAIN else 20) for label, make in one.items()}
    busy = {
        label: Load(make, "loop", runs=400 if label == PLAIN else 96, at_once=16, warm=32)
        for label, make in best.items()
    }
    cases = [Case(label + ONE, partial(measure.loop, load)) for label, load in fast.items()]
    return cases + [Case(label, partial(measure.loop, load)) for label, load in busy.items()]


def _growth_cases() -> list[Case]:
    broker, local = Pools(threads=4, children=1), Pools(threads=4, tools=0)
    makes: dict[str, Make] = {
        PLAIN: partial(Plain, programs=1, connections=1),
        **{agentq(mode): partial(Agentq, pools=_pools(mode, broker, local), mode=mode) for mode in MODES},
    }
    return [Case(label, partial(measure.growth, Load(make, "growth", runs=4, warm=1))) for label, make in makes.items()]


def _fan_out_cases() -> list[Case]:
    makes: dict[str, Make] = {
        PLAIN: partial(Plain, programs=1, connections=8),
        "agentq": partial(Agentq, pools=Pools(threads=8, children=8), mode=MODES[0]),
    }
    return [
        Case(f"{label}, {script}", partial(measure.fan_out, Load(make, script, runs=4)))
        for script in ("even", "skewed")
        for label, make in makes.items()
    ]


def _slow_cases() -> list[Case]:
    pools = Pools(steps=2, threads=250, tools=0)
    makes: dict[str, Make] = {
        PLAIN: partial(Plain, programs=1, connections=16),
        HOPS_AND_COMMITS: partial(Hops, pools=pools, commits=True),
        "agentq": partial(Agentq, pools=pools, mode=MODES[0]),
    }
    return [
        Case(label, partial(measure.slow_models, Load(make, "slow", runs=500, at_once=64, warm=64)))
        for label, make in makes.items()
    ]


def _enqueue_cases() -> list[Case]:
    return [
        Case("INSERT … RETURNING", edges.plain_inserts),
        Case("enqueue", edges.enqueues),
        Case("enqueue_many", edges.bulk),
    ]


_CPU = [
    Column("CPU ms a run", "cpu"),
    Column("of it app", "cpu_app"),
    Column("Postgres", "cpu_postgres"),
    Column("Redis", "cpu_redis"),
]
WORKS = [
    Work(
        "w1",
        "W1: the loop",
        "Ten turns with one tool call each, then the answer: 11 model calls, 10 tool calls, none takes time. "
        f'"{ONE[2:]}" is one run in progress, else there are 16.',
        _loop_cases(),
        [
            Column("runs/s", "runs_s", 1),
            Column("steps/s", "steps_s"),
            Column("p50 ms", "p50", 1),
            *_CPU,
            Column("WAL kB a run", "wal", 1),
            Column("of it page images", "images", 1),
            Column("commits a run", "commits", 1),
            Column("statements a run", "statements", 1),
            Column("of them BEGIN, COMMIT", "around", 1),
        ],
        Picture("W1: steps a second", "steps/s", [("steps_s", "")]),
    ),
    Work(
        "w2",
        "W2: growth",
        "25 turns with a result of 20,000 characters each, one run at a time: does a turn cost more the more there is?",
        _growth_cases(),
        [
            *[Column(f"ms turn {turn}", f"ms_{turn}", 1) for turn in (2, 10, 25)],
            *[Column(f"WAL kB turn {turn}", f"wal_{turn}", 1) for turn in (2, 10, 25)],
            Column("WAL / content", "of_content", 2),
        ],
        Picture("W2: what a turn costs", "ms", [(f"ms_{turn}", f"turn {turn}") for turn in (2, 10, 25)], 1),
        rounds=3,
    ),
    Work(
        "w3",
        "W3: fan-out",
        "One turn with 32 calls, eight at once, in a pool of eight processes: all of 100 ms, or four of 400 ms among "
        "shorter ones of 50 ms.",
        _fan_out_cases(),
        [
            Column("ideal ms", "ideal"),
            Column("last call done, ms", "tools"),
            Column("x ideal", "stretch", 2),
            Column("whole run p50 ms", "p50"),
            Column("most at once", "most"),
        ],
        Picture("W3: until the last of 32 calls is done", "ms", [("ideal", IDEAL), ("tools", "measured")]),
        rounds=3,
    ),
    Work(
        "w4",
        "W4: slow models",
        "500 runs enqueued at once, each one model call of 2 s, two worker processes of 250 threads (plain: one "
        "process). Memory is the sum of the PSS of all worker processes: a page that n of them share counts an "
        "n-th for each.",
        _slow_cases(),
        [
            Column("all done, s", "makespan", 2),
            Column("first done, s", "first", 2),
            Column("memory MB", "memory"),
            Column("CPU ms a run", "cpu", 1),
        ],
        Picture("W4: 500 model calls of 2 s", "s", [("makespan", "")], 2),
        rounds=3,
    ),
    Work(
        "w5",
        "W5: recovery",
        "50 runs of ten turns with model calls of 50 ms and a tool that is not safe to repeat; half way through, "
        "`kill -9` of one of two steps workers and one of two tools workers, which nobody starts again. The lease is "
        "the default of 15 s.",
        [Case(agentq(mode), partial(crash.recovery, mode)) for mode in MODES],
        [
            Column("all done after the kill, s", "recovery", 1),
            Column("runs lost", "lost"),
            Column("calls answered as interrupted", "interrupted", 1),
            Column("model calls twice", "twice_model", 1),
            Column("unsafe effects twice", "twice_unsafe"),
        ],
        Picture("W5: from kill -9 until all 50 runs are done", "s", [("recovery", "")], 1),
        rounds=2,
    ),
    Work(
        "enqueue",
        "Enqueue",
        "What a producer waits for: the commit and, with agentq, the message to the broker.",
        _enqueue_cases(),
        [Column("a second", "per_sec"), Column("p50 ms", "p50", 2)],
        Picture("Enqueue", "runs/s", [("per_sec", "")]),
    ),
    Work(
        "start",
        "Start",
        "From the worker's command to the first model call and the first tool call of a run that waits for them; "
        "`import agentq` in a fresh interpreter, then with `from agentq import Agent, Client, tool` after it.",
        [
            Case("agentq worker", partial(edges.worker_start, MODES[0])),
            Case("import agentq", edges.imports),
        ],
        [
            Column("first model call, s", "steps", 2),
            Column("first tool call, s", "tools", 2),
            Column("import agentq, s", "secs", 3),
            Column("with the names, s", "names", 3),
            Column("imports Celery", "celery"),
        ],
        Picture(
            "Start", "s", [("steps", "first model call"), ("tools", "first tool call"), ("names", "with its names")], 2
        ),
    ),
]
