"""Recall: facts from long-term memory and the before_model hooks, ahead of a model call."""

import logging
from collections.abc import Iterable, Iterator
from functools import partial

from agentq.agent import AgentSpec
from agentq.hooks import EndRun
from agentq.limits import MAX_FACTS_CHARS
from agentq.messages import UserMessage
from agentq.outcomes import HookEnded, Recalled
from agentq.run import Snapshot
from agentq.services import Services
from agentq.steps.base import Done, call_hooks, context, guarded
from agentq.text import clean, cut

logger = logging.getLogger(__name__)


def recall(snapshot: Snapshot, agent: AgentSpec, services: Services) -> Done:
    """A failing memory or hook is noted and the run goes on; only EndRun ends it."""
    ctx = context(snapshot)
    faults: list[str] = []
    try:
        call_hooks(agent, "before_model", lambda: (ctx,), faults)
    except EndRun as end:
        return Done(HookEnded(output=end.output))
    facts = _facts(snapshot, agent, services, faults)
    data = {"facts": len(facts)} | ({"faults": faults} if faults else {})
    return Done(Recalled(facts), data)


def _facts(snapshot: Snapshot, agent: AgentSpec, services: Services, faults: list[str]) -> tuple[str, ...]:
    if agent.memory is None:
        return ()
    transcript = services.transcripts.read(snapshot)
    asked = next((message.text for message in reversed(transcript) if isinstance(message, UserMessage)), "")
    try:
        recall_facts = partial(agent.memory.recall, context(snapshot), asked)
        return tuple(_bounded(guarded(recall_facts), faults))
    except Exception as error:
        logger.warning("memory of agent %s raised %s", agent.name, type(error).__name__)
        logger.debug("memory of agent %s", agent.name, exc_info=True)
        faults.append(f"memory: {type(error).__name__}")
        return ()


def _bounded(facts: Iterable[object], faults: list[str]) -> Iterator[str]:
    """As many as the snapshot, which carries them to the model call, can bear."""
    left = MAX_FACTS_CHARS
    for fact in facts:
        text = cut(clean(str(fact)), left)
        yield text
        # One more for each, so that empty ones come to an end too.
        left -= len(text) + 1
        if left <= 0:
            faults.append(f"memory: only the first {MAX_FACTS_CHARS:,} characters of its facts were taken")
            return
