"""What came of all scenarios, in Markdown: promises kept, kills that hit work in hand, and where they hit."""

from collections import Counter
from collections.abc import Sequence

from tests.scenarios.lane import Lane


def text(lanes: Sequence[Lane], seed: int, secs: float) -> str:
    tried = [each for lane in lanes for each in lane.tried]
    kills = [kill for each in tried for kill in each.kills]
    failed = [f"{lane.broker}: {each.name}\n{each.problem}" for lane in lanes for each in lane.tried if each.problem]
    failed += [f"{lane.broker}: {problem}" for lane in lanes for problem in lane.problems]
    hit = [kill for kill in kills if kill.held]
    told = [kill for kill in kills if kill.is_hit and not kill.held]
    names = {each.name for each in tried}
    hit_names = {each.name for each in tried if each.hit}
    verdict = f"{len(failed)} FAILED" if failed else "all promises kept"
    lines = [
        f"**{verdict}**: {len(names)} scenarios in {len(tried)} tries, {secs / 60:.1f} minutes, seed {seed}, "
        + ", ".join(f"{lane.broker} {len({each.name for each in lane.tried})}" for lane in lanes),
        "",
        "| | count |",
        "| --- | --- |",
        f"| workers killed with SIGKILL | {len(kills)} |",
        f"| … that had a lease at that time | {len(hit)} |",
        f"| … that had none, but were in the middle of telling a hook | {len(told)} |",
        f"| scenarios whose worker was hit with work in hand | {len(hit_names)} of {len(names)} |",
    ]
    held = Counter(what if kind == "run" else "call" for kill in kills for kind, _, what in kill.held)
    lines += [f"| … held: {what} | {count} |" for what, count in sorted(held.items())]
    points = Counter(f"{'after' if kill.moment.end else 'in'} {kill.moment.point}" for kill in kills)
    lines += [f"| … aimed {point} | {count} |" for point, count in sorted(points.items())]
    inside = Counter(mark for kill in kills for mark in kill.marks)
    lines += [f"| … hit in the middle of: {mark} | {count} |" for mark, count in sorted(inside.items())]
    lines += [f"\n{each}" for each in failed]
    missed = sorted(names - hit_names)
    lines += ["", f"Not hit with work in hand: {', '.join(missed)}"] if missed else []
    return "\n".join(lines)
