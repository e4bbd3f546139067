"""Kill anything, at any moment: nothing lost, nothing done twice. Real workers, real deaths, a cell of the matrix each.

``make test-matrix`` runs all cells, every other test run those of COVERING.
"""

from itertools import product

import pytest

from tests.crash.crew import Crew
from tests.crash.matrix import CELLS, COVERING, KINDS, PHASES, POINTS, Cell, impossible
from tests.crash.rules import check

pytestmark = pytest.mark.crash

# One crew does the covering cells: a second one would take longer to start than it saves.
COVERED = [pytest.param(cell, id=str(cell), marks=pytest.mark.xdist_group("crash")) for cell in COVERING]
OTHERS = [pytest.param(cell, id=str(cell), marks=pytest.mark.matrix) for cell in CELLS if cell not in COVERING]


@pytest.mark.parametrize("cell", [*COVERED, *OTHERS])
def test_a_run_in_which_somebody_died_ends_as_the_undisturbed_one(crew: Crew, cell: Cell) -> None:
    check(crew.disturbed(cell), crew.undisturbed(cell.agent), cell, local=crew.is_local)


def test_the_covering_cells_have_each_phase_point_and_death_at_least_once() -> None:
    assert {cell.phase for cell in COVERING} == set(PHASES)
    assert {cell.point for cell in COVERING} == set(POINTS)
    assert {cell.kind for cell in COVERING} == set(KINDS)
    assert set(COVERING) <= set(CELLS)


@pytest.mark.xdist_group("crash")
@pytest.mark.parametrize("agent", sorted({place.agent for place in PHASES.values()}))
def test_an_undisturbed_run_comes_to_every_point_of_the_matrix_and_to_no_other(crew: Crew, agent: str) -> None:
    phases = {phase: place for phase, place in PHASES.items() if place.agent == agent}
    hits = [hit for hit in crew.undisturbed(agent).hits if hit["what"] in {place.what for place in phases.values()}]
    found = {(hit["what"], hit["point"], "threads" if hit["pid"] == hit["group"] else "prefork") for hit in hits}
    assert found == {
        (place.what, point, place.pool)
        for (phase, place), point in product(phases.items(), POINTS)
        if impossible(phase, point) is None
    }
