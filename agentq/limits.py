"""The limits of a run and their defaults; there is no way to run without them."""

from pydantic import BaseModel, ConfigDict, Field

MAX_CALLS_PER_REPLY = 32
MAX_LANES = 8
MAX_INVALID_OUTPUTS = 2
MAX_EMPTY_REPLIES = 2
MAX_DEPTH = 8
MAX_RESULT_CHARS = 100_000
MAX_ATTEMPTS = 3


class Limits(BaseModel):
    """What one run may use. ``tokens`` is input plus output, checked before each model call; None is no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_calls: int = Field(default=25, ge=1)
    tool_calls: int = Field(default=200, ge=0)
    tokens: int | None = Field(default=None, ge=1)
    tool_timeout_secs: float = Field(default=60.0, gt=0, allow_inf_nan=False)
