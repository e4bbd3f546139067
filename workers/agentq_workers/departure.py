"""How a worker goes: work in hand may be finished for a while, the rest is given back, so that others go on at once."""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from celery.exceptions import Reject

from agentq import recovery
from agentq.errors import AgentqError
from agentq_workers.runtime import Runtime
from agentq_workers.sweeper import Sweeper

logger = logging.getLogger(__name__)

# For killed processes to be gone.
_DEAD_SECS = 2.0
# For what is given back to be saved: a Postgres that hangs must not keep us.
_LEAVE_SECS = 10.0


class Departure:
    """The end of one worker. Begun by SIGTERM; at once after SIGQUIT or a second Ctrl-C."""

    def __init__(self, runtime: Runtime, sweeper: Sweeper, pool: Any) -> None:
        self._runtime = runtime
        self._sweeper = sweeper
        self._pool = pool
        self._begun = False

    def attach(self) -> None:
        """Hear of a SIGQUIT before Celery does: it would wait for its threads, and ask processes kindly."""
        terminate = getattr(self._pool, "terminate_job", None)
        if self._processes() and terminate is not None:
            # Of a task that is cancelled, as by a second Ctrl-C: its process does not heed a SIGTERM; see task_first.
            self._pool.terminate_job = lambda pid, _=None: terminate(pid, signal.SIGKILL)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGQUIT, lambda *_: threading.Thread(target=self.at_once, daemon=True).start())

    def begin(self) -> None:
        """Let the pool finish what it has, for as long as the settings say; counted from the first time it is told."""
        if self._begun:
            return
        self._begun = True
        self._runtime.stop()
        threading.Thread(target=self._give_up, name="agentq-departure", daemon=True).start()
        # Not waited for: a Postgres that stands still must not keep us.
        threading.Thread(target=self._sweeper.leave, name="agentq-leaving", daemon=True).start()

    def _give_up(self) -> None:
        grace = self._runtime.settings.stop_secs
        time.sleep(grace)
        logger.warning("not everything was finished within %g s (AGENTQ_STOP_SECS): giving it back", grace)
        self.at_once()

    def at_once(self) -> None:
        """Kill the pool, give back what it held, and end the process."""
        self._runtime.stop()
        self._runtime.is_leaving = True
        self._replace_none()
        for process in self._processes():
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
        give_up = time.monotonic() + _DEAD_SECS
        while any(process.is_alive() for process in self._processes()) and time.monotonic() < give_up:
            time.sleep(0.01)
        leaving = threading.Thread(target=self._leave, name="agentq-leave", daemon=True)
        leaving.start()
        leaving.join(_LEAVE_SECS)
        # Threads cannot be stopped; what they bring is refused, as their leases are others' now.
        os._exit(0)

    def end(self) -> None:
        """The pool is empty: nothing should be left, but for what a process died with just now."""
        if self._begun:
            self._begun = False
            self._leave()

    def _leave(self) -> None:
        self._sweeper.stop()
        try:
            recovery.take_back(self._runtime.sweeping, self._runtime.name, forgive=True)
        except AgentqError as error:
            logger.warning("not given back, others notice when the leases are over: %s", error)
        self._sweeper.say_gone()

    def _replace_none(self) -> None:
        """A process started for one that we kill would begin what comes back to the queue, and die in it."""
        supervisor = getattr(getattr(self._pool, "_pool", None), "_worker_handler", None)
        if supervisor is not None:
            supervisor.close()

    def _processes(self) -> list[Any]:
        # A pool of threads has no such list.
        return list(getattr(getattr(self._pool, "_pool", None), "_pool", ()))


@contextmanager
def task_first(runtime: Runtime) -> Iterator[None]:
    """A pool's process that gets a SIGTERM of its own (some send it to the whole group) finishes its task before.

    A worker that is about to end gives the message back: it may be the wake-up of what it has just given back.
    """
    if runtime.is_leaving:
        raise Reject("this worker is leaving", requeue=True)
    if runtime.is_main_process or threading.current_thread() is not threading.main_thread():
        yield
        return
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if told:
            os.kill(os.getpid(), signal.SIGTERM)
