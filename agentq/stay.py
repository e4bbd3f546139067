"""How long a run may go on in the process that is at it, before it queues up behind the others again."""

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

# Others wait no longer than this for a thread that goes from step to step of one run, beyond the step it is in. Less
# than what Celery gives a tool beyond its time limit: a later call of a lane must not be stopped for the earlier ones.
STAY_SECS = 4.0


class Stay:
    """One process's time with one run. ``steps`` more steps may follow the first one, while ``may_stay`` says so.

    What was done in it is told in one line of the log, at its end: with several lines a millisecond nobody reads any.
    """

    def __init__(self, steps: int, may_stay: Callable[[], bool]) -> None:
        self._done: list[str] = []
        self._where = ""
        self._left = steps
        self._until = time.monotonic() + STAY_SECS
        self._may_stay = may_stay

    def goes_on(self) -> bool:
        """Whether the next step may follow here; asked once a step."""
        self._left -= 1
        return self._left >= 0 and time.monotonic() < self._until and self._may_stay()

    def note(self, what: str, where: str) -> None:
        """Something was done and saved, after which the run stands there."""
        self._done.append(what)
        self._where = where

    def tell(self, whose: str) -> None:
        """The end: say what was done."""
        if self._done:
            logger.info("%s: %s, then %s", whose, ", ".join(self._done), self._where)
