"""``python -m benchmarks [w1 w2 …]``: every round measures every case of all works once: all had the same machine."""

import argparse
import json
import logging
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.place import Place, place
from benchmarks.report import machine, markdown, write
from benchmarks.results import Results
from benchmarks.works import WORKS, Work


def say(text: str) -> None:
    sys.stderr.write(f"bench: {text}\n")


def arguments() -> argparse.Namespace:
    names = [work.name for work in WORKS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"{', '.join(names)}; all of them by default")
    parser.add_argument("--rounds", type=int, default=5, help="how often each work is measured, at most")
    parser.add_argument("--minutes", type=float, default=13.5, help="no round begins that would take longer than this")
    parser.add_argument("--share", type=float, default=1.0, help="less than 1 for shorter measurements")
    parser.add_argument("--report", type=Path, help="the page that gets the report; it is printed in any case")
    parser.add_argument("--json", type=Path, help="a file that gets every measurement as one line")
    options = parser.parse_args()
    if unknown := set(options.works) - set(names):
        parser.error(f"unknown work {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return options


def main() -> int:
    options = arguments()
    # So that workers and servers end with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # The producers' own words are no part of the report.
    logging.getLogger("agentq").addHandler(logging.NullHandler())
    began = time.monotonic()
    works = [work for work in WORKS if not options.works or work.name in options.works]
    with place() as found:
        results = run(found, works, options)
        where = machine(found)
    minutes = (time.monotonic() - began) / 60
    sys.stdout.write(markdown(results, where, minutes) + "\n")
    if options.report:
        text = markdown(results, where, minutes, pictures="performance")
        write(options.report, text, results, options.report.parent / "performance")
    return 0


def run(found: Place, works: Sequence[Work], options: argparse.Namespace) -> Results:
    """Round by round, work by work, case by case."""
    results, began, longest = Results(), time.monotonic(), 0.0
    for number in range(options.rounds):
        of_round = time.monotonic()
        if of_round - began + longest > options.minutes * 60:
            say(f"{number} rounds, for want of time")
            break
        for work in [work for work in works if number < work.rounds]:
            _measure(found, work, number, results, options)
        longest = max(longest, time.monotonic() - of_round)
    return results


def _measure(found: Place, work: Work, number: int, results: Results, options: argparse.Namespace) -> None:
    for case in work.cases:
        began = time.monotonic()
        measured = case.measure(found, options.share)
        results.add(work.name, case.label, measured)
        say(f"round {number + 1}, {work.name}, {case.label}: {time.monotonic() - began:.0f} s")
        if options.json:
            line = {"round": number, "work": work.name, "case": case.label, **asdict(measured)}
            with options.json.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
