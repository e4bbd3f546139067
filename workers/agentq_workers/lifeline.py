"""End with the process that started us: a supervisor killed with -9 must not leave its workers behind."""

import logging
import os
import signal
import threading
import time
from typing import Any

from celery import Celery, bootsteps

logger = logging.getLogger(__name__)

# The reading end of a pipe that only the supervisor holds open. Internal: agentq worker sets it for its children.
VARIABLE = "AGENTQ_LIFELINE_FD"
# For a step that does not come back; whoever takes it over does it again.
PATIENCE_SECS = 60.0


def attach(app: Celery) -> None:
    """Watch the lifeline named by the environment, if any, once the pool has been forked."""
    number = os.environ.pop(VARIABLE, None)
    if number is None:
        return
    descriptor = int(number)
    os.set_inheritable(descriptor, False)

    class Watch(bootsteps.StartStopStep):
        requires = ("celery.worker.components:Pool",)

        def start(self, worker: Any) -> None:
            threading.Thread(target=_watch, args=(descriptor,), name="agentq-lifeline", daemon=True).start()

    app.steps["worker"].add(Watch)


def _watch(descriptor: int) -> None:
    os.read(descriptor, 1)
    logger.warning("the process that started this worker is gone: stopping")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_SECS)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
