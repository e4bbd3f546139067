"""What happens when a worker starts, forks and stops."""

import os
import socket
import sys
from typing import Any

from celery import Celery, bootsteps
from celery.signals import worker_init, worker_process_init

from agentq.errors import AgentqError
from agentq.storage import migrate
from agentq_workers.runtime import Runtime
from agentq_workers.sweeper import Sweeper


def attach(app: Celery, runtime: Runtime) -> None:
    """Hook the runtime to the app's workers: refuse a schema that is behind, sweep, and survive forks."""

    class Sweep(bootsteps.StartStopStep):
        # After the pool: children are forked before there is a thread or a connection to inherit.
        requires = ("celery.worker.components:Pool",)

        def start(self, worker: Any) -> None:
            pool = type(worker.pool).__module__.rsplit(".", 1)[-1]
            self.sweeper = Sweeper(
                runtime, pool=pool, queues=[str(name) for name in worker.app.amqp.queues.consume_from]
            )
            self.sweeper.start()

        def stop(self, worker: Any) -> None:
            self.sweeper.stop()

    app.steps["worker"].add(Sweep)
    worker_init.connect(_before_start(app, runtime), weak=False)
    worker_process_init.connect(lambda **_: runtime.after_fork(), weak=False)


def _before_start(app: Celery, runtime: Runtime) -> Any:
    def check(sender: Any = None, **_: Any) -> None:
        if getattr(sender, "app", app) is not app:
            return
        # Before the fork, so that the leases and events of the pool's children say which worker it was.
        runtime.name = f"{getattr(sender, 'hostname', socket.gethostname())}:{os.getpid()}"
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

    return check
