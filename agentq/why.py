"""Why a run does not go on: who or what it waits for, since when, and what would move it. No I/O, no clock."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from agentq.facts import START_WORKER, ApprovalFacts, CallFacts, EventFacts, Fleet, RunFacts
from agentq.limits import MAX_LANES
from agentq.run import Phase, Status

WaitKind = Literal[
    "step",
    "call",
    "lost",
    "pickup",
    "worker",
    "version",
    "time",
    "line",
    "thread",
    "lane",
    "run",
    "person",
    "family",
    "nothing",
]

# What a row looks like that nothing will ever move; the same codes as in storage/stuck.py.
PROBLEMS: Mapping[str, str] = {
    "endless_lease": "its step is taken, but the lease has no end, so nobody takes it over",
    "not_announced": "its next step is in no sweep's sight",
    "no_next_step": "it has no next step",
    "line_stands": "it waits for its turn, but no run of its concurrency key is at work",
    "thread_stands": "it waits for its turn on its thread, but no run of that is at work",
    "nobody_asked": "it waits for a person, but nobody is asked anything",
    "batch_over": "every call of its turn is back, but it did not go on",
    "batch_miscounted": "it counts other calls than are open, so its turn never ends",
    "call_endless_lease": "a call is taken, but the lease has no end, so nobody takes it over",
    "call_not_announced": "a call is in no sweep's sight",
    "call_no_lane": "a call waits for a lane, but none is busy, so none becomes free",
    "child_missing": "a call waits for a sub-agent's run that does not exist",
    "child_untold": "a call waits for a sub-agent's run that has ended without answering it",
}

# What a person is asked about a call, and the commands that answer.
_ASKED: Mapping[str, tuple[str, str]] = {
    "approval": (
        "a person's decision on {tool} ({call_id})",
        "agentq approvals approve {ids}, or agentq approvals reject {ids} --reason '…'",
    ),
    "outcome": (
        "a person's word on {tool} ({call_id}, key {key}), whose worker was lost or stopped: did it happen?",
        "agentq approvals settle {ids} --happened yes|no|unknown",
    ),
    "deferred": (
        "the result of {tool} ({call_id}, key {key}), which was handed to the outside",
        "whoever has it: handle.complete(call_id, result), or agentq approvals complete {ids} --result '…'",
    ),
}

_PHASES: Mapping[Phase, str] = {
    # An agent without recall goes straight to its model, and the row does not say so before the step is done.
    "recall": "recall or model call",
    "model": "model call",
    "review": "review of the calls",
    "tools": "tools step",
}


@dataclass(frozen=True)
class Wait:
    """One thing a run waits for.

    ``kind``: ``step``, ``call``: a worker is at it; ``lost``: its worker was lost; ``pickup``: a running worker is to
    take it; ``worker``: no running worker can; ``version``: its agent has changed, and it is held
    (``on_change="hold"``); ``time``: a due time; ``line``: a place among the runs of its
    concurrency key; ``thread``: the end of a run before it on its thread; ``lane``: one of the calls before it;
    ``run``: a sub-agent's run, explained in ``run``; ``person``: a decision; ``family``: a run that has ended is still
    to be reported to the runs above and below it, or to the next of its thread;
    ``nothing``: nothing will ever move it.
    ``until`` is the end of the lease, the due time, the last moment for a decision, or when the sweep looks at it
    next. ``moves`` says what helps.
    """

    kind: WaitKind
    what: str
    moves: str
    since: datetime | None = None
    until: datetime | None = None
    call_id: str | None = None
    run: "Why | None" = None


@dataclass(frozen=True)
class Why:
    """How a run stands at the moment ``at``: an open one waits for all of ``waiting_for``; ``ended`` is how it ended.

    ``row`` has what is stored of a run that nothing moves, for the report of it.
    """

    run_id: str
    agent: str
    status: Status
    phase: Phase
    turn: int
    at: datetime
    since: datetime
    waiting_for: tuple[Wait, ...] = ()
    ended: str | None = None
    cancel_requested: bool = False
    deadline_at: datetime | None = None
    row: dict[str, Any] | None = None

    @property
    def is_stuck(self) -> bool:
        return any(wait.kind == "nothing" for wait in self.waiting_for)


@dataclass(frozen=True)
class Scene:
    """Everything an explanation looks at. ``depth`` is how many levels of sub-agents are in ``runs``."""

    now: datetime
    runs: Mapping[str, RunFacts]
    fleet: Fleet
    depth: int


def explain(scene: Scene, run_id: str, *, level: int = 0) -> Why:
    """The explanation of one run that is in the scene; those of its sub-agents' runs are inside."""
    run = scene.runs[run_id]
    waiting_for = tuple(_untold(scene, run) if run.is_terminal else _waits(scene, run, level))
    is_stuck = any(wait.kind == "nothing" for wait in waiting_for)
    return Why(
        run_id=run.id,
        agent=run.agent,
        status=run.status,
        phase=run.phase,
        turn=run.turn,
        at=scene.now,
        since=run.finished_at or run.updated_at,
        waiting_for=waiting_for,
        ended=_ending(run) if run.is_terminal else None,
        cancel_requested=run.cancel_requested and not run.is_terminal,
        deadline_at=None if run.is_terminal else run.deadline_at,
        row=run.model_dump(mode="json", exclude={"error", "stop_reason", "last_event"}) if is_stuck else None,
    )


