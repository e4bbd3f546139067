"""What every step body shares: its input, its answer, and the user's code called safely."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentq.context import RunContext
from agentq.outcomes import Outcome
from agentq.run import Snapshot
from agentq.storage.approvals import Question
from agentq.storage.journal import NewEvent
from agentq.text import told

T = TypeVar("T")


@dataclass
class Done:
    """A step's outcome, and what its event says beside phase and time (never prompts or results).

    ``questions`` are what people are asked about calls, by their index. ``before`` are events that come before its own,
    behind so many that are ``streamed`` already.
    """

    outcome: Outcome
    data: dict[str, Any] = field(default_factory=dict)
    questions: dict[int, Question] = field(default_factory=dict)
    before: list[NewEvent] = field(default_factory=list)
    streamed: int = 0


def is_stopped(error: BaseException) -> bool:
    """Whether this is the pool ending its process: billiard's handler of a signal exits with -(256 - signal)."""
    return isinstance(error, SystemExit) and isinstance(error.code, int) and -256 < error.code < -192


def guarded(call: Callable[[], T]) -> T:
    """Call the user's code; what is no Exception (SystemExit, CancelledError) becomes one: it would end the thread."""
    try:
        return call()
    except Exception:
        raise
    except BaseException as error:
        if is_stopped(error):
            raise
        raise RuntimeError(told(error)) from error


def context(snapshot: Snapshot, **call: Any) -> RunContext:
    return RunContext(
        run_id=snapshot.run_id,
        agent=snapshot.agent,
        thread_id=snapshot.thread_id,
        context=snapshot.context,
        **call,
    )
