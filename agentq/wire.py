"""The contract between processes: task names, queue names, and what a message may carry (ids, nothing private)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

STEP_TASK = "agentq.step"
CALL_TASK = "agentq.call"

STEP_QUEUE = "agentq"
TOOL_QUEUE = "agentq.tools"

Priority = Literal["high", "normal", "low"]
# As they are stored and sent: what is smaller goes first.
RANKS: Mapping[Priority, int] = {"high": -1, "normal": 0, "low": 1}
PRIORITIES: Mapping[int, Priority] = {rank: name for name, rank in RANKS.items()}


@dataclass(frozen=True)
class StepMessage:
    """Wake-up for the step after snapshot ``seq``. ``timeout_secs`` is the tool's, where the step runs one itself.

    ``priority`` is the run's rank: see RANKS.
    """

    run_id: str
    seq: int
    queue: str = STEP_QUEUE
    timeout_secs: float | None = None
    priority: int = 0


@dataclass(frozen=True)
class CallMessage:
    """Wake-up for one call of the batch opened at snapshot ``seq``."""

    run_id: str
    seq: int
    index: int
    queue: str
    timeout_secs: float
    priority: int = 0


@dataclass(frozen=True)
class BatchMessage:
    """A chord: the first calls, one a lane, and the step that follows the last of them."""

    lanes: tuple[CallMessage, ...]
    body: StepMessage


WakeUp = StepMessage | CallMessage | BatchMessage


def physical(queue: str, prefix: str) -> str:
    """The broker's name of a queue: agentq's own two carry the prefix, a user's stays as it is."""
    if queue == STEP_QUEUE or queue.startswith(f"{STEP_QUEUE}."):
        return prefix + queue.removeprefix(STEP_QUEUE)
    return queue