def _ending(run: RunFacts) -> str:
    if run.error is None:
        return str(run.stop_reason)
    return run.error.code if run.error.code == "cancelled" else f"{run.error.code}: {run.error.message}"


def _untold(scene: Scene, run: RunFacts) -> list[Wait]:
    if run.sweep_at is None:
        return []
    what = "the runs of its sub-agents are ended, and the next on its thread begins"
    if run.parent_run_id:
        what = f"its parent {run.parent_run_id} is told"
    return [Wait("family", what, _sweep(scene, "does it"), run.finished_at, run.sweep_at)]


def _waits(scene: Scene, run: RunFacts, level: int) -> list[Wait]:
    """In the order of storage/stuck.py: a lease, then a person, then a due time, then the calls."""
    if run.lease_until is not None:
        return [_step(scene, run)]
    if run.lease_token is not None:
        return [_nothing("endless_lease", run)]
    if run.held:
        return [_thread(scene, run)]
    if run.has_place is False:
        return [_line(run)]
    if run.status == "waiting":
        return _persons(run) or [_nothing("nobody_asked", run)]
    if run.outdated_at is not None:
        return [_version(scene, run), *(_batch(scene, run, level) if run.due_at is None else ())]
    if run.due_at is not None:
        return _due(scene, run) if run.sweep_at is not None else [_nothing("not_announced", run)]
    return _batch(scene, run, level) if run.phase == "tools" else [_nothing("no_next_step", run)]


def _line(run: RunFacts) -> Wait:
    if run.at_work == 0:
        return _nothing("line_stands", run)
    what = f"its turn of key {run.concurrency_key!r} ({run.at_work} at work)"
    moves = "the end of one of these; before it go those of higher priority and the older ones"
    return Wait("line", what, moves, run.start_at or run.updated_at)


def _thread(scene: Scene, run: RunFacts) -> Wait:
    if run.behind is not None:
        what = f"its turn on thread {run.thread_id!r}, behind run {run.behind}"
        return Wait("thread", what, f"the end of that run; see: agentq why {run.behind}", run.created_at)
    if run.sweep_at is not None:
        what = f"its turn on thread {run.thread_id!r}"
        return Wait("thread", what, _sweep(scene, "looks who is before it"), run.created_at, run.sweep_at)
    return _nothing("thread_stands", run)


def _version(scene: Scene, run: RunFacts) -> Wait:
    doing = "its calls" if run.due_at is None else _step_name(run)[0]
    what = (
        f"a worker with version {run.agent_version} of agent {run.agent!r}, to go on with {doing}: "
        f"the agent has changed, to version {run.outdated_by}"
    )
    moves = f"agentq runs adopt {run.id} lets it go on with the new code; agentq runs cancel {run.id} ends it; "
    if scene.fleet.has_version(run.agent, run.agent_version):
        return Wait("version", what, f"{moves}a running worker has its version, and takes it", run.outdated_at)
    return Wait("version", what, f"{moves}a worker with the old code takes it", run.outdated_at, run.sweep_at)


def _nothing(problem: str, run: RunFacts, call: CallFacts | None = None) -> Wait:
    about = f" ({call.tool}, {call.call_id})" if call else ""
    moves = "nothing does: please report it, with the row; " + (
        f"agentq runs cancel {run.id} ends it" if can_cancel(run) else "a cancel does not help either"
    )
    return Wait("nothing", PROBLEMS[problem] + about, moves, run.updated_at, call_id=call.call_id if call else None)


