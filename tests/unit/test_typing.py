"""Who writes with a type checker is told of a wrong name before anything runs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOOD = """
from agentq import Agent, Client

agent = Agent("a", model="openai:gpt-5.2", tools=[], limits={"model_calls": 3}, model_timeout_secs=5)
agent.run("hi", idempotency_key="x", tags={"a": "b"}, timeout=3.0)
agent.enqueue("hi", context={"a": 1}, client=Client()).wait(timeout=1)
agent.thread("t").send("hi", limits={"tokens": 5}, timeout=1)
Client().enqueue("a", "hi", allow_unknown=True)
"""
WRONG = """
Agent("a", modell="openai:gpt-5.2")
agent.run("hi", idempotency="x")
agent.enqueue("hi", timeout=5)
agent.thread("t").send("hi", tag={})
Client().enqueue("a", "hi", allow_unknow=True)
"""


@pytest.mark.slow
def test_a_wrong_keyword_is_an_error_of_the_type_checker(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(GOOD + WRONG)
    # The cache is that of make check.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", str(snippet)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    first = len(GOOD.splitlines()) + 2
    assert [line.split(":")[1] for line in errors] == [str(first + n) for n in range(5)], done.stdout + done.stderr
    assert all("Unexpected keyword argument" in line for line in errors)
