"""The chord's barrier: it lives in Postgres, so this result backend stores nothing and counts nothing.

Celery's own barriers count deliveries: a redelivered part fires the body early, a flushed result store loses it. Here
each call's commit says whether it was the last of its batch, and the task returns that.
"""

import logging
from typing import Any

from celery import Celery, maybe_signature, states
from celery.backends.base import BaseBackend

from agentq.producer import BROKER_FAULTS

logger = logging.getLogger(__name__)


class BarrierBackend(BaseBackend):
    """Fires a chord's body when a part says that it was the last one; every other result is dropped."""

    app: Celery
    supports_native_join = True

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        """Nothing to prepare: the batch is open in the database before its chord is sent."""

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Send the body if this part's commit was the last of the batch."""
        if state != states.SUCCESS or result is not True:
            return
        try:
            body: Any = maybe_signature(request.chord, app=self.app)
            body.apply_async()
        except BROKER_FAULTS as error:
            # The step is due in the database: the sweep sends it.
            logger.warning("chord body not sent, the sweep will do it: %s", error)

    def store_result(
        self, task_id: str, result: Any, state: str, traceback: str | None = None, request: Any = None, **kwargs: Any
    ) -> Any:
        return result

    def get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        return {"status": states.PENDING, "result": None}

    def cleanup(self) -> None:
        """Nothing is kept."""
