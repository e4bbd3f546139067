"""What a scenario does things with: agents by the public API, and words for what it promises."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from secrets import token_hex
from typing import Any

import pytest

from agentq import Agent, Approval, Client, Handle, Result, RunFailedError, Thread, ToolMessage
from tests.scenarios.crew import Crew
from tests.scenarios.killer import Killer
from tests.scenarios.stage import marks
from tests.waiting import eventually
from tests.workers.fleet import ROOT

# A lost wake-up is sent again after seconds, and a lease is two.
WITHIN_SECS = 45.0
# Results of a call whose worker was lost in it, where that may be.
LOST = "interrupted"
UNSAFE = ("pay", "probed", "ask", "careful")


@dataclass
class Scene:
    """One try of one scenario."""

    crew: Crew
    killer: Killer
    chance: Random
    handles: list[Handle] = field(default_factory=list)
    # What can be seen only when all other scenarios are over.
    later: list[Callable[[], None]] = field(default_factory=list)
    token: str = field(default_factory=lambda: token_hex(4))
    began: float = field(default_factory=time.monotonic)

    @property
    def client(self) -> Client:
        return self.crew.client

    # -- what the producer does --

    def enqueue(self, agent: Agent | Thread, text: str = "go", **options: Any) -> Handle:
        """The run is watched by the killer and looked at by the audit."""
        return self.add(agent.enqueue(text, client=self.client, **options))

    def add(self, handle: Handle) -> Handle:
        self.handles.append(handle)
        self.killer.watch(handle.id)
        self.killer.told("enqueued")
        return handle

    def thread(self, agent: Agent, name: str = "thread") -> Thread:
        return agent.thread(self.unique(name))

    def unique(self, name: str) -> str:
        """A name that no other try has."""
        return f"{name}-{self.token}"

    def asked(self, handle: Handle, count: int = 1) -> list[Approval]:
        """Wait until so many calls wait for a person; in the order of their call ids."""
        eventually(
            lambda: len(handle.approvals()) >= count and handle.status() == "waiting",
            within=WITHIN_SECS,
            what=f"{count} calls wait for a person: {handle.id}",
        )
        found = handle.approvals()
        assert len(found) == count, found
        return sorted(found, key=lambda each: each.call_id)

    def decided(self) -> None:
        """Say that somebody has decided."""
        self.killer.told("decided")

    def cli(self, *words: str, code: int = 0) -> str:
        """What ``agentq`` prints; with this exit code."""
        done = subprocess.run(
            [sys.executable, "-m", "agentq", *words],
            cwd=ROOT,
            env=self.crew.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

    # -- what is promised --

    def ended(self, handle: Handle, status: str | None = "completed") -> Handle:
        """It ended, so; None: in whatever way."""
        eventually(lambda: handle.run().is_terminal, within=WITHIN_SECS, what=f"{handle.id} has ended")
        assert status in (None, handle.status()), handle.run()
        return handle

    def done(self, handle: Handle, text: str | None = "done") -> Result:
        """It completed, with this text."""
        result = self.ended(handle).result()
        assert result.text == text, result
        return result

    def failed(self, handle: Handle, code: str) -> RunFailedError:
        self.ended(handle, "failed")
        with pytest.raises(RunFailedError) as caught:
            handle.result()
        assert caught.value.code == code, caught.value
        return caught.value

    def results(self, handle: Handle) -> list[tuple[str, str | None, str]]:
        """Tool, code and text of each result, in their order."""
        found = [each.result for each in handle.messages() if isinstance(each, ToolMessage)]
        return [(each.name, each.code, each.text) for each in found]

    def came_back(self, handle: Handle, *expected: tuple[str, str | None, str | None]) -> None:
        """The results are these: tool, code, text (None: any). What died in an unsafe tool may be interrupted."""
        found = self.results(handle)
        assert len(found) == len(expected), found
        for (name, code, text), (tool, wanted, words) in zip(found, expected, strict=True):
            assert name == tool, found
            if code == LOST and wanted is None and name in UNSAFE:
                assert self.killer.kills, "nobody was killed, and a call is interrupted"
                continue
            assert code == wanted, found
            assert words is None or words in text, found

    def marked(self, point: str, *, end: bool = False, **known: Any) -> list[dict[str, Any]]:
        """Marks of this scenario's runs and of those below them."""
        mine = {run.id for run in self.runs()}
        return [
            each
            for each in marks(self.crew.folder)
            if each["point"] == point
            and each["at"] >= self.began
            and each["end"] == end
            and (each.get("run") is None or each["run"] in mine)
            and all(each.get(key) == value for key, value in known.items())
        ]

    def effects(self, tool: str) -> int:
        return len(self.marked("effect", tool=tool))

    def runs(self) -> Sequence[Any]:
        """All runs of this try, sub-agents' runs included."""
        found = [handle.run() for handle in {handle.id: handle for handle in self.handles}.values()]
        known = {run.id for run in found}
        for run in reversed(self.recent()):
            if run.parent_run_id in known and run.id not in known:
                known.add(run.id)
                found.append(run)
        return found

    def recent(self) -> list[Any]:
        return self.client.runs(limit=200)

    def below(self, handle: Handle, agent: str) -> Handle:
        """The newest run of that sub-agent in this try."""
        return self.client.handle(next(run.id for run in self.recent() if run.agent == agent))

    def until(self, ask: Callable[[], Any], what: str = "") -> Any:
        return eventually(ask, within=WITHIN_SECS, what=what)

    def until_late(self, ask: Callable[[], Any], within: float, what: str) -> Any:
        """For what takes its minute."""
        return eventually(ask, within=within, what=what)
