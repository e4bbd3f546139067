"""What this process knows of models that refuse calls for now; asked before each call, and told of each refusal."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentq.errors import UnavailableError
from agentq.storage import cooldowns
from agentq.storage.cooldowns import Place
from agentq.storage.database import Database

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Known:
    """A cool-down: which it is, for how many seconds nobody calls, how long the next in line waits, and why."""

    epoch: int
    left_secs: float
    wait_secs: float
    code: str


class Cooldowns:
    """Read with the claims of steps, so that it costs no statement; a step that follows in its process goes by that.

    Thread-safe: the mapping is never changed, only replaced.
    """

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._read_at = 0.0
        self._known: dict[tuple[str, str], Known] = {}

    def learn(self, rows: Sequence[Sequence[Any]] | None) -> None:
        """What a claim has read; None where it did not look."""
        if rows is not None:
            self._read_at, self._known = self._clock(), {(row[0], row[1]): Known(*row[2:]) for row in rows}

    def of(self, account: str | None, model: str) -> Known | None:
        """The cool-down of a model, as of now; None where calls are free."""
        known = self._known.get((account, model)) if account is not None and self._known else None
        if known is None:
            return None
        passed = self._clock() - self._read_at
        return Known(known.epoch, max(known.left_secs - passed, 0.0), max(known.wait_secs - passed, 0.0), known.code)

    def take(self, account: str, model: str) -> Place | None:
        """A place in the line; None where there is none. Raises UnavailableError."""
        with self._database.autocommit() as connection:
            return cooldowns.take(connection, account, model)

    def refused(self, account: str, model: str, *, provider: str, code: str, wait_secs: float) -> Place | None:
        """A call was refused; the answer is its next turn, None where the database cannot be asked."""
        try:
            with self._database.autocommit() as connection:
                place = cooldowns.refused(connection, account, model, provider=provider, code=code, wait_secs=wait_secs)
        except UnavailableError as error:
            # The run's own wait does without it.
            logger.warning("%s %s refuses calls, and the others cannot be told: %s", provider, model, error)
            return None
        aged = {key: known for key in self._known if (known := self.of(*key)) is not None}
        known = Known(place.epoch, place.left_secs, place.wait_secs, code)
        self._read_at, self._known = self._clock(), aged | {(account, model): known}
        return place
