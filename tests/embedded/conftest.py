import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import agentq.embedded
from agentq.embedded import ownership

REPOSITORY = Path(agentq.embedded.__file__).parents[2]


@pytest.fixture
def wait_for() -> Callable[..., None]:
    def wait(is_true: Callable[[], bool], seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not is_true():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)

    return wait


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python processes that know agentq; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **options: object) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(REPOSITORY), str(tmp_path), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": path}
        process = subprocess.Popen(
            [sys.executable, *arguments], env=environment, text=True, stdout=subprocess.PIPE, cwd=tmp_path, **options
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def root(tmp_path: Path, python: Callable[..., object], wait_for: Callable[..., None]) -> Iterator[Path]:
    """A folder for an embedded server; nothing of it is left behind, as long as the test closes what it starts."""
    folder = tmp_path / ".agentq"
    yield folder
    data = folder / "pg"
    if folder.exists():
        wait_for(lambda: ownership.listening_pid(data) is None)
        wait_for(lambda: not watchers(folder))
    if data.is_symlink():
        shutil.rmtree(data.readlink().parent)


def watchers(root: Path) -> list[psutil.Process]:
    """The watcher processes of a folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if ownership.__file__ in command and str(root) in command and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@pytest.fixture
def watchers_of() -> Callable[[Path], list[psutil.Process]]:
    return watchers
