"""Messages that were sent into a run and that it has not taken up when it is about to end. No I/O, no clock."""

from agentq.outcomes import Transition
from agentq.reached import over_limit
from agentq.run import Snapshot
from agentq.values import replace


def go_on_with(transition: Transition, taken_up: Snapshot) -> Transition:
    """What becomes of an end; ``taken_up`` is the run after it with the messages that nobody has heard.

    A run that has answered goes on, so that it answers these as well. Where it may not, or cannot, they stay with the
    conversation, whose next run sees them.
    """
    after, ending = transition.snapshot, transition.ending
    running = replace(after, status="running", phase="recall", calls=())
    if ending is not None and ending.stop_reason in ("final_answer", "output") and over_limit(running) is None:
        return replace(transition, snapshot=running, delay_secs=0.0, ending=None)
    messages = transition.messages + taken_up.joined
    return replace(transition, snapshot=replace(taken_up, joined=()), messages=messages, hears=True)
