"""What happens when a worker starts, forks and stops."""

import gc
import os
import socket
import sys
from secrets import token_hex
from typing import Any

from celery import Celery, bootsteps
from celery.signals import worker_init, worker_process_init, worker_shutdown, worker_shutting_down

from agentq.errors import AgentqError
from agentq.storage import migrate
from agentq_workers.departure import Departure
from agentq_workers.runtime import Runtime
from agentq_workers.sweeper import Sweeper


def attach(app: Celery, runtime: Runtime) -> None:
    """Hook the runtime to the app's workers: refuse a schema that is behind, sweep, and survive forks."""

    class Sweep(bootsteps.StartStopStep):
        # After the pool: children are forked before there is a thread or a connection to inherit.
        requires = ("celery.worker.components:Pool",)

        def start(self, worker: Any) -> None:
            kind = type(worker.pool).__module__.rsplit(".", 1)[-1]
            queues = [str(name) for name in worker.app.amqp.queues.consume_from]
            sweeper = Sweeper(runtime, pool=kind, queues=queues, children=lambda: _children(worker.pool))
            self.departure = Departure(runtime, sweeper, worker.pool)
            worker_shutdown.connect(lambda **_: self.departure.end(), weak=False)
            # Not only when it is our turn to be stopped: the consumer's may hang with its broker.
            worker_shutting_down.connect(lambda how, **_: self.departure.begin() if how == "Warm" else None, weak=False)
            self.departure.attach()
            sweeper.start()

        def stop(self, worker: Any) -> None:
            """Told to go gently: the pool is stopped next, and waits for its tasks."""
            self.departure.begin()

        def terminate(self, worker: Any) -> None:
            """Told to go now."""
            self.departure.at_once()

    app.steps["worker"].add(Sweep)
    worker_init.connect(_before_start(app, runtime), weak=False)
    worker_process_init.connect(lambda **_: runtime.after_fork(), weak=False)


def _children(pool: Any) -> set[int]:
    """The process ids of a prefork pool; a pool of threads has none."""
    return {process.pid for process in tuple(getattr(getattr(pool, "_pool", None), "_pool", ())) if process.pid}


def _before_start(app: Celery, runtime: Runtime) -> Any:
    def check(sender: Any = None, **_: Any) -> None:
        if getattr(sender, "app", app) is not app:
            return
        # Before the fork, so that the leases and events of the pool's children say which worker it was.
        # A name of its own, also where two containers have the same host name and number their processes alike.
        runtime.name = f"{getattr(sender, 'hostname', socket.gethostname())}:{token_hex(2)}:{os.getpid()}"
        if not runtime.agents:
            sys.stderr.write("agentq: this worker has no agents, so its runs wait for another; set AGENTQ_AGENTS\n")
        try:
            migrate.check(runtime.database)
        except AgentqError as error:
            sys.stderr.write(f"agentq: {error}\n")
            # An exception would be logged and passed over by the signal; a worker must not start on a wrong schema.
            raise SystemExit(2 if error.code.startswith(("schema", "config")) else 3) from error
        # The pool's children must not inherit a connection.
        runtime.database.dispose()
        # What is there now stays for good. The collector would write to all of it in each child, which then has a copy.
        gc.collect()
        gc.freeze()

    return check
