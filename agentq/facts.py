"""What the rows say of a run and of its sub-agents' runs, all read at one moment: the ground for ``why``."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Json

from agentq.errors import ErrorInfo
from agentq.run import TERMINAL, Phase, Status
from agentq.wire import STEP_QUEUE, TOOL_QUEUE, physical

# For hints of processes that need not know where the agents are.
EXAMPLE = "my_agents.py"
START_WORKER = f"agentq worker --agents {EXAMPLE}"


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True)


class _Work(_Row):
    """A row that a worker may have: a step, or a call."""

    queue: str
    attempt: int
    lease_token: str | None
    lease_until: datetime | None
    claimed_at: datetime | None
    worker: str | None
    sweep_at: datetime | None


class CallFacts(_Work):
    # Text, not a CallStatus: a newer release may know more of them.
    status: str
    index: int
    call_id: str
    tool: str
    kind: str
    timeout_secs: float
    child_run_id: str | None
    announced_at: datetime | None


class ApprovalFacts(_Row):
    """A call that is put before a person, or is done outside; ``kind`` says what is asked, until ``expires_at``."""

    index: int
    call_id: str
    tool: str
    requested_at: datetime
    kind: str = "approval"
    expires_at: datetime | None = None


class EventFacts(_Row):
    type: str
    data: Json[dict[str, Any]]


class RunFacts(_Work):
    """A run with the calls of its open turn, what people are asked about it, and the last that happened to it."""

    id: str
    agent: str
    status: Status
    phase: Phase
    seq: int
    turn: int
    open_calls: int
    due_at: datetime | None
    timeout_secs: float | None
    cancel_requested: bool
    parent_run_id: str | None
    stop_reason: str | None
    error: Json[ErrorInfo] | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    deadline_at: datetime | None = None
    # When it was enqueued for later: for when. Of its concurrency key: whether it has a place, and how many have one.
    start_at: datetime | None = None
    concurrency_key: str | None = None
    has_place: bool | None = None
    at_work: int = 0
    # It waits for its turn on its thread, behind that run.
    held: bool | None = None
    thread_id: str | None = None
    behind: str | None = None
    # Which version of its agent it needs, since when others leave it alone, and which one they have.
    agent_version: str | None = None
    outdated_at: datetime | None = None
    outdated_by: str | None = None
    calls: tuple[CallFacts, ...] = ()
    approvals: tuple[ApprovalFacts, ...] = ()
    last_event: EventFacts | None = None

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def is_for_later(self) -> bool:
        """Nobody has begun it yet, as it was enqueued for another time."""
        return self.start_at is not None and self.seq == 0 and self.worker is None

    @property
    def open(self) -> tuple[CallFacts, ...]:
        return tuple(call for call in self.calls if call.status != "done")


class LiveWorker(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def queues(self) -> tuple[str, ...]: ...

    @property
    def agents(self) -> tuple[str, ...]: ...

    @property
    def versions(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class Gap:
    """Why no running worker takes some work, and what to do."""

    what: str
    fix: str


class Fleet:
    """The workers that were heard of lately; ``prefix`` is what agentq's own queues begin with here."""

    def __init__(self, workers: Iterable[LiveWorker], prefix: str = STEP_QUEUE) -> None:
        self._workers = tuple(workers)
        self._prefix = prefix

    @property
    def is_empty(self) -> bool:
        return not self._workers

    def has_version(self, agent: str, version: str | None) -> bool:
        """Whether a worker has this version of an agent."""
        return any(worker.versions.get(agent, "") == version for worker in self._workers)

    def consumers(self, queue: str, *, having: str | None = None) -> int:
        """How many consume it, of those that have this agent where one is given."""
        return sum(having is None or having in worker.agents for worker in self._on(queue))

    def lacks(self, worker: str, agent: str) -> bool:
        """Whether the worker, or the one that the process belongs to, is known and does not have the agent."""
        return any(each.id == worker.partition("/")[0] and agent not in each.agents for each in self._workers)

    def _on(self, queue: str) -> list[LiveWorker]:
        return [worker for worker in self._workers if physical(queue, self._prefix) in worker.queues]

    def gap(self, queue: str, agent: str) -> Gap | None:
        """What is missing for work of ``agent`` on ``queue`` (as the rows name it); None where somebody takes it."""
        name = physical(queue, self._prefix)
        options = {STEP_QUEUE: "", TOOL_QUEUE: " --only tools"}.get(queue, f" --only tools --queues {name}")
        fix = f"agentq worker{options} --agents {EXAMPLE}"
        if self.is_empty:
            return Gap(f"a worker on queue {name}: no worker is running", fix)
        if not self._on(queue):
            return Gap(f"a worker on queue {name}: no running worker consumes it", fix)
        if not any(agent in worker.agents for worker in self._on(queue)):
            what = f"a worker that has agent {agent!r}: none of those on queue {name} has it"
            return Gap(what, f"{fix}, with the agent in it")
        return None
