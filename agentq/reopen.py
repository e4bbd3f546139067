"""A run that failed or was cancelled goes on where it stood: the same run, with the same counts. No I/O, no clock."""

from collections.abc import Mapping
from typing import Any

from agentq.agent import make_limits
from agentq.errors import RunFinishedError, RunNotFinishedError
from agentq.messages import AssistantMessage, Message, UserMessage
from agentq.reached import out_of_time, over_limit
from agentq.run import Snapshot
from agentq.values import replace


def reopen(snapshot: Snapshot, last: Message | None, changes: Mapping[str, Any]) -> tuple[Snapshot, Message | None]:
    """The run as its next step finds it, and a message to add where the model has had the last word.

    ``changes`` are to its limits. Raises RunNotFinishedError; RunFinishedError for a run that completed, or whose limit
    is reached with the changes, too; ConfigError for limits that are none.
    """
    if not snapshot.is_terminal:
        raise RunNotFinishedError(f"run {snapshot.run_id} is {snapshot.status}: there is nothing to retry")
    if snapshot.status == "completed":
        raise RunFinishedError(f"run {snapshot.run_id} is completed; say more on its thread, or enqueue a new run")
    progress = snapshot.progress
    limits = progress.limits and make_limits(progress.limits, changes, f"run {snapshot.run_id}")
    progress = replace(
        progress,
        limits=limits,
        limit_overrides={**progress.limit_overrides, **changes},
        invalid_outputs=0,
        empty_replies=0,
        model_index=0,
        model_tries=0,
        cooldown=0,
        given_up=(),
        facts=(),
    )
    after = replace(
        snapshot,
        seq=snapshot.seq + 1,
        status="running",
        phase="recall",
        calls=(),
        is_single=False,
        cancel_requested=False,
        progress=progress,
    )
    reached = over_limit(after) or out_of_time(after)
    if reached is not None:
        limit = reached.details["limit"]
        raise RunFinishedError(f"{reached.message}; give it more: retry(limits={{{limit!r}: …}})", limit=limit)
    if not isinstance(last, AssistantMessage):
        return after, None
    # What it said was no answer, or it would have ended otherwise; no provider goes on from its own words.
    return replace(after, message_count=after.message_count + 1), UserMessage(text="That was no valid end. Go on.")
