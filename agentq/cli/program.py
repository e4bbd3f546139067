"""The outermost group: imports a command when it is called, and turns every error into one line and an exit code."""

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from agentq.errors import (
    AgentqError,
    ConfigError,
    RunNotFoundError,
    ThreadNotFoundError,
    UnavailableError,
    WaitTimeoutError,
)

FAILED, USAGE, INFRASTRUCTURE, WAITS, NOT_FOUND, TIMED_OUT, INTERRUPTED = 1, 2, 3, 4, 5, 124, 130

_EXIT_CODES: tuple[tuple[type[AgentqError], int], ...] = (
    (ConfigError, USAGE),
    (UnavailableError, INFRASTRUCTURE),
    (RunNotFoundError, NOT_FOUND),
    (ThreadNotFoundError, NOT_FOUND),
    (WaitTimeoutError, TIMED_OUT),
)


def exit_code(error: AgentqError) -> int:
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), FAILED)


@dataclass(frozen=True)
class Lazy:
    """Where a command is, as ``module:attribute``, and its line in the help, so that the help imports none of them."""

    place: str
    help: str

    def load(self) -> click.Command:
        module, _, attribute = self.place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


class Program(click.Group):
    """A group of commands that are imported one at a time."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self._lazy.get(cmd_name)
        return found.load() if found else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self._lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self._lazy and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self._lazy, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        call = super().main
        if not standalone_mode:
            return call(args, prog_name, standalone_mode=False, **extra)
        sys.exit(_guarded(lambda: call(args, prog_name or "agentq", standalone_mode=False, **extra)))


def _guarded(call: Callable[[], Any]) -> int:
    try:
        code = call()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except AgentqError as error:
        say(str(error))
        return exit_code(error)
    except BrokenPipeError:
        # The reader has seen enough; Python would complain once more when it closes the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def say(text: str) -> None:
    """A line for the person at the terminal; what a program wants to read goes to stdout."""
    click.echo(f"agentq: {text}", err=True)
