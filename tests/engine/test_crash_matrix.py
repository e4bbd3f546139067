"""The crash matrix in one process, where a death costs no time: every place, in both kinds of tools."""

from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from agentq.storage.database import Database
from tests.crash import agents
from tests.crash.agents import AGENTS
from tests.crash.death import Death, Fault, Kind, probe_in
from tests.crash.matrix import PHASES, POINTS, Cell, impossible
from tests.crash.rules import Story, check, open_work, story
from tests.engine.drain import Died, Drain

# A fault of the step is caught where a task ends, a killed process nowhere.
DEATHS: tuple[Kind, ...] = ("exception", "exit")
CELLS = [
    Cell(phase, point, kind, safe)
    for phase, point, kind in product(PHASES, POINTS, DEATHS)
    if impossible(phase, point) is None
    for safe in (False, True)
    if not safe or f"{PHASES[phase].agent}_safe" in AGENTS
]


def bring(kind: Kind, _: Path) -> None:
    raise Fault if kind == "exception" else Died


def run(database: Database, folder: Path, agent: str, death: Death | None, local_steps: int) -> Story:
    """Work and sweep until the run has ended; what a dead process held in memory is gone, and its leases run out."""
    folder.mkdir()
    if death is not None:
        death.write(folder)
    drain = Drain(database, *AGENTS.values(), probe=probe_in(folder, bring), local_steps=local_steps)
    handle = drain.enqueue(AGENTS[agent])
    # Each death, and each wake-up that it took along, is found by one round of the sweep.
    for _ in range(10):
        while drain.wake_ups:
            with suppress(Fault, Died):
                drain.work()
        for approval in drain.client.approvals():
            handle.approve(approval.call_id)
        if not drain.wake_ups and not open_work(database):
            return story(handle, folder)
        drain.age(20)
        with suppress(Died):
            drain.sweep()
    raise AssertionError(f"left to do: {open_work(database)}")


@pytest.fixture(scope="module", params=[0, 64], ids=["by message", "local steps"])
def local_steps(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def undisturbed(local_steps: int) -> dict[str, Story]:
    """The runs in which nobody died, each made by the first test that needs it."""
    return {}


@pytest.mark.parametrize("cell", [pytest.param(cell, id=str(cell)) for cell in CELLS])
def test_a_run_in_which_somebody_died_ends_as_the_undisturbed_one(
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    local_steps: int,
    undisturbed: dict[str, Story],
    cell: Cell,
) -> None:
    def story_of(name: str, death: Death | None) -> Story:
        monkeypatch.setattr(agents, "FOLDER", tmp_path / name)
        return run(database, tmp_path / name, cell.agent, death, local_steps)

    if cell.agent not in undisturbed:
        undisturbed[cell.agent] = story_of("undisturbed", None)
    check(story_of("disturbed", cell.death), undisturbed[cell.agent], cell, local=local_steps > 0)
