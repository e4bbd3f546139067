"""Write what was decided and say what to send: every transaction that moves a run on is here."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

from agentq.content import File, Image
from agentq.errors import LockedError, UnavailableError
from agentq.ids import new_id
from agentq.limits import Limits
from agentq.messages import ToolResult, Usage, media_of
from agentq.outcomes import Cancelled, Transition
from agentq.run import ApprovalKind, OpenCall, Progress, Snapshot
from agentq.services import Services
from agentq.steering import go_on_with
from agentq.steps.review import reject
from agentq.steps.tool_batch import CallDone
from agentq.storage import approvals, blobs, calls, children, commits, control, endings, enqueue, inbox, line, steps
from agentq.storage.approvals import Answer, Question
from agentq.storage.calls import ClaimedCall, Lane
from agentq.storage.commits import CancelRequested, Next, Steered
from agentq.storage.enqueue import NewRun
from agentq.storage.journal import NewEvent, call_data
from agentq.storage.rows import CallRef, Claim
from agentq.storage.sql import Connection
from agentq.storage.steps import Again
from agentq.transition import cancel, decide
from agentq.values import replace
from agentq.wire import STEP_QUEUE, BatchMessage, CallMessage, StepMessage, WakeUp

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How long finished work is held while the database is away, for the moment it is back.
OUTAGE_SECS = 60.0


@dataclass(frozen=True)
class CallEnd:
    """What follows a call of a batch: the lane's ``next`` call, or the step after it when it was the ``last``.

    ``here`` is the lane's next call where the same process has it already; ``let_in`` wakes other runs, which got the
    place of this one.
    """

    next: CallMessage | None = None
    last: StepMessage | None = None
    here: ClaimedCall | None = None
    let_in: tuple[WakeUp, ...] = ()

    @property
    def wake_ups(self) -> list[WakeUp]:
        """What is to be sent for this run."""
        return [wake_up for wake_up in (self.next, self.last) if wake_up is not None]


class _EndsEarly(Exception):
    """The run ends while calls are out: it is to be done again, with the claims refused before anything is written."""


class Saver:
    """Commits of one process. Each is one transaction, fenced by the lease it is given."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def commit(
        self,
        token: UUID,
        transition: Transition,
        events: list[NewEvent],
        questions: Mapping[int, Question],
        *,
        stays: bool = False,
    ) -> tuple[Snapshot, list[WakeUp]]:
        """Save a step; where the run is to be cancelled, it ends with what the step brought. Raises LeaseLost.

        A run that would end while it has messages that it has not heard goes on instead, where it can. With ``stays``
        the lease is kept for the next step, which is then ours to do: nothing is to be sent.
        """

        media = _media(transition)

        def attempt() -> tuple[Snapshot, list[WakeUp]]:
            wanted = transition
            options: dict[str, Any] = {"questions": questions, "stays": stays}
            while True:
                try:
                    with self._enough_for(wanted) as connection:
                        blobs.put(connection, media)
                        saved = self.apply(connection, wanted, token, events, **options)
                        blobs.refer(connection, ("run_id", transition.snapshot.run_id, media))
                        return saved
                except CancelRequested:
                    wanted, options = cancel(wanted), {"even_if_cancelled": True}
                except Steered as found:
                    wanted = replace(wanted, snapshot=replace(wanted.snapshot, steered=found.number))

        return self._patiently(attempt)

    def _enough_for(self, transition: Transition) -> AbstractContextManager[Connection]:
        """A transaction where one statement is not all: it costs two round trips more."""
        database = self._services.database
        opens_batch = _opens_batch(transition)
        leaves = transition.snapshot.concurrency_key is not None and transition.ending is not None
        hears_late = transition.ending is not None and transition.snapshot.steered > transition.snapshot.heard
        is_one = commits.is_one_statement(transition) and not opens_batch and not leaves and not hears_late
        is_one = is_one and not _media(transition)
        return database.autocommit() if is_one else database.transaction()

    def give_back(self, claim: Claim) -> Again:
        """A step that was not begun, because the database went away; waits for it, and does not count the attempt."""

        def attempt() -> Again:
            with self._services.database.transaction() as connection:
                return steps.release(connection, claim, patience_secs=self._services.patience_secs, forgive=True)

        return self._patiently(attempt)

    def give_back_call(self, run_id: str, seq: int, token: UUID) -> Again:
        """The same for a call of a batch."""

        def attempt() -> Again:
            with self._services.database.autocommit() as connection:
                patience = self._services.patience_secs
                return Again(calls.unclaim(connection, run_id, seq, token, patience_secs=patience, forgive=True))

        return self._patiently(attempt)

    def finish_call(
        self,
        ref: CallRef,
        done: CallDone,
        token: UUID | None,
        data: dict[str, Any],
        *,
        lane: Lane | None = None,
        used: Usage | None = None,
    ) -> tuple[CallEnd, Snapshot]:
        """Save one call of a batch; the last to come back takes the run on. Raises LeaseLost when it is not ours.

        With ``lane`` the next call is claimed as well, where it is one for the process that has the lane. ``used`` is
        what a sub-agent used for the call.
        """
        event = NewEvent("call", {"index": ref.index} | data | done.data | call_data(done.result))

        def save(*, refuses: bool) -> tuple[CallEnd, Snapshot]:
            with self._services.database.transaction() as connection:
                blobs.put(connection, done.result.media)
                if refuses:
                    calls.refuse_claims(connection, ref.run_id)
                return self._finish(connection, ref, done, token, event, refuses=refuses, lane=lane, used=used)

        def attempt() -> tuple[CallEnd, Snapshot]:
            with suppress(_EndsEarly):
                return save(refuses=done.ends is not None)
            return save(refuses=True)

        end, snapshot = self._patiently(attempt)
        self.send(list(end.let_in))
        return end, snapshot

    def ask(self, claimed: ClaimedCall, asked: Question, data: dict[str, Any]) -> tuple[CallEnd, Snapshot]:
        """Put a call of a batch before a person. Raises LeaseLost when it is not ours, and CancelRequested."""
        event = NewEvent(
            "approval.requested", {"index": claimed.call.index} | data | _question(claimed.call, asked.kind)
        )

        def attempt() -> tuple[CallEnd, Snapshot]:
            with self._services.database.transaction() as connection:
                after, answer = calls.ask(connection, claimed, asked, event=event)
                if answer is None:
                    wake_ups = self.in_line(connection, after, [])
                else:
                    wake_ups, after = self._settle_at_once(connection, after, claimed.call, answer)
                following = None
                if answer is None or answer.status == "rejected":
                    patience = self._services.patience_secs
                    following = calls.announce_next(connection, claimed.snapshot, patience_secs=patience)
                return CallEnd(next=following, let_in=tuple(wake_ups)), after

        end, snapshot = self._patiently(attempt)
        self.send(list(end.let_in))
        return end, snapshot

    def _settle_at_once(
        self, connection: Connection, snapshot: Snapshot, call: OpenCall, answer: Answer
    ) -> tuple[list[WakeUp], Snapshot]:
        """A call that was just put before a person, by a decision that was made meanwhile for the rest of the run."""
        decided = {"call_id": call.call_id, "decision": answer.status, "by": answer.decided_by, "sticky": True}
        control.note(connection, snapshot.run_id, [NewEvent("approval.decided", decided)])
        result = reject(call, answer.reason) if answer.status == "rejected" else None
        return self.settle_asked(connection, snapshot, call, result)

    def settle_asked(
        self, connection: Connection, snapshot: Snapshot, call: OpenCall, result: ToolResult | None
    ) -> tuple[list[WakeUp], Snapshot]:
        """In the caller's transaction, which has the run's row locked: the result a person gave for a call, or None to
        let it run again.
        """
        if result is None:
            again = calls.restart(connection, snapshot, call, patience_secs=self._services.patience_secs)
            goes_on = replace(snapshot, status="running")
            wake_ups = self.in_line(connection, goes_on, [again] if again else [])
            is_let_in = any(isinstance(one, CallMessage) and one.run_id == snapshot.run_id for one in wake_ups)
            return wake_ups, replace(goes_on, has_place=goes_on.has_place or is_let_in)
        ref = CallRef(snapshot.run_id, snapshot.turn, call.index)
        event = NewEvent("call", {"index": call.index} | call_data(result))
        end, after = self._finish(connection, ref, CallDone(result), None, event, refuses=True, was_asked=True)
        return [*end.wake_ups, *end.let_in], after

    def in_line(self, connection: Connection, run: Snapshot, wake_ups: list[WakeUp]) -> list[WakeUp]:
        """What is to be sent, of this run and of others of its concurrency key."""
        if run.concurrency_key is None:
            return wake_ups
        return line.go_on(connection, run, wake_ups, patience_secs=self._services.patience_secs)

    def _finish(  # noqa: PLR0913 - what a call's end may bring
        self,
        connection: Connection,
        ref: CallRef,
        done: CallDone,
        token: UUID | None,
        event: NewEvent,
        *,
        refuses: bool,
        was_asked: bool = False,
        lane: Lane | None = None,
        used: Usage | None = None,
    ) -> tuple[CallEnd, Snapshot]:
        """``refuses``: the run's row is locked against claims. Raises _EndsEarly where it has to be, and is not."""
        finished = calls.finish(connection, ref, done.result, token=token, event=event, was_asked=was_asked, used=used)
        snapshot = finished.snapshot
        blobs.refer(connection, ("run_id", ref.run_id, done.result.media))
        is_ending = snapshot.cancel_requested or done.ends is not None
        if is_ending and finished.open_calls > 0 and not refuses:
            raise _EndsEarly
        if is_ending or finished.open_calls == 0:
            outcome = Cancelled() if snapshot.cancel_requested else done.as_last()
            transition = decide(calls.with_calls(connection, snapshot), outcome)
        else:
            # A sub-agent's call held no lane, so it leaves none free.
            end = self._go_on_lane(connection, snapshot, lane) if token is not None else CallEnd()
            return replace(end, let_in=tuple(self.in_line(connection, snapshot, []))), snapshot
        after, wake_ups = self.apply(connection, transition, None, [], even_if_cancelled=True)
        own = [wake_up for wake_up in wake_ups if isinstance(wake_up, StepMessage) and wake_up.run_id == ref.run_id]
        others = tuple(wake_up for wake_up in wake_ups if wake_up not in own)
        return CallEnd(last=own[0] if own else None, let_in=others), after

    def _go_on_lane(self, connection: Connection, snapshot: Snapshot, lane: Lane | None) -> CallEnd:
        if lane is not None and (here := calls.take_next(connection, snapshot, lane)):
            return CallEnd(here=here)
        return CallEnd(next=calls.announce_next(connection, snapshot, patience_secs=self._services.patience_secs))

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """Save on a fresh connection when the server went away; the fence makes a second try safe."""
        give_up = time.monotonic() + max(OUTAGE_SECS, self._services.lease_secs)
        pause = 0.1
        while True:
            try:
                return attempt()
            except UnavailableError as error:
                if isinstance(error, LockedError) and not self._services.waits_for_locks:
                    raise
                if time.monotonic() + pause > give_up:
                    raise
                logger.warning("saving again in %.1f s: %s", pause, error)
                time.sleep(pause)
                pause = min(pause * 2, 2.0)

    def apply(
        self,
        connection: Connection,
        transition: Transition,
        token: UUID | None,
        events: list[NewEvent],
        *,
        even_if_cancelled: bool = False,
        questions: Mapping[int, Question] | None = None,
        stays: bool = False,
    ) -> tuple[Snapshot, list[WakeUp]]:
        """Write a transition in the caller's transaction; the answer is the run, and what to send once it is committed.

        With ``stays`` the next step follows in this process: see commit.
        """
        if transition.ending is not None and transition.snapshot.steered > transition.snapshot.heard:
            transition = go_on_with(transition, inbox.take_up(connection, transition.snapshot))
        following = following_step(transition)
        if stays:
            following = replace(following, lease_secs=self._services.lease_secs)
        if transition.ending is not None:
            following = replace(following, on_end_secs=self._on_end_secs(connection, transition.snapshot))
        snapshot = commits.commit(
            connection,
            transition,
            token=token,
            patience_secs=self._services.patience_secs,
            following=following,
            events=[*events, *more_events(transition)],
            even_if_cancelled=even_if_cancelled,
            questions=questions,
        )
        if stays:
            return snapshot, []
        wake_ups: list[WakeUp] = []
        if transition.delay_secs == 0:
            wake_ups.append(_wake_up(snapshot, following))
        elif _opens_batch(transition):
            wake_ups += self._open_batch(connection, snapshot)
        return snapshot, self.in_line(connection, snapshot, wake_ups)

    def _on_end_secs(self, connection: Connection, snapshot: Snapshot) -> float | None:
        """When the sweep tells the run's hooks of its end: where this process cannot, at once. None: nobody listens."""
        agent = self._services.agents.get(snapshot.agent)
        if agent is not None:
            return endings.HOLD_SECS if agent.hears_ends else None
        return 0.0 if endings.hears_ends(connection, snapshot.agent) else None

    def _open_batch(self, connection: Connection, snapshot: Snapshot) -> list[WakeUp]:
        """Start the sub-agents' runs and the first lanes."""
        wake_ups: list[WakeUp] = list(self._start_children(connection, snapshot))
        lanes = commits.announce_first(connection, snapshot, patience_secs=self._services.patience_secs)
        if lanes:
            body = StepMessage(snapshot.run_id, snapshot.seq + 1, priority=snapshot.priority)
            wake_ups.append(BatchMessage(lanes, body))
        return wake_ups

    def _start_children(self, connection: Connection, snapshot: Snapshot) -> list[StepMessage]:
        asked = [call for call in snapshot.pending if call.kind == "agent"]
        if not asked:
            return []
        reply, tools = steps.reply(connection, snapshot.run_id), self._services.agents[snapshot.agent].tools
        edited = approvals.edited(connection, snapshot) if any(call.needs_approval for call in asked) else {}
        wake_ups = []
        for call in asked:
            ref = CallRef(snapshot.run_id, snapshot.turn, call.index)
            tool = tools[call.tool]
            child = NewRun(
                id=new_id("run"),
                agent=tool.agent.name,
                text=tool.parameters.parse(edited.get(call.index) or reply.calls[call.index].arguments)["input"],
                progress=Progress(limit_overrides=_budget(snapshot, tool.agent.limits)),
                run_secs=_least(tool.agent.limits.run_secs, snapshot.secs_left),
                context=snapshot.context,
                depth=snapshot.depth + 1,
                parent=ref,
                # In the place of its parent, which waits for it.
                priority=snapshot.priority,
            )
            enqueue.insert(connection, child, patience_secs=self._services.patience_secs)
            children.link(connection, ref, child.id)
            wake_ups.append(StepMessage(child.id, 0, priority=child.priority))
        return wake_ups

    def send(self, wake_ups: list[WakeUp]) -> bool:
        """Send wake-ups after their commit; False where some were not sent.

        A broker that is away costs time, not the run: the sweep sends again.
        """
        for number, wake_up in enumerate(wake_ups):
            try:
                self._services.dispatcher.send(wake_up)
            except UnavailableError as error:
                # Nor are the others tried: each try may take seconds.
                logger.warning("%d not sent, the sweep will do it: %s", len(wake_ups) - number, error)
                return False
        return True


