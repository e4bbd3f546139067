"""One step of one run, or one call of a batch, from claim to announcement."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any
from uuid import uuid4

from agentq.agent import AgentSpec, make_limits
from agentq.budgets import without_budget
from agentq.changed import is_for_others, refusal, with_version
from agentq.control import Control
from agentq.errors import AgentqError, ConfigError, ConnectionLost, ErrorInfo, LeaseLost, UnavailableError
from agentq.heartbeat import Lease
from agentq.limits import MAX_ATTEMPTS
from agentq.messages import ToolResult, media_of
from agentq.outcomes import Asked, BatchOpened, CallsFinished, Failed, Transition
from agentq.reached import out_of_time
from agentq.run import OpenCall, Snapshot
from agentq.saving import CallEnd, following_step, more_events
from agentq.services import Services
from agentq.stay import Stay
from agentq.steps.base import Done
from agentq.steps.model import call_model
from agentq.steps.recall import recall
from agentq.steps.review import review
from agentq.steps.tool_batch import CallDone, asked_for, interrupted, not_run, refused, run_call, unknown_tool
from agentq.storage import calls, deltas, inbox, leases, outdated, steps
from agentq.storage.approvals import Question
from agentq.storage.calls import ClaimedCall, Lane
from agentq.storage.commits import CancelRequested
from agentq.storage.journal import NewEvent, call_data
from agentq.storage.rows import CallRef, Claim
from agentq.storage.sql import Connection
from agentq.storage.steps import Again
from agentq.text import told
from agentq.transition import decide
from agentq.values import replace
from agentq.wire import CallMessage

logger = logging.getLogger(__name__)

# What a memory and hooks may take before a worker that hangs in them counts as lost.
STEP_SECS = 300.0

_BODIES: dict[str, Callable[[Snapshot, AgentSpec, Services], Done]] = {
    "recall": recall,
    "model": call_model,
    "review": review,
}


class Engine(Control):
    """Does steps and calls for one process. Every method is safe to repeat and to run anywhere at the same time.

    Each works in a copy of the context: what a hook sets in a ContextVar is seen by its tool, and not by the next step.
    """

    # ------------------------------------------------------------------------------------------------ a step

    def run_step(self, run_id: str, seq: int) -> None:
        """Do the step after snapshot ``seq``; nothing happens when it is not ours to do.

        Raises UnavailableError when the database is gone; the sweep repairs that.
        """
        services, token = self.services, uuid4()
        asked = services.clock()
        with self._claiming(run_id, lambda: self.saver.give_back(Claim(run_id, seq, token, 0))) as connection:
            claimed = steps.claim(
                connection, run_id, seq, lease_secs=services.lease_secs, worker=services.worker, token=token
            )
        if claimed is None:
            logger.debug("run %s: step %d is taken or history", run_id, seq)
            return
        services.cooldowns.learn(claimed[0].cooling)
        claim, snapshot = replace(claimed[0], sure_until=asked + services.lease_secs / 2), claimed[1]
        agent = services.agents.get(snapshot.agent)
        if agent is None:
            self._hand_back(claim, snapshot)
            return
        if is_for_others(snapshot, agent):
            self._leave_to_others(claim, snapshot, agent)
            return
        stay = Stay(services.local_steps, services.may_stay)
        held: tuple[Claim, Snapshot] | None = (claim, snapshot)
        with self._letting_go(claim):
            try:
                while held is not None:
                    held = copy_context().run(self._do_step, held[0], prepare(held[1], agent), agent, stay)
            finally:
                stay.tell(f"{run_id} {agent.name}")

    @contextmanager
    def _claiming(self, run_id: str, give_back: Callable[[], Again]) -> Iterator[Connection]:
        """A claim whose answer is lost with its connection is given back: who has begun nothing was not interrupted."""
        try:
            with self.services.database.autocommit() as connection:
                yield connection
        except ConnectionLost:
            self.go_on(run_id, give_back())
            raise

    @contextmanager
    def _letting_go(self, claim: Claim) -> Iterator[None]:
        """Work that ends with a fault of ours is lost: nobody need wait for the end of its lease to see that."""
        try:
            yield
        except LeaseLost as lost:
            logger.info("%s", lost)
        except Exception:
            with suppress(AgentqError), self.services.database.autocommit() as connection:
                leases.let_go(connection, claim.run_id, claim.token)
            raise

    def _hand_back(self, claim: Claim, snapshot: Snapshot) -> None:
        """A run of an agent that this worker does not have."""
        services = self.services
        with services.database.autocommit() as connection:
            delay_secs = services.elsewhere.delay_secs(
                connection, (claim.run_id, claim.seq), queue=claim.queue, agent=snapshot.agent, here=services.agents
            )
            again = steps.release(
                connection, claim, patience_secs=services.patience_secs, delay_secs=delay_secs, forgive=True
            )
        self.go_on(claim.run_id, again)

    def _leave_to_others(self, claim: Claim, snapshot: Snapshot, agent: AgentSpec) -> None:
        """A run that goes on with another version of its agent than there is here."""
        with self.services.database.transaction() as connection:
            left = outdated.leave(connection, claim, was=str(snapshot.agent_version), now=agent.version)
            again = left or steps.release(connection, claim, patience_secs=self.services.patience_secs, forgive=True)
        logger.info("%s %s: left to workers with version %s", claim.run_id, agent.name, snapshot.agent_version)
        self.go_on(claim.run_id, again)

    def _do_step(self, claim: Claim, snapshot: Snapshot, agent: AgentSpec, stay: Stay) -> tuple[Claim, Snapshot] | None:
        """One step; the answer is the next one, where it is ours to do as well."""
        self.services.probe("claimed", snapshot.phase)
        self._still_ours(claim)
        started = time.monotonic()
        only = snapshot.only_call
        with self._hold(claim, only.timeout_secs if only else _bound_secs(snapshot, agent)) as lease:
            try:
                if snapshot.phase in ("recall", "model") and snapshot.steered > snapshot.heard:
                    snapshot = self._take_up(snapshot)
                done = self._body(claim, snapshot, agent, lease)
            except UnavailableError as error:
                # Nothing has been begun: the outage is no fault of this step.
                logger.warning("run %s: given back: %s", claim.run_id, error)
                self.go_on(claim.run_id, self.saver.give_back(claim))
                return None
            except LeaseLost:
                raise
            except Exception as error:
                logger.exception("run %s: the %s step failed", claim.run_id, snapshot.phase)
                if only is not None and not only.may_run_again:
                    done = self.unclear(snapshot, only)
                elif claim.attempt < MAX_ATTEMPTS:
                    self._try_again(claim, snapshot, error)
                    return None
                else:
                    done = Done(Failed(_internal(error)))
            done.data["ms"] = round((time.monotonic() - started) * 1000)
            self.services.probe("effect", snapshot.phase)
            return self.settle(claim, snapshot, done, stay)

    def _take_up(self, snapshot: Snapshot) -> Snapshot:
        with self.services.database.autocommit() as connection:
            return inbox.take_up(connection, snapshot)

    def _still_ours(self, claim: Claim) -> None:
        """Raises LeaseLost where this process stood still since the commit that kept the lease: others have gone on."""
        if claim.sure_until is None or self.services.clock() < claim.sure_until:
            return
        with self.services.database.autocommit() as connection:
            leases.check(connection, claim.run_id, claim.token)

    def _hold(self, claim: Claim, limit_secs: float) -> Lease:
        heartbeat = self.services.heartbeat
        return heartbeat.hold(claim.token, claim.run_id, limit_secs=limit_secs, sure_until=claim.sure_until)

    def _body(self, claim: Claim, snapshot: Snapshot, agent: AgentSpec, lease: Lease) -> Done:
        late = out_of_time(snapshot) or refusal(snapshot, agent)
        if snapshot.phase != "tools":
            late = late or without_budget(snapshot, agent)
            if late:
                return Done(Failed(late))
            if snapshot.phase == "model" and agent.stream:
                return self._call_model_watched(claim, snapshot, agent)
            return _BODIES[snapshot.phase](snapshot, agent, self.services)
        only = snapshot.only_call
        if only is None:
            if late:
                return Done(Failed(late))
            unbegun = (
                (
                    call.index,
                    unknown_tool(call, agent) if _is_gone(call, agent) else refused(snapshot, call, self.services),
                )
                for call in snapshot.pending
            )
            results = tuple((index, result) for index, result in unbegun if result is not None)
            return Done(BatchOpened(results), {"calls": [call.tool for call in snapshot.pending]})
        if claim.forgotten and not only.may_run_again:
            # The server crashed since this call was due: a claim that waited for no fsync may have been lost with it.
            return self.unclear(snapshot, only)
        may_have_run = claim.forgotten or claim.attempt > 1
        if late:
            result = interrupted(only) if may_have_run else not_run(only, late)
            return Done(CallsFinished(((only.index, result),), fatal=late), call_data(result))
        done = run_call(
            snapshot, only, agent, self.services, lease=lease, attempt=claim.attempt, may_have_run=may_have_run
        )
        if done.asks is not None:
            outcome = Asked(only.index, done.asks.kind)
            return Done(outcome, {"waiting_for": [only.tool]} | done.data, questions={only.index: done.asks})
        return Done(done.as_outcome(only.index), call_data(done.result) | done.data)

    def _call_model_watched(self, claim: Claim, snapshot: Snapshot, agent: AgentSpec) -> Done:
        """The model's step with its reply shown while it is written."""
        is_again = not claim.follows and self._was_shown(claim)
        stream = self.services.streams.begin(claim.run_id, claim.token, snapshot.seq, is_again=is_again)
        try:
            done = call_model(snapshot, agent, self.services, stream)
        finally:
            rest = stream.end()
        return replace(done, before=rest, streamed=stream.saved)

    def _was_shown(self, claim: Claim) -> bool:
        with self.services.database.autocommit() as connection:
            return deltas.was_shown(connection, claim.run_id)

    def unclear(self, snapshot: Snapshot, only: OpenCall) -> Done:
        """A step whose only call may have run, and must not run again: a person is asked, or the model told so."""
        if only.on_unknown != "ask" or snapshot.cancel_requested:
            return settled(only, interrupted(only))
        question = Question(asked_for(snapshot, only, self.services).arguments, "outcome")
        return Done(Asked(only.index), {"waiting_for": [only.tool]}, questions={only.index: question})

    def _try_again(self, claim: Claim, snapshot: Snapshot, error: Exception) -> None:
        data = {"phase": snapshot.phase, "attempt": claim.attempt, "error": type(error).__name__}
        with self.services.database.transaction() as connection:
            again = steps.release(
                connection,
                claim,
                patience_secs=self.services.patience_secs,
                delay_secs=float(claim.attempt),
                events=[NewEvent("step.failed", data)],
            )
        self.go_on(claim.run_id, again)

    def settle(
        self, claim: Claim, snapshot: Snapshot, done: Done, stay: Stay | None = None
    ) -> tuple[Claim, Snapshot] | None:
        """Commit what a step brought and send what follows; the answer is the next step where it follows here.

        Raises LeaseLost when the step is no longer ours.
        """
        transition = decide(snapshot, done.outcome)
        stays = stay is not None and _may_follow(claim, transition) and stay.goes_on()
        retry = {"retry": transition.note} if transition.note else {}
        data = {"phase": snapshot.phase, "seq": snapshot.seq} | self._by(claim) | done.data | retry
        events = [*done.before, NewEvent("step", data)]
        asked = self.services.clock()
        committed, wake_ups = self.saver.commit(claim.token, transition, events, done.questions, stays=stays)
        self.services.probe("committed", snapshot.phase)
        count = done.streamed + len(events) + len(more_events(transition))
        self.services.transcripts.add(committed, transition.messages, events=count)
        for _, message in transition.messages:
            self.services.blobs.add(media_of(message))
        self.saver.send(wake_ups)
        self.services.probe("announced", snapshot.phase)
        where = committed.status if committed.status != "running" else committed.phase
        if stay is not None:
            stay.note(f"{snapshot.phase} {data['ms']} ms", where)
        else:
            logger.info("%s %s: %s, then %s", snapshot.run_id, snapshot.agent, snapshot.phase, where)
        self.after(committed)
        if committed.is_terminal:
            self.services.transcripts.forget(committed.run_id)
        if not stays or committed.is_terminal:
            return None
        # The commit leaves the lease half its time at least.
        sure_until = asked + self.services.lease_secs / 2
        following = replace(claim, seq=committed.seq, attempt=1, forgotten=False, follows=True, sure_until=sure_until)
        return following, committed.begin()

    def _by(self, claim: Claim) -> dict[str, Any]:
        """What an event says of the process and the attempt, where that is worth a word: see docs/internals.md."""
        worker = {} if claim.follows else {"worker": self.services.worker}
        return worker | ({"attempt": claim.attempt} if claim.attempt > 1 else {})

    # ------------------------------------------------------------------------------------------------ a call of a batch

    def run_call(self, run_id: str, seq: int, index: int) -> CallEnd:
        """Run one call of a batch. The answer says what follows, for the lane or for the chord's barrier to send."""
        services, token = self.services, uuid4()
        asked = services.clock()
        with self._claiming(run_id, lambda: self.saver.give_back_call(run_id, seq, token)) as connection:
            claimed = calls.claim(
                connection, run_id, seq, index, lease_secs=services.lease_secs, worker=services.worker, token=token
            )
        if claimed is None:
            logger.debug("run %s: call %d of step %d is taken or history", run_id, index, seq)
            return CallEnd()
        agent = services.agents.get(claimed.snapshot.agent)
        if agent is None:
            return self._hand_back_call(claimed)
        if is_for_others(claimed.snapshot, agent):
            with services.database.transaction() as connection:
                outdated.leave_call(connection, claimed, now=agent.version, patience_secs=services.patience_secs)
            return CallEnd()
        sure = replace(claimed.claim, sure_until=asked + services.lease_secs / 2)
        end, stay = CallEnd(here=replace(claimed, claim=sure)), Stay(services.local_steps, services.may_stay)
        with self._letting_go(claimed.claim):
            while end.here is not None:
                end = copy_context().run(self._do_call, end.here, agent, stay)
        return end

    def _hand_back_call(self, claimed: ClaimedCall) -> CallEnd:
        services, ref, agent = self.services, claimed.ref, claimed.snapshot.agent
        work = (ref.run_id, claimed.claim.seq, ref.index)
        with services.database.autocommit() as connection:
            delay_secs = services.elsewhere.delay_secs(
                connection, work, queue=claimed.call.queue, agent=agent, here=services.agents
            )
            patience_secs = delay_secs or services.patience_secs
            wake_up = calls.rearm(connection, claimed, patience_secs=patience_secs, forgive=True)
        # Where it is not for now, the sweep sends it.
        return CallEnd(next=None if delay_secs else wake_up)

    def _do_call(self, claimed: ClaimedCall, agent: AgentSpec, stay: Stay) -> CallEnd:
        """One call; the answer has the next one, where it is ours to do as well."""
        self.services.probe("claimed", "call")
        claim, call, started = claimed.claim, claimed.call, time.monotonic()
        data = self._by(claim)
        if claim.forgotten and not call.may_run_again:
            return self.unclear_call(claimed, data)
        snapshot = prepare(claimed.snapshot, agent)
        may_have_run = claim.forgotten or claim.attempt > 1
        if late := out_of_time(snapshot) or refusal(snapshot, agent):
            result = interrupted(call) if may_have_run else not_run(call, late)
            return self.finish_call(claimed.ref, CallDone(result, late), claim, data)
        with self._hold(claim, call.timeout_secs) as lease:
            try:
                done = run_call(
                    snapshot, call, agent, self.services, lease=lease, attempt=claim.attempt, may_have_run=may_have_run
                )
            except UnavailableError as error:
                # As for a step: nothing has been begun.
                logger.warning("run %s: call %d given back: %s", claim.run_id, call.index, error)
                again = self.saver.give_back_call(claim.run_id, claim.seq, claim.token)
                return CallEnd(next=again.wake_up if isinstance(again.wake_up, CallMessage) else None)
            self.services.probe("effect", "call")
            data |= {"ms": round((time.monotonic() - started) * 1000)}
            return self._finish_lane(claimed, done, data, stay)

    def _finish_lane(self, claimed: ClaimedCall, done: CallDone, data: dict[str, Any], stay: Stay) -> CallEnd:
        services, claim, call = self.services, claimed.claim, claimed.call
        lane = None
        if stay.goes_on():
            # Celery's own time limits were set by the lane's first call: no later one may take longer.
            lane = Lane(claim.token, services.worker, services.lease_secs, call.queue, call.timeout_secs, claimed.reply)
        asked = services.clock()
        try:
            end = self._asking(claimed, done, data) or self.finish_call(claimed.ref, done, claim, data, lane=lane)
        except LeaseLost:
            # Saved before, perhaps, by a try whose answer was lost: then the next call has been claimed with it.
            again = self.saver.give_back_call(claim.run_id, claim.seq, claim.token)
            self.go_on(claim.run_id, again)
            raise
        if end.here is None:
            return end
        services.probe("announced", "call")
        sure_until = asked + services.lease_secs / 2
        return replace(end, here=replace(end.here, claim=replace(end.here.claim, sure_until=sure_until)))

    def _asking(self, claimed: ClaimedCall, done: CallDone, data: dict[str, Any]) -> CallEnd | None:
        """Where the tool asks whether it may run; None also where the run is being cancelled, and nobody is asked."""
        if done.asks is not None:
            with suppress(CancelRequested):
                return self._ask(claimed, done.asks, data | done.data)
        return None

    def _ask(self, claimed: ClaimedCall, asked: Question, data: dict[str, Any]) -> CallEnd:
        end, snapshot = self.saver.ask(claimed, asked, data)
        self.after(snapshot)
        return end

    def unclear_call(self, claimed: ClaimedCall, data: dict[str, Any]) -> CallEnd:
        """The same for a call of a batch. Raises LeaseLost."""
        call, snapshot = claimed.call, claimed.snapshot
        if call.on_unknown == "ask" and not snapshot.cancel_requested:
            # Cancelled since it was claimed: nobody would end a run that only waits.
            with suppress(CancelRequested):
                question = Question(asked_for(snapshot, call, self.services).arguments, "outcome")
                return self._ask(claimed, question, data)
        return self.finish_call(claimed.ref, CallDone(interrupted(call)), claimed.claim, data)

    def finish_call(
        self, ref: CallRef, done: CallDone, claim: Claim, data: dict[str, Any], *, lane: Lane | None = None
    ) -> CallEnd:
        """Save a call of a batch and see to the end of the run where it brings one. Raises LeaseLost."""
        end, snapshot = self.saver.finish_call(ref, done, claim.token, data, lane=lane)
        self.services.probe("committed", "call")
        came_back = done.result.code or done.result.status
        logger.info("%s %s: call %d, %s, %s", ref.run_id, snapshot.agent, ref.index, done.result.name, came_back)
        self.after(snapshot)
        return end


