"""The limits of a run and their defaults; there is no way to run without them."""

from decimal import Decimal

from pydantic import BaseModel, ConfigDict, Field

MAX_CALLS_PER_REPLY = 32
MAX_LANES = 8
MAX_INVALID_OUTPUTS = 2
MAX_EMPTY_REPLIES = 2
MAX_DEPTH = 8
MAX_RESULT_CHARS = 100_000
MAX_FACTS_CHARS = 100_000
# Some thirty years: what Postgres and the timers of a process still understand.
LONGEST_SECS = 1e9
# What the hooks of one moment may take together, and the longest that a single one may be given.
MAX_HOOKS_SECS = 60.0
_LARGEST = 10**15
MAX_ATTEMPTS = 3


def is_duration(seconds: object) -> bool:
    """Whether it is a number of seconds that something may take."""
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= LONGEST_SECS


class Limits(BaseModel):
    """What one run may use; None is no limit.

    ``tokens`` is input plus output, and ``usd`` what the model calls cost in US dollars, as far as that is known: both
    with those of sub-agents, and checked before each model call. ``run_secs`` is from the enqueue, or from the time
    that the run was enqueued for, to the end: waiting for workers, for its turn of a concurrency key and for people
    included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_calls: int = Field(default=25, ge=1, le=_LARGEST)
    tool_calls: int = Field(default=200, ge=0, le=_LARGEST)
    tokens: int | None = Field(default=None, ge=1, le=_LARGEST)
    usd: Decimal | None = Field(default=None, gt=0, le=_LARGEST, allow_inf_nan=False)
    run_secs: float | None = Field(default=None, gt=0, le=LONGEST_SECS, allow_inf_nan=False)
    tool_timeout_secs: float = Field(default=60.0, gt=0, le=LONGEST_SECS, allow_inf_nan=False)
