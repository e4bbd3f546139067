"""Recall: facts from long-term memory, ahead of a model call."""

import logging
from collections.abc import Iterable, Iterator
from functools import partial

from agentq import aside
from agentq.agent import AgentSpec
from agentq.context import RunContext
from agentq.limits import MAX_FACTS_CHARS
from agentq.memory import Memory
from agentq.messages import UserMessage
from agentq.outcomes import Recalled
from agentq.run import Snapshot
from agentq.services import Services
from agentq.steps.base import Done, context, guarded
from agentq.text import clean, cut

logger = logging.getLogger(__name__)


def recall(snapshot: Snapshot, agent: AgentSpec, services: Services) -> Done:
    """A memory that fails or hangs is noted and the run goes on without facts."""
    faults: list[str] = []
    facts = _facts(snapshot, agent, services, faults)
    data = {"facts": len(facts)} | ({"faults": faults} if faults else {})
    return Done(Recalled(facts), data)


def _facts(snapshot: Snapshot, agent: AgentSpec, services: Services, faults: list[str]) -> tuple[str, ...]:
    if agent.memory is None:
        return ()
    transcript = services.transcripts.read(snapshot)
    asked = next((message.text for message in reversed(transcript) if isinstance(message, UserMessage)), "")
    ask = partial(_ask, agent.memory, context(snapshot), asked)
    try:
        facts: tuple[str, ...] = guarded(lambda: aside.call(ask, agent.hook_timeout_secs))
    except Exception as error:
        what = str(error) if isinstance(error, aside.TookTooLong) else type(error).__name__
        logger.warning("the memory of agent %s failed: %s", agent.name, what)
        logger.debug("memory of agent %s", agent.name, exc_info=True)
        faults.append(f"memory: {what}")
        return ()
    if sum(map(len, facts)) + len(facts) >= MAX_FACTS_CHARS:
        faults.append(f"memory: only the first {MAX_FACTS_CHARS:,} characters of its facts were taken")
    return facts


def _ask(memory: Memory, ctx: RunContext, asked: str) -> tuple[str, ...]:
    return tuple(_bounded(memory.recall(ctx, asked)))


def _bounded(facts: Iterable[object]) -> Iterator[str]:
    """As many as the snapshot, which carries them to the model call, can bear."""
    left = MAX_FACTS_CHARS
    for fact in facts:
        text = cut(clean(str(fact)), left)
        yield text
        # One more for each, so that empty ones come to an end too.
        left -= len(text) + 1
        if left <= 0:
            return