def _may_follow(claim: Claim, transition: Transition) -> bool:
    """Whether the next step is due now, and is one that this process would be sent."""
    return transition.delay_secs == 0 and following_step(transition).queue == claim.queue


def _is_gone(call: OpenCall, agent: AgentSpec) -> bool:
    """A call of a sub-agent that a deploy has taken away meanwhile; other tools are looked for when they run."""
    found = agent.tools.get(call.tool)
    return call.kind == "agent" and (found is None or found.agent is None)


def _bound_secs(snapshot: Snapshot, agent: AgentSpec) -> float:
    return STEP_SECS + (agent.model_timeout_secs if snapshot.phase == "model" else 0.0)


def prepare(snapshot: Snapshot, agent: AgentSpec) -> Snapshot:
    """Fill in what the producer may not have known: limits and version, and that there is nothing to recall."""
    progress = snapshot.progress
    if progress.limits is None:
        try:
            limits = make_limits(agent.limits, progress.limit_overrides, f"run {snapshot.run_id}")
        except ConfigError:
            # Checked when it was enqueued; a later release may know fewer limits.
            limits = agent.limits
        snapshot = replace(snapshot, progress=replace(progress, limits=limits))
    if snapshot.phase == "recall" and not agent.has_recall:
        snapshot = replace(snapshot, phase="model")
    return with_version(snapshot, agent)


def settled(call: OpenCall, result: ToolResult) -> Done:
    """A step whose only call is answered without having been run, or run again."""
    return Done(CallsFinished(((call.index, result),)), call_data(result))


def _internal(error: Exception) -> ErrorInfo:
    if isinstance(error, AgentqError):
        return ErrorInfo(code=error.code, message=error.message)
    return ErrorInfo(code="internal_error", message=told(error))
