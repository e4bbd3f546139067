"""What a step may bring, and what follows from it: the values that ``transition.decide`` takes and gives."""

from dataclasses import dataclass
from typing import Any

from agentq.errors import ErrorInfo
from agentq.messages import AssistantMessage, Message, ToolResult, Usage
from agentq.run import ApprovalKind, CallKind, Ending, OnUnknown, OpenCall, Snapshot


@dataclass(frozen=True)
class Recalled:
    """The recall step is done; ``facts`` go with the coming model call."""

    facts: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedCall:
    """A call checked against the agent's tools. ``result`` is there when it cannot run (bad name, bad arguments)."""

    call_id: str
    tool: str
    kind: CallKind = "tool"
    queue: str = ""
    timeout_secs: float = 60.0
    on_unknown: OnUnknown = "report"
    review: bool = False
    result: ToolResult | None = None


@dataclass(frozen=True)
class Output:
    """A structured answer: ``value`` when it fits, ``problem`` when not, ``fault`` when nobody can tell.

    ``index`` is the call it came in (one of those that are taken), None when it came as text.
    """

    value: Any = None
    problem: str | None = None
    index: int | None = None
    fault: ErrorInfo | None = None

    @property
    def is_accepted(self) -> bool:
        return self.problem is None and self.fault is None


@dataclass(frozen=True)
class Replied:
    """The model answered. ``calls`` matches ``message.calls``; ``output`` is set where the agent wants one."""

    message: AssistantMessage
    usage: Usage
    calls: tuple[PlannedCall, ...] = ()
    output: Output | None = None


@dataclass(frozen=True)
class ModelFailed:
    """The provider refused or failed. ``models`` is how many the agent has; ``jitter`` is in [0, 1).

    ``index`` is the number of the one that was called (None: the one whose turn it was), ``provider`` and ``model``
    name it. Where its account is limited, ``cooldown`` is the number of that cool-down, and ``turn_secs`` when this
    run may call again. ``has_free``: a model behind it could be called at once.
    """

    error: ErrorInfo
    retryable: bool
    retry_after: float | None
    models: int
    jitter: float
    index: int | None = None
    provider: str = ""
    model: str = ""
    turn_secs: float = 0.0
    cooldown: int = 0
    has_free: bool = False


@dataclass(frozen=True)
class CoolingDown:
    """Nothing was called: others were refused, and the run's turn comes in ``wait_secs``; see ModelFailed."""

    index: int
    wait_secs: float
    cooldown: int


@dataclass(frozen=True)
class Reviewed:
    """The calls that need a person, by index; none lets the batch run.

    ``answered`` are those that an earlier decision stands for, ``results`` the results of those it does not let run.
    """

    gated: tuple[int, ...] = ()
    answered: tuple[int, ...] = ()
    results: tuple[tuple[int, ToolResult], ...] = ()


@dataclass(frozen=True)
class Decided:
    """People have decided on every gated call; the rejected ones are closed in the snapshot already."""


@dataclass(frozen=True)
class BatchOpened:
    """The batch was fanned out; its calls report one by one. ``results``: those of calls that cannot run any more."""

    results: tuple[tuple[int, ToolResult], ...] = ()


@dataclass(frozen=True)
class CallsFinished:
    """Every call has its result: ``results`` are those of this step. ``fatal`` is a tool's fault that ends the run."""

    results: tuple[tuple[int, ToolResult], ...] = ()
    fatal: ErrorInfo | None = None


@dataclass(frozen=True)
class Asked:
    """A person is asked about the only call, or it was handed to the outside: see Approval.kind."""

    index: int
    kind: ApprovalKind = "outcome"


@dataclass(frozen=True)
class HookEnded:
    """A hook ended the run. ``message`` is the reply it saw, ``results`` what had come back by then."""

    output: Any = None
    message: AssistantMessage | None = None
    usage: Usage = Usage()
    results: tuple[tuple[int, ToolResult], ...] = ()


@dataclass(frozen=True)
class Failed:
    """``usage`` is that of a reply that is not kept."""

    error: ErrorInfo
    usage: Usage | None = None


@dataclass(frozen=True)
class Cancelled:
    """Somebody asked for it while no step was running."""


Outcome = (
    Recalled
    | Replied
    | ModelFailed
    | CoolingDown
    | Reviewed
    | Decided
    | BatchOpened
    | CallsFinished
    | Asked
    | HookEnded
    | Failed
    | Cancelled
)


@dataclass(frozen=True)
class Transition:
    """The change as a value; storage applies it only if seq and lease still match.

    ``messages`` are (position, message) pairs; ``opened`` are new calls, ``closed`` the results of old and new ones;
    ``delay_secs`` is when the next step is due (None: not by time); ``approvals`` are the calls put before a person,
    who is asked what ``asks`` says; ``answered`` those that an earlier decision stands for. ``hears``: messages that
    were sent into the run are among its own now, up to ``snapshot.heard``.
    """

    snapshot: Snapshot
    messages: tuple[tuple[int, Message], ...] = ()
    opened: tuple[OpenCall, ...] = ()
    closed: tuple[tuple[int, ToolResult], ...] = ()
    approvals: tuple[OpenCall, ...] = ()
    asks: ApprovalKind = "approval"
    answered: tuple[OpenCall, ...] = ()
    delay_secs: float | None = None
    ending: Ending | None = None
    note: dict[str, Any] | None = None
    hears: bool = False
