"""Options and values that several commands share, and the way to a client."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from agentq import embedded
from agentq.agent import AgentSpec
from agentq.arguments import load_json
from agentq.cli.program import say
from agentq.client import Client
from agentq.config import Settings, load, unknown_variables
from agentq.errors import ConfigError
from agentq.facts import START_WORKER
from agentq.providers.registry import missing_key
from agentq.registry import load_agents
from agentq.run import Approval, Run, ThreadInfo

T = TypeVar("T", Run, Approval, ThreadInfo)

as_json = click.option("--json", "as_json", is_flag=True, help="JSON on stdout: one object, or one a line for lists.")
agents = click.option(
    "--agents",
    "places",
    envvar="AGENTQ_AGENTS",
    show_envvar=True,
    metavar="PLACES",
    help="Where agents are: package.module, module:name or file.py, comma-separated.",
)


def settings_of(given: Mapping[str, Any], **more: Any) -> Settings:
    """The settings: options first, then ``AGENTQ_*``. Raises ConfigError."""
    return load(os.environ, **given, **more)


def warn_of_unknown_variables() -> None:
    """A misspelt variable changes nothing, which nobody notices unless told."""
    for line in unknown_variables():
        say(line)


def missing_keys(agents: Mapping[str, AgentSpec]) -> list[str]:
    """One line for each provider key that these agents need and that is not set here."""
    needed: dict[str, set[str]] = {}
    for agent in agents.values():
        for key in filter(None, map(missing_key, agent.models)):
            needed.setdefault(key, set()).add(agent.name)
    return [f"{key} is not set here; needed by {', '.join(sorted(names))}" for key, names in sorted(needed.items())]


@contextmanager
def reading_client(given: Mapping[str, Any]) -> Iterator[Client]:
    """A client for a command that looks at what is there: nothing there yet is not made for it."""
    settings = settings_of(given)
    if settings.database_url is None and not embedded.exists(settings.home):
        raise ConfigError(
            f"there is no embedded database in {_shown(settings.home)} yet; "
            f"start one with {START_WORKER}, or set AGENTQ_DATABASE_URL"
        )
    with client(given) as opened:
        yield opened


def _shown(home: Path) -> str:
    return str(home) if home.is_absolute() else f"./{home}"


@contextmanager
def client(given: Mapping[str, Any], *, places: str | None = None) -> Iterator[Client]:
    """A client for one command; with ``places`` it knows those agents, which are imported first."""
    settings = settings_of(given)
    known = load_agents(places) if places else {}
    with Client(settings=settings, agents=known.values()) as opened:
        yield opened


def _pairs(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for key, separator, text in pairs:
        if not key or not separator:
            raise click.BadParameter(f"{key + separator + text!r} is not KEY=VALUE")
    return {key: text for key, _, text in pairs}


limit = click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)


def page(found: list[T], limit: int, option: str) -> list[T]:
    """What is shown of a list of which one more was read than that: where it goes on, that is said on stderr."""
    shown = found[:limit]
    if len(found) > limit:
        say(f"there are more; for the next page add {option} {shown[-1].id}")
    return shown


tags = click.option("--tag", "tags", multiple=True, callback=_pairs, metavar="KEY=VALUE", help="Repeat it for more.")


def moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> datetime | None:
    """A callback for options that take a time."""
    if value is None:
        return None
    try:
        return datetime.fromisoformat(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no time; it looks like 2026-03-01T09:00+01:00") from error


def json_object(_ctx: click.Context, _param: click.Parameter, value: str | None) -> dict[str, Any] | None:
    """A callback for options that take a JSON object."""
    if value is None:
        return None
    try:
        found = load_json(value)
    except ValueError as error:
        raise click.BadParameter(f"this is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter('a JSON object is wanted, such as {"customer": 42}')
    return found
