"""Which model a step calls: the one whose turn it is, another one while that refuses calls, or none yet."""

import logging
import random
from dataclasses import dataclass
from typing import Any

from agentq.agent import AgentSpec
from agentq.errors import ErrorInfo, ProviderError
from agentq.outcomes import CoolingDown, ModelFailed
from agentq.providers.accounts import account_of
from agentq.providers.base import Provider
from agentq.retry import LONG_WAIT_SECS, LONGEST_HINT_SECS, first_wait_secs
from agentq.run import Snapshot
from agentq.services import Services
from agentq.steps.base import Done

logger = logging.getLogger(__name__)

# Faults that say nothing of the request, but that there are too many of them.
_LIMITED = frozenset({"rate_limited", "overloaded"})


@dataclass(frozen=True)
class Choice:
    """A model that is to be called: number ``index`` of the agent's. ``skipped`` says which were left out, and why.

    ``has_free``: one behind it could be called at once.
    """

    index: int
    provider: Provider
    model: str
    account: str | None
    skipped: tuple[dict[str, Any], ...] = ()
    has_free: bool = False

    @property
    def data(self) -> dict[str, Any]:
        """What the step's event says of it."""
        named: dict[str, Any] = {"provider": self.provider.name, "model": self.model}
        return named | ({"skipped": list(self.skipped)} if self.skipped else {})


def choose(snapshot: Snapshot, agent: AgentSpec, services: Services) -> Choice | Done:
    """The model to call now; or that the run waits, because it refuses calls and no other one is free."""
    cooldowns = services.cooldowns
    # A deploy may have shortened the list of fallback models meanwhile.
    first = min(snapshot.progress.model_index, len(agent.models) - 1)
    choice = _choice(first, agent, services)
    known = cooldowns.of(choice.account, choice.model)
    has_turn = (
        known is not None and snapshot.progress.cooldown == known.epoch and first == snapshot.progress.model_index
    )
    if known is None or (has_turn and known.left_secs <= 0):
        return choice
    if known.wait_secs > LONG_WAIT_SECS and (free := _free_behind(choice, agent, services)) is not None:
        reason = choice.data | {"error": known.code, "wait_secs": round(known.wait_secs, 1)}
        return Choice(free.index, free.provider, free.model, free.account, skipped=(reason,))
    if known.left_secs > LONGEST_HINT_SECS:
        return Done(_given_up(choice, agent, known.code, known.left_secs), choice.data | {"error": known.code})
    place = cooldowns.take(str(choice.account), choice.model)
    if place is None or place.wait_secs <= 0:
        return choice
    waits = {"code": known.code, "account": choice.account, "wait_secs": round(place.wait_secs, 3)}
    return Done(CoolingDown(choice.index, place.wait_secs, place.epoch), choice.data | {"cooling": waits})


def failed(
    error: ProviderError, choice: Choice, snapshot: Snapshot, agent: AgentSpec, services: Services
) -> ModelFailed:
    """The call was refused or failed; all who share the account are told where it is limited."""
    tries = snapshot.progress.model_tries + 1 if choice.index == snapshot.progress.model_index else 1
    place = None
    if error.kind in _LIMITED and error.retryable and choice.account is not None:
        wait = first_wait_secs(tries, error.retry_after)
        place = services.cooldowns.refused(
            choice.account, choice.model, provider=choice.provider.name, code=error.code, wait_secs=wait
        )
    details = {"status": error.details.get("status")}
    return ModelFailed(
        ErrorInfo(code=error.code, message=error.message, details=details),
        error.retryable,
        error.retry_after,
        models=len(agent.models),
        jitter=random.random(),
        index=choice.index,
        provider=choice.provider.name,
        model=choice.model,
        turn_secs=place.wait_secs if place is not None else 0.0,
        cooldown=place.epoch if place is not None else 0,
        has_free=_free_behind(choice, agent, services) is not None,
    )


def _given_up(choice: Choice, agent: AgentSpec, code: str, secs: float) -> ModelFailed:
    """What a call would say that is not made: the provider has told others for how long it refuses all."""
    name = choice.provider.name
    message = f"{name} has limited this key, and refuses calls of {choice.model} for {secs:.0f} s more: not called"
    return ModelFailed(
        ErrorInfo(code=code, message=message, details={"status": None}),
        True,
        secs,
        models=len(agent.models),
        jitter=0.0,
        index=choice.index,
        provider=name,
        model=choice.model,
    )


def _choice(index: int, agent: AgentSpec, services: Services) -> Choice:
    provider, model = services.resolve(agent.models[index])
    return Choice(index, provider, model, account_of(provider))


def _free_behind(choice: Choice, agent: AgentSpec, services: Services) -> Choice | None:
    """The first fallback model that could be called now."""
    behind = (_choice(index, agent, services) for index in range(choice.index + 1, len(agent.models)))
    return next((each for each in behind if services.cooldowns.of(each.account, each.model) is None), None)
