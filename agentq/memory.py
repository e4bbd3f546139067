"""Long-term memory as the loop sees it: facts recalled before a model call."""

from collections.abc import Sequence
from typing import Protocol

from agentq.context import RunContext


class Memory(Protocol):
    """Anything with ``recall``.

    Where it raises, or takes longer than the agent's ``hook_timeout_secs``, the run goes on without facts, and says so.
    """

    def recall(self, ctx: RunContext, text: str) -> Sequence[str]:
        """Facts that may help with ``text``, the latest user message; shown to the model for this call only.

        Of all of them together the first 100,000 characters are taken.
        """
        ...
