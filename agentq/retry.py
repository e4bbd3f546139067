"""How long to wait before a failed model call is tried again. Pure: the jitter is an argument."""

from math import isnan

MODEL_TRIES = 3
BASE_SECS = 0.5
CAP_SECS = 8.0
# Longer than this a run should go to its fallback model instead of waiting.
LONGEST_HINT_SECS = 120.0


# Longer than this a run with a fallback model that is not limited goes there at once.
LONG_WAIT_SECS = 10.0


def backoff_secs(attempt: int, jitter: float) -> float:
    """Seconds to wait after try number ``attempt`` (1 is the first); ``jitter`` in [0, 1) takes off up to a quarter."""
    return float(min(CAP_SECS, BASE_SECS * 2 ** (attempt - 1))) * (1 - 0.25 * jitter)


def first_wait_secs(attempt: int, retry_after: float | None) -> float:
    """How long a provider is to be left in peace by all who call it, from what it said to one."""
    if retry_after is None or isnan(retry_after) or retry_after <= 0:
        return backoff_secs(attempt, 0.0)
    return max(retry_after, backoff_secs(attempt, 0.0))


def wait_secs(attempt: int, retry_after: float | None, jitter: float) -> float | None:
    """The wait before the next try of the same model, or None when this model should be given up."""
    if attempt >= MODEL_TRIES:
        return None
    if retry_after is None or isnan(retry_after) or retry_after <= 0:
        return backoff_secs(attempt, jitter)
    if retry_after > LONGEST_HINT_SECS:
        return None
    return max(retry_after * (1 + 0.1 * jitter), backoff_secs(attempt, jitter))
