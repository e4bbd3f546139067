"""The app of a worker that dies where the test says: ``celery -A tests.crash.worker worker``."""

from typing import Any, NoReturn

from celery.exceptions import Ignore
from celery.signals import task_postrun

from agentq.wire import CALL_TASK
from agentq_workers import make_app
from agentq_workers.chord import BarrierBackend
from tests.crash.agents import AGENTS, FOLDER
from tests.crash.death import die, probe_in, task_ended

probe = probe_in(FOLDER, die)


class Barrier(BarrierBackend):
    """The barrier with a point of its own: the chord's body is sent."""

    def on_chord_part_return(self, request: Any, state: str, result: Any, **options: Any) -> None:
        super().on_chord_part_return(request, state, result, **options)
        if result is True:
            probe("body", "call")


app = make_app(agents=AGENTS.values(), probe=probe)
app.conf.result_backend = f"{__name__}:Barrier"
replace = app.tasks[CALL_TASK].replace


def replaced(signature: Any) -> NoReturn:
    """The lane's next call is sent by Celery, which knows no probe."""
    try:
        replace(signature)
    except Ignore:
        probe("announced", "call")
        raise
    raise AssertionError("Celery did not replace the task")


app.tasks[CALL_TASK].replace = replaced
task_postrun.connect(task_ended, weak=False)
