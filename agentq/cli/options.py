"""Options and values that several commands share, and the way to a client."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from agentq.client import Client
from agentq.config import Settings, load
from agentq.registry import load_agents

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


tags = click.option("--tag", "tags", multiple=True, callback=_pairs, metavar="KEY=VALUE", help="Repeat it for more.")


def json_object(_ctx: click.Context, _param: click.Parameter, value: str | None) -> dict[str, Any] | None:
    """A callback for options that take a JSON object."""
    if value is None:
        return None
    try:
        found = json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"this is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter('a JSON object is wanted, such as {"customer": 42}')
    return found
