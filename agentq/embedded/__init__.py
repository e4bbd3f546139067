"""Postgres and a broker for a machine that has neither: both live in one folder, ``.agentq`` by default."""

import os
import subprocess
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from agentq.embedded import ownership, postgres
from agentq.errors import ConfigError

__all__ = ["Embedded", "exists", "start"]


class Embedded:
    """One claim on the server of a folder. The server stops when the last claim is closed or its process is gone."""

    def __init__(self, root: Path, database_url: str = "", owner: int | None = None) -> None:
        self.root = root
        self.database_url = database_url
        self.broker_url = f"agentq+file://{quote(str(root / 'broker'))}"
        self._owner = owner

    def close(self) -> None:
        """Give up this claim; the last one waits until the server has stopped. A second call does nothing."""
        owner, self._owner = self._owner, None
        if owner is not None:
            try:
                with ownership.serialised(self.root):
                    _give_up(self.root, owner)
            except FileNotFoundError:  # the folder was removed, the server ends by itself
                os.close(owner)

    def __enter__(self) -> "Embedded":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def start(root: Path | str = ".agentq") -> Embedded:
    """Start the server of ``root``, or attach to the one that runs. Each call is a claim of its own, to be closed."""
    folder = Path(root).expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _keep_out_of_git(folder)
        with ownership.serialised(folder) as start_lock:
            owner = ownership.own(folder)
            try:
                ownership.ensure_watcher(folder)
                url = postgres.ensure_running(folder, start_lock)
            except BaseException:
                _give_up(folder, owner)
                raise
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"the embedded database cannot use {folder}: {error}; choose another folder, or set AGENTQ_DATABASE_URL"
        ) from error
    return Embedded(folder, url, owner)


def broker_only(root: Path | str = ".agentq") -> Embedded:
    """The broker's folder alone, for a machine that has a Postgres of its own; ``database_url`` is empty."""
    folder = Path(root).expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _keep_out_of_git(folder)
    except OSError as error:
        message = f"the embedded broker cannot use {folder}: {error}; choose another folder, or set AGENTQ_BROKER_URL"
        raise ConfigError(message) from error
    return Embedded(folder)


def exists(root: Path | str = ".agentq") -> bool:
    """Whether there is a database in ``root``, started or not."""
    return (Path(root).expanduser() / "pg").is_dir()


def _keep_out_of_git(folder: Path) -> None:
    ignore = folder / ".gitignore"
    if not any(folder.iterdir()):
        ignore.write_text("*\n")


def _give_up(root: Path, owner: int) -> None:
    os.close(owner)
    ownership.stop_if_unowned(root)
