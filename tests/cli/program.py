"""``agentq`` as a person starts it: a process of its own, in a folder and with settings of its own."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from agentq.config import Settings
from tests.waiting import eventually

AGENTS = Path(__file__).parent / "agents_for_cli.py"


@dataclass
class Done:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Started:
    """A command that runs: its output is in ``log``."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def says(self, *words: str, within: float = 40) -> None:
        """Wait until all of them are in the output, as often as they are named."""

        def is_said() -> bool:
            text = self.text()
            return all(text.count(word) >= words.count(word) for word in words) or self.process.poll() is not None

        eventually(is_said, within=within, what=f"{words} in {self.text()}")
        text = self.text()
        assert all(text.count(word) >= words.count(word) for word in words), text

    def end(self, number: signal.Signals = signal.SIGTERM, *, within: float = 40) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=within)


@dataclass
class Program:
    """One installation: the settings are variables of every command, more of them can be given to each."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    started: list[Started] = field(default_factory=list)

    def environment(self, **more: str) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AGENTQ_")}
        return clean | self.settings | more

    def __call__(self, *words: str, timeout: float = 60, **more: str) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "agentq", *words],
            cwd=self.folder,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, **more: str) -> Started:
        log = self.folder / f"started-{len(self.started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "agentq", *words],
                cwd=self.folder,
                env=self.environment(**more),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.started.append(Started(process, log))
        return self.started[-1]

    def stop(self) -> None:
        """End what is still running, by kill -9."""
        for started in self.started:
            family = processes_of(started.process.pid)
            started.process.kill()
            started.process.wait()
            for process in family:
                with_suppressed_kill(process)


def processes_of(pid: int) -> list[psutil.Process]:
    """Everything below a process."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def with_suppressed_kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def processes_with(word: str) -> list[str]:
    """The command lines of living processes that have ``word`` in them."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if word in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(line)
    return found


def settings(**values: Any) -> dict[str, str]:
    return Settings(**values).environment()


def one_line(done: Done, code: int) -> str:
    """The single line of an error, without the name of the program."""
    assert done.code == code, (done.code, done.out, done.err)
    assert done.out == ""
    (line,) = done.err.splitlines()
    assert line.startswith("agentq: ")
    return line.removeprefix("agentq: ")
