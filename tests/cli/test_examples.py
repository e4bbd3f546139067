"""The examples say what the code does: they are imported as a worker imports them."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentq.registry import load_agents

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("place", "agents"),
    [
        (str(EXAMPLES / "support.py"), {"support"}),
        (str(EXAMPLES / "research.py"), {"researcher", "editor"}),
        ("agentq.demo", {"support"}),
    ],
)
def test_a_worker_can_load_it(place: str, agents: set[str]) -> None:
    assert set(load_agents(place)) == agents


def test_the_producer_says_what_is_wrong_where_nobody_answers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "enqueue.py"],
        env={"AGENTQ_DATABASE_URL": "postgresql://127.0.0.1:1/x", "AGENTQ_BROKER_URL": "redis://127.0.0.1:1"}
        | {"PYTHONPATH": ":".join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "unavailable" in done.stderr
