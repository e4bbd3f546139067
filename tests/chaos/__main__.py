"""``python -m tests.chaos``: many runs while everything they stand on is killed at random, and an audit at the end."""

import argparse
import logging
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from agentq.config import Settings
from tests.chaos import idle
from tests.chaos.audit import Verdict, audit
from tests.chaos.evidence import gather, left_open, tracebacks
from tests.chaos.faults import Faults
from tests.chaos.load import Load
from tests.chaos.place import Place, place
from tests.chaos.recovery import Held, Recoveries
from tests.chaos.report import Outcome, machine, markdown, write
from tests.chaos.workers import Fleet
from tests.waiting import eventually

# A wake-up that got lost again and again is looked at once a minute at last.
DRAIN_SECS = 300.0
SETTLE_SECS = 120.0
KILLED_RUNS = 50


def say(text: str) -> None:
    sys.stderr.write(f"chaos: {text}\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15, help="how long faults are made")
    parser.add_argument("--runs", type=int, default=200, help="open runs at any time")
    parser.add_argument("--seed", type=int, default=None, help="of the faults and of the load; random by default")
    parser.add_argument("--mean-gap", type=float, default=10, help="seconds between two faults, on average")
    parser.add_argument(
        "--lease-secs", type=float, default=Settings().lease_secs, help="AGENTQ_LEASE_SECS of the workers"
    )
    parser.add_argument("--rounds", type=int, default=5, help="kills for each lease, for the recovery times alone")
    parser.add_argument("--report", type=Path, help="the page that gets the report; it is printed in any case")
    parser.add_argument(
        "--keep", type=Path, help="a folder for logs and effects; without it they are kept on failure only"
    )
    return parser.parse_args()


def main() -> int:
    options = arguments()
    # The producers' own words are no part of the report.
    logging.getLogger("agentq").addHandler(logging.NullHandler())
    options.seed = random.randrange(1_000_000) if options.seed is None else options.seed
    outcome = chaos(options)
    for lease_secs in (Settings().lease_secs, 2.0) if options.rounds else ():
        outcome.kills[lease_secs] = kills(lease_secs, options.rounds)
    text = markdown(outcome)
    sys.stdout.write(text + "\n")
    if options.report:
        write(options.report, text)
    return 0 if outcome.verdict.is_good else 1


def chaos(options: argparse.Namespace) -> Outcome:
    """Load and faults for so many minutes, then the end of all runs, then the audit."""
    say(f"seed {options.seed}")
    chance = random.Random(options.seed)
    with place() as found:
        fleet = Fleet(found, lease_secs=options.lease_secs)
        load = Load(found, fleet, runs=options.runs, chance=random.Random(chance.random()))
        recoveries = Recoveries(found.server)
        faults = Faults(found, fleet, load, recoveries, chance, mean_secs=options.mean_gap)
        with fleet, recoveries, _progress(load, faults):
            fleet.wait_until_ready()
            load.start()
            faults.run(options.minutes * 60)
            load.add_no_more()
            drain_secs = _drain(found, recoveries)
            evidence = gather(found.server, found.folder, load.asked, faults.done)
            where = machine(found)
            load.stop()
        verdict = audit(evidence)
        if options.keep or not verdict.is_good:
            _keep(found.folder, options.keep or Path(tempfile.mkdtemp(prefix="agentq-chaos-failed-")), verdict)
        with found.new_database() as database:
            idle.fill(database)
            idle_cost = idle.measure(database)
        return Outcome(
            seed=options.seed,
            minutes=options.minutes,
            open_runs=options.runs,
            machine=where,
            lease_secs=options.lease_secs,
            asked=load.asked,
            verdict=verdict,
            starts=fleet.starts(),
            faults=faults.done,
            recoveries=recoveries.by_kind(),
            problems=faults.problems,
            tracebacks=tracebacks(slot.log for slot in fleet.slots),
            idle_cost=idle_cost,
            drain_secs=drain_secs,
        )


class _progress:  # noqa: N801 - reads as what it is where it is used
    """A line every ten seconds."""

    def __init__(self, load: Load, faults: Faults) -> None:
        self._load, self._faults = load, faults
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def _tell(self) -> None:
        started = time.monotonic()
        while not self._end.wait(10):
            asked, done = len(self._load.asked.agents), self._faults.done
            last = f", the last: {done[-1].kind}" if done else ""
            say(f"{time.monotonic() - started:4.0f} s: {self._load.open} open, {asked} runs, {len(done)} faults{last}")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()


def _drain(found: Place, recoveries: Recoveries) -> float:
    """Wait until all runs have ended and nothing is left to do, for some minutes at most."""
    started = time.monotonic()
    try:
        eventually(lambda: left_open(found.server)[0] == 0, within=DRAIN_SECS)
        drain_secs = time.monotonic() - started
        eventually(lambda: left_open(found.server)[1] == 0 and recoveries.are_over(), within=SETTLE_SECS)
    except AssertionError:
        say(f"not over: {left_open(found.server)} open runs and rows")  # the audit names them
        drain_secs = time.monotonic() - started
    return drain_secs


def _keep(folder: Path, kept: Path, verdict: Verdict) -> None:
    """What somebody needs who looks for a cause."""
    kept.mkdir(parents=True, exist_ok=True)
    for file in [*folder.glob("*.log"), *folder.glob("*.jsonl")]:
        shutil.copy(file, kept)
    (kept / "verdict.txt").write_text("\n".join([*verdict.lost, *verdict.doubled, *verdict.wrong]))
    say(f"logs and effects are kept in {kept}")


def kills(lease_secs: float, rounds: int) -> list[Held]:
    """kill -9 of a worker of each pool in the middle of 50 runs, several times, and nothing else."""
    chance = random.Random(lease_secs)
    with place() as found:
        fleet = Fleet(found, lease_secs=lease_secs)
        recoveries = Recoveries(found.server)
        load = Load(found, fleet, runs=KILLED_RUNS, chance=chance)
        faults = Faults(found, fleet, load, recoveries, chance)
        with fleet, recoveries:
            fleet.wait_until_ready()
            load.start()
            for number in range(rounds):
                eventually(lambda: load.open == KILLED_RUNS, within=60)
                victims = [fleet.of(kind)[number % 2] for kind in ("steps", "tools")]
                held = faults.kill("killed", *victims)
                say(f"lease {lease_secs:g} s, kill {number + 1} of {rounds}: {held} leases")
                eventually(recoveries.are_over, within=60, what="everything goes on")
                fleet.wait_until_ready()
            load.stop()
        return recoveries.all


if __name__ == "__main__":
    sys.exit(main())
