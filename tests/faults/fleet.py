"""A fleet with a supervisor, and what must be true of every run whatever happened to the servers below it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from agentq import AssistantMessage, Handle, ToolMessage, UserMessage
from agentq.errors import UnavailableError
from tests.faults.agents import NUMBERS
from tests.waiting import eventually
from tests.workers.fleet import Fleet, Worker

T = TypeVar("T")

AGENTS = Path(__file__).parent / "agents.py"


@dataclass
class SupervisedFleet(Fleet):
    """Workers that end are started again, as systemd would; ``deaths`` has those that did."""

    agents: Path = AGENTS
    deaths: list[Worker] = field(default_factory=list)

    def both(self, *, concurrency: int = 8) -> tuple[Worker, Worker]:
        """Started at the same time."""
        steps, tools = (self.spawn(kind, concurrency=concurrency) for kind in ("steps", "tools"))
        for worker in (steps, tools):
            self.await_ready(worker)
        return steps, tools

    def supervise(self) -> None:
        for worker in list(self.workers):
            if worker.process.poll() is not None and worker not in self.deaths:
                self.deaths.append(worker)
                self.spawn(worker.kind, concurrency=worker.concurrency, queues=worker.queues)

    def until(self, ask: Callable[[], T], *, within: float, what: str = "") -> T:
        """Wait as ``eventually``, being a supervisor meanwhile; a database that is away is no answer."""

        def supervised() -> T | None:
            self.supervise()
            try:
                return ask()
            except UnavailableError:
                return None

        answer = eventually(supervised, within=within, what=what)
        assert answer is not None
        return answer

    def complete(self, handles: Sequence[Handle], *, within: float, may_interrupt: bool = False) -> None:
        """Wait for the end of all runs: each is as if nothing had happened, and nothing was done twice.

        With ``may_interrupt`` calls may have been answered as interrupted, each done once or not at all.
        """
        self.until(
            lambda: all(handle.status() not in ("queued", "running") for handle in handles),
            within=within,
            what="; ".join(map(repr, handles)),
        )
        for handle in handles:
            self.assert_complete(handle)
            interrupted = self.assert_done_once(handle)
            assert may_interrupt or not interrupted, f"{handle}: interrupted in {interrupted}"

    def assert_complete(self, handle: Handle) -> None:
        """The run ended well, with one result for each call, in the order asked."""
        assert handle.status() == "completed", f"{handle.run()}"
        assert handle.result().text == "done"
        messages = handle.messages()
        assert len([message for message in messages if isinstance(message, UserMessage)]) == 1
        asked = [call.id for message in messages if isinstance(message, AssistantMessage) for call in message.calls]
        assert len(asked) == len(NUMBERS[handle.run().agent])
        assert [message.result.call_id for message in messages if isinstance(message, ToolMessage)] == asked

    def assert_done_once(self, handle: Handle) -> list[int]:
        """What was done was done once and is told as it was; the answer: the calls that say they were interrupted."""
        results = [message.result for message in handle.messages() if isinstance(message, ToolMessage)]
        begun, ended = (
            [call["n"] for call in self.calls(kind) if call["run"] == handle.id] for kind in ("begin", "end")
        )
        interrupted = []
        for n, result in zip(NUMBERS[handle.run().agent], results, strict=True):
            if result.code == "interrupted":
                assert begun.count(n) <= 1
                interrupted.append(n)
            else:
                assert (result.code, result.text) == (None, f"did {n}")
                assert (begun.count(n), ended.count(n)) == (1, 1), f"{handle}: call {n} begun {begun}, ended {ended}"
        return interrupted

    def begun(self, handle: Handle, count: int) -> None:
        """Wait until so many calls of a run have begun."""
        self.until(
            lambda: len([call for call in self.calls("begin") if call["run"] == handle.id]) >= count,
            within=20,
            what=f"{count} calls of {handle} begun",
        )

    def enqueue(self, agent: str, count: int = 1) -> list[Handle]:
        return [self.client.enqueue(agent, f"{agent} {n}", allow_unknown=True) for n in range(count)]