# What is left at least: a limit is a positive number.
_LITTLE = {"usd": Decimal("0.000001")}


def _budget(snapshot: Snapshot, own: Limits) -> dict[str, Any]:
    """What a sub-agent may use: its own limits, and no more tokens and time than its caller has left."""
    limits, usage = snapshot.limits, snapshot.progress.usage
    left: dict[str, Any] = {
        "tokens": None if limits.tokens is None else limits.tokens - usage.total,
        "usd": None if limits.usd is None else limits.usd - (usage.known_cost or 0),
        "run_secs": snapshot.secs_left,
    }
    return {
        name: max(amount, _LITTLE.get(name, 1))
        for name, amount in left.items()
        if amount is not None and _least(getattr(own, name), amount) == amount
    }


def _least(own: T | None, left: T | None) -> T | None:
    given = [each for each in (own, left) if each is not None]
    return min(given, default=None)  # type: ignore[type-var]


def _media(transition: Transition) -> list[Image | File]:
    return [one for _, message in transition.messages for one in media_of(message)]


def _opens_batch(transition: Transition) -> bool:
    snapshot = transition.snapshot
    return transition.delay_secs is None and snapshot.phase == "tools" and snapshot.status == "running"


def _wake_up(snapshot: Snapshot, following: Next) -> StepMessage:
    return StepMessage(snapshot.run_id, snapshot.seq, following.queue, following.timeout_secs, snapshot.priority)


def following_step(transition: Transition) -> Next:
    """The queue of the next step: that of its tool where it runs one itself."""
    only = transition.snapshot.only_call
    if only is not None and transition.delay_secs is not None:
        return Next(only.queue, only.timeout_secs)
    return Next(STEP_QUEUE)


def _question(call: OpenCall, kind: ApprovalKind) -> dict[str, Any]:
    return {"call_id": call.call_id, "tool": call.tool, "kind": kind}


def more_events(transition: Transition) -> list[NewEvent]:
    """What happens beside the step itself."""
    run = transition.snapshot
    events = []
    if run.new_version is not None and run.agent_version is not None:
        events.append(NewEvent("agent.changed", {"from": run.agent_version, "to": run.new_version}))
    events += [NewEvent("approval.requested", _question(call, transition.asks)) for call in transition.approvals]
    if transition.ending is not None:
        why = transition.ending.error.code if transition.ending.error else transition.ending.stop_reason
        events.append(NewEvent("run.ended", {"status": transition.snapshot.status, "reason": why}))
    return events
