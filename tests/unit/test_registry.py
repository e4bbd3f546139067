"""Agents are found where AGENTQ_AGENTS says, and what is wrong there is one line that names the place."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentq.agent import AgentSpec
from agentq.errors import ConfigError, UnknownAgentError
from agentq.registry import by_name, load_agents, unknown

ONE = "from agentq.agent import AgentSpec\nhelper = AgentSpec('helper', model='openai:x')\n"
TWO = ONE + "boss = AgentSpec('boss', model='openai:x', tools=[helper.as_tool()])\n"


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing that a test imports stays imported."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]
    assert {name: module for name, module in sys.modules.items() if before.get(name) is not module} == {}


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def refusal(places: str) -> str:
    with pytest.raises(ConfigError) as made:
        load_agents(places)
    assert "\n" not in str(made.value)
    return str(made.value)


def test_nothing_named_is_nothing_found() -> None:
    assert load_agents("") == load_agents(" , ") == {}


def test_a_file_a_module_and_a_variable_give_the_agents_once(tmp_path: Path) -> None:
    path = write(tmp_path, "some_agents.py", TWO)
    assert set(load_agents(path)) == {"helper", "boss"}
    assert set(load_agents("some_agents")) == {"helper", "boss"}
    assert set(load_agents("some_agents:helper")) == {"helper"}
    assert set(load_agents(f"{path}, some_agents, some_agents:boss")) == {"helper", "boss"}


def test_the_agents_behind_tools_come_along(tmp_path: Path) -> None:
    assert set(load_agents(write(tmp_path, "some_agents.py", TWO) + ":boss")) == {"helper", "boss"}


def test_an_agent_that_calls_itself_is_found_once() -> None:
    spec = AgentSpec("loop", model="openai:x")
    spec.tools["loop"] = spec.as_tool()
    assert by_name([spec]) == {"loop": spec}


def test_a_file_named_like_a_module_does_not_take_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, "json.py", TWO)
    assert set(load_agents(path)) == {"helper", "boss"}
    assert load_agents(path)["boss"] is load_agents(path)["boss"]
    assert hasattr(sys.modules["json"], "dumps")


def test_a_file_that_failed_is_tried_again_whole(tmp_path: Path) -> None:
    path = write(tmp_path, "some_agents.py", ONE + "raise RuntimeError('not\\nready')\n")
    assert refusal(path).endswith("failed in some_agents.py, line 3: RuntimeError: not")
    write(tmp_path, "some_agents.py", TWO)
    assert set(load_agents(path)) == {"helper", "boss"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "defines no Agent at its top level"),
        (
            "import no_such_module_at_all",
            "failed in some_agents.py, line 1: ModuleNotFoundError: No module",
        ),
        ("\ndef broken(:", "failed in some_agents.py, line 2: SyntaxError"),
        ("def helper():\n    1 / 0\nhelper()", "failed in some_agents.py, line 2, in helper: ZeroDivisionError"),
        ("import json\njson.loads('x')", "failed in some_agents.py, line 2: JSONDecodeError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import agentq\nagentq.Agent('no good', model='openai:x')", "some_agents.py, line 2: agent 'no good'"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    assert says in refusal(write(tmp_path, "some_agents.py", text))


def test_a_module_that_another_one_misses_is_told_with_who_imports_it(tmp_path: Path) -> None:
    write(tmp_path, "some_helper.py", "import os\nimport no_such_module_at_all\n")
    line = refusal(write(tmp_path, "some_agents.py", "import some_helper\n"))
    assert line.startswith("--agents/AGENTQ_AGENTS: importing ")
    assert "failed in some_helper.py, line 2: ModuleNotFoundError" in line


def test_what_is_not_there_is_one_line(tmp_path: Path) -> None:
    assert "no file" in refusal(str(tmp_path / "missing.py"))
    assert "no_such_module_at_all" in refusal("no_such_module_at_all")
    assert "no agent called 'x'" in refusal(write(tmp_path, "some_agents.py", ONE) + ":x")


def test_two_agents_with_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two agents are called 'a'"):
        by_name([AgentSpec("a", model="openai:x"), AgentSpec("a", model="openai:x")])


@pytest.mark.parametrize(
    ("known", "line"),
    [
        (["support", "sales"], "there is no agent 'suport'; did you mean 'support'? Known: sales, support"),
        (["sales"], "there is no agent 'suport'. Known: sales"),
        ([], "there is no agent 'suport'. Known: none; set AGENTQ_AGENTS or start a worker that has it"),
    ],
)
def test_an_unknown_agent_is_told_with_the_nearest_one(known: list[str], line: str) -> None:
    error = unknown("suport", known)
    assert (type(error), str(error)) == (UnknownAgentError, line)
    assert error.details["agent"] == "suport"
