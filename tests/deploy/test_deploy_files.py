"""The deployment files as far as no engine is needed: they parse, and say nothing that the code does not know."""

import configparser
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import click
import pytest
import yaml

from agentq.cli import main
from agentq.config import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def parse_command(words: list[str]) -> None:
    """Fail where the command line is not one of agentq's; nothing is run."""
    command: click.Command | None = main
    while isinstance(command, click.Group):
        name, *words = words
        command = command.get_command(click.Context(command), name)
        assert command, f"agentq has no command {name}"
    assert command
    command.make_context(command.name, list(words))


def read_env(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def compose() -> dict[str, Any]:
    data = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert isinstance(data, dict)
    return data


def agentq_services() -> dict[str, dict[str, Any]]:
    return {name: service for name, service in compose()["services"].items() if service["image"] == "agentq"}


def read_unit(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(path.read_text())
    return unit


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


# -- compose --


def test_compose_runs_postgres_redis_one_migration_and_both_workers() -> None:
    services = compose()["services"]
    assert set(services) == {"postgres", "redis", "migrate", "worker", "tools-worker"}
    assert services["postgres"]["image"] == "postgres:17"
    assert services["redis"]["image"] == "redis:7"


@pytest.mark.parametrize("name", ["migrate", "worker", "tools-worker"])
def test_every_command_in_compose_is_one_of_ours(name: str) -> None:
    parse_command(agentq_services()[name]["command"])


@pytest.mark.parametrize("name", ["worker", "tools-worker"])
def test_a_worker_in_compose_waits_for_the_schema_is_watched_and_stops_gently(name: str) -> None:
    worker = agentq_services()[name]
    assert worker["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert worker["depends_on"]["redis"] == {"condition": "service_healthy"}
    assert seconds(worker["stop_grace_period"]) > float(worker["environment"]["AGENTQ_STOP_SECS"]) + 10
    assert float(worker["environment"]["AGENTQ_STOP_SECS"]) > 60
    probe, program, *arguments = worker["healthcheck"]["test"]
    assert (probe, program) == ("CMD", "agentq")
    parse_command(arguments)


def test_the_migration_runs_once_and_after_postgres_answers() -> None:
    migrate = compose()["services"]["migrate"]
    assert migrate["restart"] == "no"
    assert migrate["depends_on"]["postgres"] == {"condition": "service_healthy"}


def test_whatever_compose_waits_for_exists_and_has_a_health_check() -> None:
    services = compose()["services"]
    for service in services.values():
        for name, needed in service.get("depends_on", {}).items():
            assert needed["condition"] != "service_healthy" or "healthcheck" in services[name]


def test_every_settings_file_of_compose_has_an_example() -> None:
    files = {file for service in compose()["services"].values() for file in service.get("env_file", [])}
    assert files == {"agentq.env", "postgres.env"}
    assert all((DEPLOY / f"{file}.example").exists() for file in files)


def test_no_secret_is_in_compose() -> None:
    given = {name for service in compose()["services"].values() for name in service.get("environment", {})}
    assert given == {"AGENTQ_STOP_SECS"}


# -- settings --


def test_every_setting_in_the_example_is_a_known_one() -> None:
    known = {f"AGENTQ_{name.upper()}" for name in get_type_hints(Settings)}
    ours = {name for name in read_env(DEPLOY / "agentq.env.example") if name.startswith("AGENTQ_")}
    assert ours <= known
    assert {"AGENTQ_DATABASE_URL", "AGENTQ_BROKER_URL", "AGENTQ_AGENTS"} <= ours


def test_provider_keys_in_the_example_are_named_and_empty() -> None:
    keys = {name: value for name, value in read_env(DEPLOY / "agentq.env.example").items() if name.endswith("_KEY")}
    assert keys == {"OPENAI_API_KEY": "", "ANTHROPIC_API_KEY": "", "GEMINI_API_KEY": ""}


def test_the_examples_agree_on_the_database() -> None:
    postgres = read_env(DEPLOY / "postgres.env.example")
    url = "postgresql://{POSTGRES_USER}:{POSTGRES_PASSWORD}@postgres:5432/{POSTGRES_DB}".format(**postgres)
    assert read_env(DEPLOY / "agentq.env.example")["AGENTQ_DATABASE_URL"] == url


# -- image --


def instructions() -> Iterator[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", (DEPLOY / "Dockerfile").read_text())
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


def final_stage() -> list[tuple[str, str]]:
    everything = list(instructions())
    start = max(index for index, (word, _) in enumerate(everything) if word == "FROM")
    return everything[start:]


def test_every_instruction_of_the_dockerfile_is_known() -> None:
    known = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "RUN", "STOPSIGNAL", "USER", "WORKDIR"}
    assert {word for word, _ in instructions()} <= known


def test_the_image_runs_agentq_as_nobody_special() -> None:
    stage = dict(final_stage())
    assert stage["ENTRYPOINT"] == '["agentq"]'
    uid = int(stage["USER"].partition(":")[0])
    assert uid > 0
    parse_command(yaml.safe_load(stage["CMD"]))


def test_the_final_image_has_no_sources_and_builds_nothing() -> None:
    stage = final_stage()
    assert all(rest.startswith("--from=build ") for word, rest in stage if word == "COPY")
    runs = " ".join(rest for word, rest in stage if word == "RUN")
    assert not re.search(r"\b(apt-get|pip|gcc|build)\b", runs)


def test_everything_the_image_copies_exists() -> None:
    sources = [
        source
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from=")
        for source in rest.split()[:-1]
    ]
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []


# -- systemd --


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_one_of_our_commands_and_stops_it_gently(path: Path) -> None:
    service = read_unit(path)["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).is_absolute()
    assert Path(program).name == "agentq"
    parse_command(arguments)
    assert service["Type"] == "exec"
    assert service["KillSignal"] == "SIGTERM"
    # Without it the processes of the pool get the signal too, and drop what they hold.
    assert service["KillMode"] == "mixed"
    stop_secs = re.search(r"AGENTQ_STOP_SECS=(\d+)", path.read_text())
    assert stop_secs is not None
    assert 60 < float(stop_secs[1]) < seconds(service["TimeoutStopSec"]) - 10
    assert service["Restart"] == "always"
    assert service["EnvironmentFile"] == "/etc/agentq/agentq.env"
    assert service["User"] not in ("", "root")


def test_the_units_and_compose_start_the_same_workers() -> None:
    unit_commands = [shlex.split(read_unit(path)["Service"]["ExecStart"])[1:] for path in UNITS]
    services = agentq_services()
    assert sorted(unit_commands) == sorted(services[name]["command"] for name in ("worker", "tools-worker"))