def can_cancel(run: RunFacts) -> bool:
    """A cancel leaves the end of a run to the worker that is at it: it works unless there will be none."""
    is_endless = any(call.status == "running" and call.lease_until is None for call in run.open)
    return (run.lease_token is None or run.lease_until is not None) and not is_endless


def _sweep(scene: Scene, does: str) -> str:
    if scene.fleet.is_empty:
        return f"start one: {START_WORKER}"
    return f"the sweep of any running worker {does}"


# ---------------------------------------------------------------------------------------------- steps


def _step(scene: Scene, run: RunFacts) -> Wait:
    name, call_id = _step_name(run)
    if _is_lost(scene, run):
        return _lost(scene, run, name, call_id)
    moves = "its end; were the worker lost, others see to it when the lease ends"
    if run.cancel_requested:
        moves = "its end, which ends the run as cancelled"
    what = f"{name}, which worker {run.worker} is at{_attempt(run.attempt)}"
    return Wait("step", what, moves, run.claimed_at, run.lease_until, call_id)


def _step_name(run: RunFacts) -> tuple[str, str | None]:
    """What the step does; a single call is run by the tools step itself, and has a time limit there."""
    only = next((call for call in run.open if call.kind == "tool"), None) if run.timeout_secs is not None else None
    return (f"{only.tool} ({only.call_id})", only.call_id) if only else (f"the {_PHASES[run.phase]}", None)


def _is_lost(scene: Scene, work: RunFacts | CallFacts) -> bool:
    return work.lease_until is not None and work.lease_until <= scene.now


def _lost(scene: Scene, work: RunFacts | CallFacts, name: str, call_id: str | None) -> Wait:
    what = f"a worker to take over {name}: worker {work.worker} was lost, its lease has run out"
    return Wait("lost", what, _sweep(scene, "does it within seconds"), work.claimed_at, work.lease_until, call_id)


def _attempt(number: int) -> str:
    return f", attempt {number}" if number > 1 else ""


def _due(scene: Scene, run: RunFacts) -> list[Wait]:
    """A step that is announced, or will be. A worker without the agent puts it off, which says nothing of the run."""
    if run.cancel_requested:
        return [Wait("time", "its end: it was cancelled", _sweep(scene, "ends it"), run.updated_at, run.sweep_at)]
    gap = scene.fleet.gap(run.queue, run.agent)
    is_later = run.due_at is not None and run.due_at > scene.now
    cause = _cause(run.last_event)
    name, call_id = _step_name(run)
    waits = []
    if is_later and run.is_for_later:
        return [
            Wait("time", "the time it was enqueued for", _sweep(scene, "begins it then"), run.created_at, run.due_at)
        ]
    if gap is None and not cause and run.worker and scene.fleet.lacks(run.worker, run.agent):
        what = f"a worker to take {name}: {_given_back(run.worker, run.agent)}"
        return [Wait("pickup", what, _free(scene, run, having=run.agent), run.updated_at, run.due_at, call_id)]
    if is_later and (cause or gap is None):
        what = f"the next try of {name}" + (f": {cause}" if cause else "")
        waits.append(Wait("time", what, "its time; a running worker takes it then", run.updated_at, run.due_at))
    if gap is not None:
        since = min(run.due_at or run.updated_at, run.updated_at)
        waits.append(Wait("worker", gap.what, f"start one: {gap.fix}", since, run.sweep_at))
    if not waits:
        what = f"a worker to take {name}{_attempt(run.attempt + 1)}"
        waits.append(Wait("pickup", what, _free(scene, run), run.due_at, run.sweep_at, call_id))
    return waits


def _given_back(worker: str, agent: str) -> str:
    return f"worker {worker}, which does not have agent {agent!r}, gave it back"


def _free(scene: Scene, work: RunFacts | CallFacts, *, having: str | None = None) -> str:
    number = scene.fleet.consumers(work.queue, having=having)
    which = " that have it" if having else ""
    return f"the first free one of {number} on its queue{which}; it is announced again until one comes"


def _cause(event: EventFacts | None) -> str:
    """Which failure the wait follows, where one does."""
    if event is None:
        return ""
    retry, cooling = event.data.get("retry"), event.data.get("cooling")
    model = f"{event.data.get('provider')}:{event.data.get('model')}"
    if event.type == "step" and isinstance(cooling, dict):
        return f"{model} refuses calls ({cooling.get('code')}), and others have their turn before it"
    if event.type == "step" and isinstance(retry, dict):
        return f"{retry.get('code')} at try {retry.get('try')} of {model}"
    if event.type == "step.failed":
        return f"{event.data.get('error')} at attempt {event.data.get('attempt')}"
    return ""


