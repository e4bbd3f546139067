"""The parts of the benchmarks that say what figures mean; and that one of them runs."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import report
from benchmarks.goals import GOALS
from benchmarks.results import Measured, Results
from benchmarks.scripts import SCRIPTS
from benchmarks.works import WORKS
from tests.servers import program

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results() -> Results:
    """Every figure of every case is there: 2 in the first round, 4 in the second."""
    found = Results()
    for work in WORKS:
        for case in work.cases:
            for value in (2.0, 4.0):
                values = {column.key: value for column in work.columns}
                found.add(work.name, case.label, Measured(values, (value, value)))
    return found


def test_every_goal_is_about_something_that_is_measured(results: Results) -> None:
    assert [goal.what for goal in GOALS if goal.value(results) is None] == []


def test_a_ratio_is_taken_within_a_round() -> None:
    found = Results()
    for ours, line in ((1.0, 2.0), (10.0, 20.0), (3.0, 9.0)):
        found.add("w", "ours", Measured({"x": ours}))
        found.add("w", "line", Measured({"x": line}))
    assert found.ratio("w", "ours", "x", to="line") == 0.5
    assert found.median("w", "ours", "x") == 3.0


def test_the_ideal_fills_the_lanes_in_order() -> None:
    assert SCRIPTS["even"].ideal_secs == pytest.approx(0.4)
    assert SCRIPTS["skewed"].ideal_secs == pytest.approx(0.6)


def test_the_report_is_put_between_its_marks(results: Results, tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    text = report.markdown(results, "a machine", 9, pictures="performance")
    report.write(page, text, results, tmp_path / "performance")
    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "old" not in written
    for work in WORKS:
        assert f"### {work.title}" in written
        assert f"(performance/{work.name}.svg)" in written
        ElementTree.fromstring((tmp_path / "performance" / f"{work.name}.svg").read_text())


@pytest.mark.slow
@pytest.mark.long
def test_a_work_runs_alone() -> None:
    program("redis-server")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "w2", "--rounds", "1", "--share", "0.1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| agentq, broker | 1 |" in done.stdout
