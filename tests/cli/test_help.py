"""The help is complete, quick, and says which variable stands for which option."""

import subprocess
import sys

import click
import pytest

import agentq
from agentq.cli import main
from tests.cli.program import Program


def commands(group: click.Group) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        below = commands(command) if isinstance(command, click.Group) else [()]
        found += [(name, *words) for words in below]
    return found


def command(words: tuple[str, ...]) -> click.Command:
    found: click.Command | None = main
    for word in words:
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), word)
    assert found is not None
    return found


@pytest.mark.parametrize("words", commands(main), ids=" ".join)
def test_every_command_and_option_says_what_it_is_for(words: tuple[str, ...]) -> None:
    found = command(words)
    assert found.help
    for parameter in found.params:
        if isinstance(parameter, click.Option) and parameter.name not in ("help", "limit"):
            assert parameter.help, parameter.name


def test_every_option_that_is_a_setting_shows_its_variable() -> None:
    for words in [(), ("worker",), ("run",), ("doctor",)]:
        for option in command(words).params:
            if option.name in ("database_url", "broker_url", "home", "places", "concurrency", "tool_concurrency"):
                assert option.envvar
                assert option.show_envvar  # type: ignore[attr-defined]


def test_the_version_is_that_of_the_package(program: Program) -> None:
    assert program("--version").out == f"agentq, version {agentq.__version__}\n"


def test_the_help_imports_no_command() -> None:
    """So that it is there at once: what commands need takes a second to import."""
    heavy = ["celery", "sqlalchemy", "alembic", "httpx"]
    script = (
        "import sys\nfrom agentq.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        f"assert not {heavy!r} & sys.modules.keys()"
    ).replace(repr(heavy), repr(set(heavy)))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "runs" in done.stdout


def test_all_public_names_are_there() -> None:
    assert all(getattr(agentq, name) for name in agentq.__all__)
    assert set(agentq.__all__) <= set(dir(agentq))
    with pytest.raises(AttributeError, match="nope"):
        agentq.nope  # noqa: B018  # type: ignore[attr-defined]
