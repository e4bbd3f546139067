"""A run and its state: the words that storage, steps and callers share."""

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, TypeAdapter

from agentq.errors import ErrorInfo
from agentq.limits import Limits
from agentq.messages import Message, Usage, UserMessage
from agentq.values import replace
from agentq.wire import Priority

Status = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]
Phase = Literal["recall", "model", "review", "tools"]
StopReason = Literal["final_answer", "output", "hook_end", "content_filter"]
CallKind = Literal["tool", "agent", "output"]
CallStatus = Literal["pending", "announced", "running", "asked", "done"]
# What becomes of a call whose worker was lost while it ran; see agentq.tool.
OnUnknown = Literal["retry", "report", "ask", "probe"]
ApprovalKind = Literal["approval", "outcome", "deferred"]
ApprovalStatus = Literal[
    "pending",
    "approved",
    "rejected",
    "responded",
    "expired",
    "closed",
    "happened",
    "not_happened",
    "unknown",
    "completed",
    "failed",
]
# What is done with a call that nobody decided on in time; see ApprovalRule.
OnExpiry = Literal["report", "approve", "fail"]

TERMINAL: frozenset[Status] = frozenset({"completed", "failed", "cancelled"})


def _known_limits(value: Any) -> Any:
    """Without the limits of a newer release, so that a run goes on after a roll-back."""
    return (
        {key: item for key, item in value.items() if key in Limits.model_fields} if isinstance(value, dict) else value
    )


@dataclass(frozen=True)
class Progress:
    """The part of a snapshot that only the loop reads: counts, usage, and which model is being tried."""

    version: Literal[1] = 1
    limits: Annotated[Limits | None, BeforeValidator(_known_limits)] = None
    limit_overrides: dict[str, Any] = field(default_factory=dict)
    model_calls: int = 0
    tool_calls: int = 0
    invalid_outputs: int = 0
    empty_replies: int = 0
    usage: Usage = Usage()
    model_index: int = 0
    model_tries: int = 0
    # The cool-down that it has waited for, see storage/cooldowns.py; and what the models said that were given up.
    cooldown: int = 0
    given_up: tuple[dict[str, Any], ...] = ()
    facts: tuple[str, ...] = ()


_PROGRESS = TypeAdapter(Progress)


def dump_progress(progress: Progress, *, exclude: set[str] | None = None) -> str:
    """JSON text without what is as usual, but for its version: a later release can tell which release stored it."""
    rest = _PROGRESS.dump_json(progress, exclude=exclude, exclude_defaults=True).decode()[1:]
    return f'{{"version":{progress.version}{"," if rest != "}" else ""}{rest}'


def load_progress(text: str) -> Progress:
    """Raises pydantic's ValidationError for that of a release that is not understood here."""
    return _PROGRESS.validate_json(text)


@dataclass(frozen=True)
class OpenCall:
    """One call of the open turn: where its result goes, how it may run, and whether it has come back.

    ``begun`` says that a worker has started on it, be it one that was lost: it may have taken effect. ``arguments`` are
    the model's, where they came along.
    """

    index: int
    position: int
    call_id: str
    tool: str
    kind: CallKind = "tool"
    queue: str = ""
    timeout_secs: float = 60.0
    on_unknown: OnUnknown = "report"
    needs_approval: bool = False
    status: CallStatus = "pending"
    begun: bool = False
    arguments: str | None = None

    @property
    def may_run_again(self) -> bool:
        """Whether it may be begun a second time while nobody knows what the first did."""
        return self.on_unknown in ("retry", "probe")


@dataclass(frozen=True)
class Snapshot:
    """The state after a step. ``seq`` numbers it; ``turn`` counts replies; ``calls`` are those of the open turn.

    ``is_single``: the turn's only call has no row of its own, the run's row says all of it.
    """

    run_id: str
    agent: str
    seq: int = 0
    status: Status = "queued"
    phase: Phase = "recall"
    turn: int = 0
    depth: int = 0
    message_count: int = 0
    event_count: int = 0
    is_single: bool = False
    cancel_requested: bool = False
    progress: Progress = field(default_factory=Progress)
    calls: tuple[OpenCall, ...] = ()
    thread_id: str | None = None
    context: dict[str, Any] = field(default_factory=dict)
    # Seconds since the run was enqueued, or since the time it was enqueued for, when the snapshot was loaded, by the
    # database's clock.
    age_secs: float = 0.0
    # Its rank: see RANKS in wire.py.
    priority: int = 0
    concurrency_key: str | None = None
    # Whether it had one of its key's places then; None where it needs none. See storage/line.py.
    has_place: bool | None = None
    # Another run of its thread waits for this one; so many messages were sent into it, and so many it has taken up;
    # those that it takes up with this step, which saves them at their places.
    is_followed: bool = False
    steered: int = 0
    heard: int = 0
    joined: tuple[tuple[int, UserMessage], ...] = ()
    # The version of its agent that it goes on with, None before its first step; and another one that it goes on with
    # from the next commit on.
    agent_version: str | None = None
    new_version: str | None = None

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def secs_left(self) -> float | None:
        """Until the run's time limit; None where it has none."""
        return None if self.limits.run_secs is None else self.limits.run_secs - self.age_secs

    @property
    def limits(self) -> Limits:
        return self.progress.limits or Limits()

    @property
    def pending(self) -> tuple[OpenCall, ...]:
        return tuple(call for call in self.calls if call.status != "done")

    @property
    def only_call(self) -> OpenCall | None:
        """The call that a tools step runs itself, None where it fans out."""
        pending = self.pending if self.phase == "tools" else ()
        return pending[0] if len(pending) == 1 and pending[0].kind == "tool" else None

    def begin(self) -> "Snapshot":
        """The snapshot as a step works on it that may run a call itself."""
        only = self.only_call
        if only is None:
            return self
        return replace(self, calls=tuple(replace(call, begun=True) if call == only else call for call in self.calls))

    def close_call(self, index: int) -> "Snapshot":
        done = tuple(replace(call, status="done") if call.index == index else call for call in self.calls)
        return replace(self, calls=done)


