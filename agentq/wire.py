"""The contract between processes: task names, queue names, and what a message may carry (ids, nothing private)."""

from dataclasses import dataclass

STEP_TASK = "agentq.step"
CALL_TASK = "agentq.call"

STEP_QUEUE = "agentq"
TOOL_QUEUE = "agentq.tools"


@dataclass(frozen=True)
class StepMessage:
    """Wake-up for the step after snapshot ``seq``. ``timeout_secs`` is the tool's, where the step runs one itself."""

    run_id: str
    seq: int
    queue: str = STEP_QUEUE
    timeout_secs: float | None = None


@dataclass(frozen=True)
class CallMessage:
    """Wake-up for one call of the batch opened at snapshot ``seq``."""

    run_id: str
    seq: int
    index: int
    queue: str
    timeout_secs: float


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
