"""``python -m tests.scenarios``: all scenarios on real workers, in each of which one of them is killed with -9."""

import argparse
import logging
import random
import sys
import time
from pathlib import Path

from tests.scenarios import library
from tests.scenarios.lane import BROKERS, Lane, lanes
from tests.scenarios.report import text
from tests.scenarios.scenario import SCENARIOS


def say(words: str) -> None:
    sys.stderr.write(f"scenarios: {words}\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help="all of them by default")
    parser.add_argument("--seed", type=int, default=None, help="of the order, the brokers and the moments of the kills")
    parser.add_argument("--broker", choices=BROKERS, help="only this one; by default each gets half of the scenarios")
    parser.add_argument("--times", type=int, default=1, help="how often each scenario is done")
    parser.add_argument("--no-kills", action="store_true", help="nobody is killed: what a scenario takes by itself")
    parser.add_argument("--keep", type=Path, help="a folder for the logs and marks; without it those of failures only")
    parser.add_argument("--list", action="store_true", help="the names")
    options = parser.parse_args()
    library.load()
    if unknown := set(options.names) - set(SCENARIOS):
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}; see --list")
    return options


def main() -> int:
    options = arguments()
    if options.list:
        sys.stdout.write("\n".join(SCENARIOS) + "\n")
        return 0
    logging.getLogger("agentq").addHandler(logging.NullHandler())
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    say(f"seed {seed}")
    began = time.monotonic()
    found: list[Lane] = lanes(options, random.Random(seed), say)
    sys.stdout.write(text(found, seed, time.monotonic() - began) + "\n")
    return 0 if all(lane.is_good for lane in found) else 1


if __name__ == "__main__":
    sys.exit(main())