# ---------------------------------------------------------------------------------------------- calls


def _persons(run: RunFacts) -> list[Wait]:
    return [_person(run, approval) for approval in run.approvals]


def _person(run: RunFacts, approval: ApprovalFacts) -> Wait:
    what, moves = _ASKED.get(approval.kind, _ASKED["approval"])
    words = {"tool": approval.tool, "call_id": approval.call_id, "ids": f"{run.id} {approval.call_id}"}
    words["key"] = f"{run.id}:{run.turn}:{approval.index}"
    since, until = approval.requested_at, approval.expires_at
    return Wait("person", what.format(**words), moves.format(**words), since, until, call_id=approval.call_id)


def _batch(scene: Scene, run: RunFacts, level: int) -> list[Wait]:
    waits = [_call(scene, run, call, level) for call in run.open]
    if not waits:
        return [_nothing("batch_over", run)]
    if len(waits) != run.open_calls:
        waits.append(_nothing("batch_miscounted", run))
    return waits


def _call(scene: Scene, run: RunFacts, call: CallFacts, level: int) -> Wait:
    asked = next((approval for approval in run.approvals if approval.index == call.index), None)
    if asked is not None:
        return _person(run, asked)
    if call.kind == "agent":
        return _sub_agent(scene, run, call, level)
    if call.status == "running":
        return _running(scene, run, call)
    if call.status == "announced":
        return _announced(scene, run, call)
    if not any(_has_lane(other) for other in run.open):
        return _nothing("call_no_lane", run, call)
    began = min((other.announced_at for other in run.calls if other.announced_at), default=None)
    what = f"a free lane for {call.tool} ({call.call_id}): {MAX_LANES} calls run at a time"
    return Wait("lane", what, "the end of any call before it", began, call_id=call.call_id)


def _has_lane(call: CallFacts) -> bool:
    return call.kind == "tool" and call.status in ("announced", "running")


def _running(scene: Scene, run: RunFacts, call: CallFacts) -> Wait:
    name = f"{call.tool} ({call.call_id})"
    if call.lease_until is None:
        return _nothing("call_endless_lease", run, call)
    if _is_lost(scene, call):
        return _lost(scene, call, name, call.call_id)
    moves = f"its result, or its time limit of {call.timeout_secs:g} s"
    if run.cancel_requested:
        moves += "; either ends the run as cancelled"
    what = f"{name}, which worker {call.worker} is at{_attempt(call.attempt)}"
    return Wait("call", what, moves, call.claimed_at, call.lease_until, call.call_id)


def _announced(scene: Scene, run: RunFacts, call: CallFacts) -> Wait:
    if call.sweep_at is None:
        return _nothing("call_not_announced", run, call)
    gap = scene.fleet.gap(call.queue, run.agent)
    if gap is not None:
        what = f"{gap.what}; for {call.tool} ({call.call_id})"
        since = min(call.announced_at or run.updated_at, run.updated_at)
        return Wait("worker", what, f"start one: {gap.fix}", since, call.sweep_at, call.call_id)
    what = f"a worker to take {call.tool} ({call.call_id}){_attempt(call.attempt + 1)}"
    having = None
    if call.worker and scene.fleet.lacks(call.worker, run.agent):
        what, having = f"{what}: {_given_back(call.worker, run.agent)}", run.agent
    return Wait("pickup", what, _free(scene, call, having=having), call.announced_at, call.sweep_at, call.call_id)


def _sub_agent(scene: Scene, run: RunFacts, call: CallFacts, level: int) -> Wait:
    child = scene.runs.get(call.child_run_id or "")
    if child is None:
        if call.child_run_id is None or level < scene.depth:
            return _nothing("child_missing", run, call)
        # Too deep to have been read.
        return Wait("run", f"its sub-agent's run {call.child_run_id}", f"agentq why {call.child_run_id}")
    if not child.is_terminal:
        what = f"agent {child.agent} in run {child.id}, for {call.call_id}"
        inside = explain(scene, child.id, level=level + 1)
        return Wait("run", what, "the end of that run", child.created_at, call_id=call.call_id, run=inside)
    if child.sweep_at is None:
        return _nothing("child_untold", run, call)
    what = f"the answer of run {child.id}, which has ended"
    return Wait("family", what, _sweep(scene, "passes it on"), child.finished_at, child.sweep_at, call.call_id)