@dataclass(frozen=True)
class Ending:
    """How a run ended: a stop reason with text or output, or an error."""

    stop_reason: StopReason | None = None
    text: str | None = None
    output: Any = None
    error: ErrorInfo | None = None


@dataclass(frozen=True)
class Approval:
    """A call that waits for, or got, a person's decision. ``arguments`` is the JSON text the model sent.

    ``id`` is its own, also where a call is asked about twice, or a model gives one ``call_id`` to several calls.
    ``kind`` is what is asked: ``"approval"``, may it run; ``"outcome"``, did it take effect before its worker was lost;
    ``"deferred"``, the result of a call that was handed to the outside.
    ``idempotency_key`` is the one its tool gets, or got: what to look for at the destination. ``question`` is what the
    tool said when it asked by itself. After ``expires_at`` no decision is taken, and ``on_expiry`` is done. A decision
    is bound to the arguments with ``arguments_sha256``; ``edited`` is the JSON text that a person put in their place,
    ``sticky`` says that it was for the rest of the run. Times are aware, by the database's clock.
    """

    run_id: str
    call_id: str
    tool: str
    arguments: str
    status: ApprovalStatus
    requested_at: datetime
    kind: ApprovalKind = "approval"
    idempotency_key: str = ""
    decided_by: str | None = None
    reason: str | None = None
    decided_at: datetime | None = None
    agent: str = ""
    question: str = ""
    arguments_sha256: str = ""
    edited: str | None = None
    sticky: bool = False
    expires_at: datetime | None = None
    on_expiry: OnExpiry = "report"
    id: str = ""


@dataclass(frozen=True)
class Event:
    """Something that happened to a run. Numbers of one run have no gaps; ``data`` never holds prompts or results."""

    run_id: str
    number: int
    type: str
    at: datetime
    data: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A run as an operator sees it.

    ``start_at`` is the time it was enqueued for, where that was not at once. ``has_place`` says of a run with a
    ``concurrency_key`` whether it is one of those at work, or waits in the line (False); None where it needs no place.
    ``is_held``: it waits for its turn on its thread, or ended while it did. ``agent_version``: the version of its agent
    that it goes on with, None before its first step; ``outdated_at``: since when it is held because its agent has
    changed, to the version ``outdated_by`` (``on_change="hold"``).
    """

    id: str
    agent: str
    status: Status
    phase: Phase
    seq: int
    turn: int
    attempt: int
    created_at: datetime
    updated_at: datetime
    thread_id: str | None = None
    parent_run_id: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    finished_at: datetime | None = None
    due_at: datetime | None = None
    lease_until: datetime | None = None
    worker: str | None = None
    cancel_requested: bool = False
    stop_reason: StopReason | None = None
    text: str | None = None
    output: Any = None
    error: ErrorInfo | None = None
    usage: Usage = Usage()
    model_calls: int = 0
    tool_calls: int = 0
    start_at: datetime | None = None
    priority: Priority = "normal"
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    has_place: bool | None = None
    is_held: bool = False
    agent_version: str | None = None
    outdated_at: datetime | None = None
    outdated_by: str | None = None

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def cost(self) -> Decimal | None:
        """What its model calls and those of its sub-agents cost, in US dollars; None where that is not known."""
        return self.usage.cost


@dataclass(frozen=True)
class ThreadInfo:
    """A stored conversation as an operator sees it: how many ``runs`` it has, and its last one.

    ``last_run_id``, ``agent`` and ``status`` are that run's; None where it has none, such as a copy of another thread.
    """

    id: str
    created_at: datetime
    runs: int
    last_run_id: str | None = None
    agent: str | None = None
    status: Status | None = None


@dataclass(frozen=True)
class Result:
    """What a caller gets from a run that ended, or that waits for a person (``stop_reason == "needs_approval"``).

    ``output`` is checked against the agent's schema; for a hook's ending it is what the hook gave.
    """

    run_id: str
    status: Status
    stop_reason: StopReason | Literal["needs_approval"] | None
    text: str | None
    output: Any
    usage: Usage
    approvals: tuple[Approval, ...] = ()
    messages: tuple[Message, ...] = ()
