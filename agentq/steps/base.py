"""What every step body shares: its input, its answer, and hooks called safely."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from agentq.agent import AgentSpec
from agentq.context import RunContext
from agentq.hooks import EndRun, Moment
from agentq.outcomes import Outcome
from agentq.run import Snapshot
from agentq.storage.approvals import Question
from agentq.text import told

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class Done:
    """A step's outcome, and what its event says beside phase and time (never prompts or results).

    ``questions`` are what people are asked about calls, by their index.
    """

    outcome: Outcome
    data: dict[str, Any] = field(default_factory=dict)
    questions: dict[int, Question] = field(default_factory=dict)


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


def call_hooks(agent: AgentSpec, moment: Moment, given: Callable[[], tuple[Any, ...]], faults: list[str]) -> None:
    """Call the hooks of a moment; EndRun passes, anything else is noted in ``faults`` and changes nothing."""
    for hook in agent.listeners[moment]:
        try:
            guarded(partial(getattr(hook, moment), *given()))
        except EndRun:
            raise
        except Exception as error:
            # Its text may hold what the run is about: only for those who ask for it.
            logger.warning("a hook of agent %s raised %s", agent.name, type(error).__name__)
            logger.debug("hook %s", type(hook).__name__, exc_info=True)
            faults.append(f"{type(hook).__name__}: {type(error).__name__}")
