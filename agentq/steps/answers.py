"""What the structured answers in a reply are worth: the schema's word on each, and that of the agent's own checks."""

import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from agentq import aside
from agentq.agent import AgentSpec
from agentq.context import RunContext
from agentq.errors import ErrorInfo
from agentq.limits import MAX_CALLS_PER_REPLY, MAX_HOOKS_SECS
from agentq.messages import AssistantMessage
from agentq.outcomes import Output
from agentq.output import OUTPUT_TOOL, AskAgain, OutputCheck, OutputInvalidError
from agentq.steps.base import guarded
from agentq.text import clean, cut

logger = logging.getLogger(__name__)

_MAX_PROBLEM_CHARS = 4_000


def answers(message: AssistantMessage, agent: AgentSpec, ctx: RunContext) -> dict[int | None, Output]:
    """Each answer in the reply of an agent with ``output=``, by its call; a text's, where there is no call, by None.

    A text beside calls is no answer. An answer that was cut off fits only by chance. Those behind the first valid one
    are not put before the agent's checks.
    """
    if agent.output is None:
        return {}
    taken = enumerate(message.calls[:MAX_CALLS_PER_REPLY])
    texts: dict[int | None, str] = {i: call.arguments for i, call in taken if call.name == OUTPUT_TOOL}
    if not message.calls and message.text.strip():
        texts = {None: message.text}
    until, found = time.monotonic() + MAX_HOOKS_SECS, dict[int | None, Output]()
    for index, text in texts.items():
        answer = _parsed(agent, text, index, cut=message.stop == "length")
        if answer.is_accepted and final(found) is None:
            for check in agent.output_checks:
                answer = _checked(agent, check, ctx, answer, until)
                if not answer.is_accepted:
                    break
        found[index] = answer
    return found


def final(found: Mapping[int | None, Output]) -> Output | None:
    """The one that ends the run: the first that is valid, or whose check failed."""
    return next((answer for answer in found.values() if answer.problem is None), None)


def structured(found: Mapping[int | None, Output]) -> Output | None:
    """The answer that counts: the final one, else the first that is no good, else None."""
    return final(found) or next(iter(found.values()), None)


def _parsed(agent: AgentSpec, text: str, index: int | None, *, cut: bool) -> Output:
    if cut:
        return Output(problem="the answer was cut off by the output limit; give a shorter one", index=index)
    try:
        return Output(value=agent.output.parse(text), index=index)  # type: ignore[union-attr]
    except OutputInvalidError as error:
        return Output(problem=str(error), index=index)


def _checked(agent: AgentSpec, check: OutputCheck, ctx: RunContext, answer: Output, until: float) -> Output:
    """The answer after one of the agent's checks has seen it, and may have changed it."""
    schema, secs = agent.output, min(agent.hook_timeout_secs, until - time.monotonic())
    assert schema is not None
    try:
        value: Any = guarded(lambda: aside.call(partial(check, ctx, schema.load(answer.value)), secs))
        return answer if value is None else Output(schema.changed(answer.value, value), index=answer.index)
    except AskAgain as again:
        text = cut(clean(str(again)), _MAX_PROBLEM_CHARS).strip()
        return Output(problem=text or "the answer was not accepted", index=answer.index)
    except Exception as error:
        what = str(error) if isinstance(error, aside.TookTooLong) else type(error).__name__
        name = getattr(check, "__name__", type(check).__name__)
        logger.warning("the output_check %s of agent %s failed: %s", name, agent.name, what)
        logger.debug("output_check %s", name, exc_info=True)
        message = f"the answer could not be checked: {name}: {what}"
        return Output(
            fault=ErrorInfo(code="output_check_failed", message=message, details={"check": name}), index=answer.index
        )
