"""The two tasks. Everything they know is in the engine; here is only what Celery must be told."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery

from agentq.errors import AgentqError
from agentq.saving import CallEnd
from agentq.wire import CALL_TASK, STEP_TASK
from agentq_workers.departure import task_first
from agentq_workers.runtime import Runtime

logger = logging.getLogger(__name__)

# Options of the task, never of the user's app: a message is given back when its worker dies, results are not kept.
OPTIONS: dict[str, Any] = {
    "bind": True,
    "acks_late": True,
    "reject_on_worker_lost": True,
    "ignore_result": True,
    "serializer": "json",
}


@contextmanager
def in_one_line() -> Iterator[None]:
    """One line instead of a traceback, say while Postgres is away: the sweep finds what was left undone."""
    try:
        yield
    except AgentqError as error:
        logger.warning("left to the sweep: %s", error)


def register(app: Celery, runtime: Runtime) -> None:
    """Put the tasks on the app."""

    @app.task(name=STEP_TASK, **OPTIONS)
    def step(_: Any, run_id: str, seq: int) -> None:
        with task_first(runtime), in_one_line():
            runtime.engine.run_step(run_id, seq)

    @app.task(name=CALL_TASK, **OPTIONS)
    def call(self: Any, run_id: str, seq: int, index: int) -> bool:
        end = CallEnd()
        in_chord = self.request.chord is not None
        with task_first(runtime):
            with in_one_line():
                end = runtime.engine.run_call(run_id, seq, index)
            if end.next is not None and in_chord:
                self.replace(runtime.dispatcher.signature(end.next))
            wake_up = end.next or end.last
            if wake_up is not None and not in_chord:
                runtime.engine.saver.send([wake_up])
        # For the barrier: only the call whose commit was the last of its batch sends the chord's body.
        return end.last is not None
