"""A fleet that lives through many deaths: two workers of each kind, of which only those that died are started again."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentq import Handle, Message
from agentq.storage.schema import metadata
from tests.crash.agents import noted
from tests.crash.death import Death
from tests.crash.matrix import Cell
from tests.crash.rules import Story, open_work, story
from tests.waiting import eventually
from tests.workers.fleet import Fleet, Worker

EMPTY = f"truncate {', '.join(table.fullname for table in metadata.sorted_tables)}"
KINDS = ("steps", "tools")
CONCURRENCY = 3
# Lost wake-ups are sent again after seconds, some of them twice: a frozen worker may be given one.
WITHIN_SECS = 45.0


@dataclass
class Crew:
    """Runs the cells of the matrix one after the other on the same fleet."""

    fleet: Fleet
    _starting: list[Worker] = field(default_factory=list)
    _undisturbed: dict[str, Story] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Whether its workers go from step to step without a message, as they do unless they are told otherwise."""
        return self.fleet.local_steps > 0

    def undisturbed(self, agent: str) -> Story:
        """The run of this agent in which nobody died; made once."""
        if agent not in self._undisturbed:
            self._undisturbed[agent] = self._run(agent, None)
        return self._undisturbed[agent]

    def disturbed(self, cell: Cell) -> Story:
        return self._run(cell.agent, cell.death)

    def _run(self, agent: str, death: Death | None) -> Story:
        try:
            self._man()
            self._clear(death)
            return self._to_the_end(self.fleet.client.enqueue(agent, "go"), death)
        except BaseException:
            # What this run left undone must not reach into the next one.
            self._give_up()
            raise

    def _man(self) -> None:
        for kind in KINDS:
            there = sum(worker.kind == kind and worker.is_alive for worker in self.fleet.workers)
            self._starting += [self.fleet.spawn(kind, concurrency=CONCURRENCY) for _ in range(2 - there)]
        while self._starting:
            self.fleet.await_ready(self._starting.pop())

    def _clear(self, death: Death | None) -> None:
        for path in [*self.fleet.folder.glob("*.jsonl"), self.fleet.folder / "death.json", self._resume_file]:
            path.unlink(missing_ok=True)
        if death is not None:
            death.write(self.fleet.folder)

    @property
    def _resume_file(self) -> Path:
        return self.fleet.folder / "resume"

    def _to_the_end(self, handle: Handle, death: Death | None) -> Story:
        saved = self._until_ended(handle)
        if death is not None:
            eventually(lambda: len(self._deaths()) == len(death.hits), what="the deaths came")
            self._bury(death)
        eventually(lambda: not open_work(self.fleet.database), within=WITHIN_SECS, what="nothing is left to do")
        found = story(handle, self.fleet.folder)
        assert all(message in found.messages[0] for message in saved), "what was saved when the death came has changed"
        return found

    def _until_ended(self, handle: Handle) -> Sequence[Message]:
        """Approve what waits until the run has ended; what was saved when the first death was seen."""
        saved: tuple[Message, ...] = ()

        def is_over() -> bool:
            nonlocal saved
            if not saved and self._deaths():
                saved = handle.messages()
            for approval in self.fleet.client.approvals(run_id=handle.id):
                handle.approve(approval.call_id)
            return handle.run().is_terminal

        try:
            eventually(is_over, within=WITHIN_SECS, what="the run has ended")
        except AssertionError as error:
            raise AssertionError(f"{error}: {handle.run()}, {open_work(self.fleet.database)}") from None
        return saved

    def _deaths(self) -> list[dict[str, Any]]:
        return noted(self.fleet.folder, "deaths")

    def _bury(self, death: Death) -> None:
        """See that each death was what it was to be, and wake the frozen."""
        for hit in self._deaths():
            worker = self._worker(hit)
            if death.kind == "kill_worker" or (death.kind == "exit" and hit["pid"] == hit["group"]):
                assert worker.process.wait(timeout=10) == (9 if death.kind == "exit" else -signal.SIGKILL)
                self._starting.append(self.fleet.spawn(worker.kind, concurrency=CONCURRENCY))
                continue
            if death.kind == "stop":
                self._wake(worker, hit)
            elif death.kind != "exception":
                eventually(lambda pid=hit["pid"]: not Path(f"/proc/{pid}").exists(), what="the child is gone")
            assert worker.is_alive, worker.text()

    def _wake(self, worker: Worker, hit: dict[str, Any]) -> None:
        eventually(lambda: time.time() > hit["at"] + 1.5 * self.fleet.lease_secs, what="the lease is long over")
        assert _state(hit["pid"]) == "T"
        self._resume_file.touch()
        os.killpg(worker.process.pid, signal.SIGCONT)
        eventually(lambda: noted(self.fleet.folder, "late"), within=WITHIN_SECS, what="the frozen step came to its end")

    def _worker(self, hit: dict[str, Any]) -> Worker:
        return next(worker for worker in self.fleet.workers if worker.process.pid == hit["group"])

    def _give_up(self) -> None:
        for worker in self.fleet.workers:
            worker.kill()
        self._starting.clear()
        with self.fleet.database.transaction() as connection:
            connection.execute(EMPTY)


def _state(pid: int) -> str:
    """One letter, as in ps; the name before it may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
