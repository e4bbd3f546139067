"""Whether anything was lost or done twice: pure checks of the evidence, each with the rule it holds."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentq.limits import MAX_ATTEMPTS
from agentq.messages import AssistantMessage, ToolMessage
from agentq.run import TERMINAL
from tests.chaos.agents import GATED, RESULTS, final_text
from tests.chaos.evidence import Evidence, FoundEvent, FoundRun
from tests.chaos.faults import Fault

# A fault of the database reaches every worker; those of workers reach the processes they name.
DATABASE_FAULTS = "Postgres"
# From the loss of a worker to the end of its lease, and what the sweep and a backlog take on top.
EXPLAINED_SECS = 60.0
FREEZE = "worker frozen"


@dataclass
class Verdict:
    """``lost`` and ``doubled`` fail the chaos, and so does whatever else is ``wrong``; the rest is counted."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.doubled or self.wrong)


def audit(evidence: Evidence) -> Verdict:
    """All rules."""
    verdict = Verdict()
    verdict.lost += [*lost_runs(evidence), *lost_results(evidence), *lost_effects(evidence)]
    verdict.doubled += doubled_effects(evidence)
    verdict.wrong += [
        *incomplete_transcripts(evidence),
        *unexpected_endings(evidence),
        *unexpected_codes(evidence),
        *unexplained_interruptions(evidence),
        *effects_without_leave(evidence),
        *gaps_in_events(evidence),
        *left_behind(evidence),
    ]
    verdict.counts = _counts(evidence)
    return verdict


def lost_runs(evidence: Evidence) -> Iterator[str]:
    """Every run that a producer was told of is there, and has ended; so have the runs of sub-agents."""
    for run_id in evidence.asked.agents.keys() - evidence.runs.keys():
        yield f"run {run_id} was accepted and is gone"
    for run in evidence.runs.values():
        if run.status not in TERMINAL:
            yield f"run {run.id} ({run.agent}) is still {run.status}"


def lost_results(evidence: Evidence) -> Iterator[str]:
    """Every call has come back, and its result stands where its call was asked for."""
    results = {
        (run.id, position): message.result.call_id
        for run in evidence.runs.values()
        for position, message in run.messages
        if isinstance(message, ToolMessage)
    }
    for call in evidence.calls:
        if call.status != "done":
            yield f"call {call.key} ({call.tool}) is still {call.status}"
        elif results.get((call.run_id, call.position)) != call.call_id:
            yield f"call {call.key} ({call.tool}) has no result at {call.position}"


def lost_effects(evidence: Evidence) -> Iterator[str]:
    """A call that came back as a success has happened."""
    ended = {effect.key for effect in evidence.effects if effect.kind == "end"}
    for call in evidence.calls:
        if call.kind == "tool" and call.code == "success" and call.key not in ended:
            yield f"call {call.key} ({call.tool}) is a success that never happened"


def doubled_effects(evidence: Evidence) -> Iterator[str]:
    """What is not marked as safe was begun once at most; what is looked for before it runs again happened once."""
    rules = {call.key: call for call in evidence.calls}
    for key, count in _begun(evidence).items():
        if count > 1 and not (rules[key].is_safe or rules[key].is_checked):
            yield f"call {key} was begun {count} times"
    for key, count in _ended(evidence).items():
        if count > 1 and rules[key].is_checked and not _went_on_later(evidence, key):
            yield f"call {key} happened {count} times, though it was looked for"


def _went_on_later(evidence: Evidence, key: str) -> bool:
    """A frozen process that goes on does what nobody could know it would still do."""
    pids = {effect.pid for effect in evidence.effects if effect.key == key}
    return any(fault.kind == FREEZE and fault.pids & pids for fault in evidence.faults)


def incomplete_transcripts(evidence: Evidence) -> Iterator[str]:
    """No place is empty, a reply's calls are answered in their order, and the last word is the right one."""
    for run in evidence.runs.values():
        if run.status not in TERMINAL:
            continue
        if [position for position, _ in run.messages] != list(range(run.message_count)):
            yield f"run {run.id}: places {[position for position, _ in run.messages]} of {run.message_count}"
        if _asked(run) != _answered(run):
            yield f"run {run.id}: asked {_asked(run)}, answered {_answered(run)}"
        last = run.messages[-1][1] if run.messages else None
        expected = final_text(run.agent, RESULTS[run.agent])
        if run.status == "completed" and not (isinstance(last, AssistantMessage) and last.text == expected):
            yield f"run {run.id}: the last message is {last!r}, not {expected!r}"


def _asked(run: FoundRun) -> list[list[str]]:
    replies = [message for _, message in run.messages if isinstance(message, AssistantMessage)]
    return [[call.id for call in reply.calls] for reply in replies if reply.calls]


def _answered(run: FoundRun) -> list[list[str]]:
    answers: list[list[str]] = []
    for _, message in run.messages:
        if isinstance(message, AssistantMessage) and message.calls:
            answers.append([])
        elif isinstance(message, ToolMessage) and answers:
            answers[-1].append(message.result.call_id)
    return answers


def unexpected_endings(evidence: Evidence) -> Iterator[str]:
    """A run is cancelled if somebody asked for it, and fails only after its step has lost three workers."""
    for run in evidence.runs.values():
        if run.status == "cancelled" and not _was_cancelled(evidence, run):
            yield f"run {run.id} was cancelled, and nobody had asked"
        if run.status == "failed" and not _lost_its_workers(run):
            yield f"run {run.id} failed: {run.error}"


def _was_cancelled(evidence: Evidence, run: FoundRun) -> bool:
    """Asked for, or the run it works for has ended before it."""
    parent = evidence.runs.get(run.parent) if run.parent else None
    return run.id in evidence.asked.cancels or (parent is not None and _was_cancelled(evidence, parent))


def _lost_its_workers(run: FoundRun) -> bool:
    is_crash = '"crashed"' in (run.error or "")
    return is_crash and sum("lost_worker" in event.data for event in run.events) >= MAX_ATTEMPTS


def unexpected_codes(evidence: Evidence) -> Iterator[str]:
    """A call succeeds, or comes back as something that was done to it."""
    for call in evidence.calls:
        run = evidence.runs[call.run_id]
        may_be = {"success", None}
        is_told = not (call.is_safe or call.is_checked)
        may_be |= {"interrupted"} if is_told or run.status == "cancelled" else set()
        may_be |= {"crashed"} if not is_told and call.attempt >= MAX_ATTEMPTS else set()
        may_be |= {"rejected"} if call.tool == GATED else set()
        may_be |= {"cancelled"} if run.status == "cancelled" else set()
        may_be |= {"cancelled", "crashed"} if call.kind == "agent" else set()
        if call.code not in may_be:
            yield f"call {call.key} ({call.tool}) came back as {call.code}"


def unexplained_interruptions(evidence: Evidence) -> Iterator[str]:
    """A call is interrupted because its worker was lost to a fault, or its database was; its event names the worker."""
    told: Counter[str] = Counter()
    for run in evidence.runs.values():
        for event in run.events:
            if event.data.get("code") == "interrupted":
                told[run.id] += 1
                if not _is_explained(evidence.faults, event):
                    yield f"run {run.id}: interrupted at {event.at:.1f}, and there was no fault: {event.data}"
    for run_id, count in Counter(call.run_id for call in evidence.calls if call.code == "interrupted").items():
        # A cancelled run ends without waiting for its calls: its end closes those that are running.
        if count > told[run_id] and evidence.runs[run_id].status != "cancelled":
            yield f"run {run_id}: {count} calls were interrupted, its events tell of {told[run_id]}"


def _is_explained(faults: list[Fault], event: FoundEvent) -> bool:
    worker = event.data.get("lost_worker") or event.data.get("worker") or ""
    pids = {int(pid) for pid in worker.rpartition(":")[2].split("/") if pid.isdigit()}
    return any(
        fault.at <= event.at
        and event.at - EXPLAINED_SECS <= fault.until
        and (fault.kind.startswith(DATABASE_FAULTS) or bool(fault.pids & pids))
        for fault in faults
    )


def effects_without_leave(evidence: Evidence) -> Iterator[str]:
    """A call that a person rejected did not happen."""
    begun = _begun(evidence)
    for call in evidence.calls:
        if call.code == "rejected" and begun[call.key]:
            yield f"call {call.key} was rejected and happened"


def gaps_in_events(evidence: Evidence) -> Iterator[str]:
    """Events of a run are numbered from 1 without a gap."""
    for run in evidence.runs.values():
        numbers = [event.number for event in run.events]
        if numbers != list(range(1, run.event_count + 1)):
            yield f"run {run.id}: events {numbers} of {run.event_count}"


def left_behind(evidence: Evidence) -> Iterator[str]:
    """No lease, nothing for the sweep, and nobody to be asked, once all runs have ended."""
    for run in evidence.runs.values():
        if run.is_held:
            yield f"run {run.id} ({run.status}) is still held or waits for the sweep"
    for call in evidence.calls:
        if call.is_held:
            yield f"call {call.key} ({call.status}) is still held or waits for the sweep"
    if evidence.pending_approvals:
        yield f"{evidence.pending_approvals} approvals are pending"


def _begun(evidence: Evidence) -> Counter[str]:
    return Counter(effect.key for effect in evidence.effects if effect.kind == "begin")


def _ended(evidence: Evidence) -> Counter[str]:
    return Counter(effect.key for effect in evidence.effects if effect.kind == "end")


def _counts(evidence: Evidence) -> Counter[str]:
    begun, ended = _begun(evidence), _ended(evidence)
    counts = Counter(f"runs {run.status}" for run in evidence.runs.values())
    counts += Counter(f"calls {call.code}" for call in evidence.calls if call.code)
    counts["runs"] = len(evidence.runs)
    counts["calls"] = len(evidence.calls)
    counts["steps"] = sum(event.type == "step" for run in evidence.runs.values() for event in run.events)
    counts["model calls made"] = evidence.model_calls
    counts["unsafe effects"] = sum(
        begun[call.key] > 0 for call in evidence.calls if not (call.is_safe or call.is_checked)
    )
    checked = [(begun[call.key], ended[call.key]) for call in evidence.calls if call.is_checked and begun[call.key]]
    counts["checked effects"] = len(checked)
    counts["checked effects begun again"] = sum(begins > 1 for begins, _ in checked)
    counts["checked effects twice"] = sum(ends > 1 for _, ends in checked)
    counts["questions"] = evidence.questions
    safe = [begun[call.key] for call in evidence.calls if call.is_safe and begun[call.key]]
    counts["safe effects"], counts["safe effects repeated"] = len(safe), sum(safe) - len(safe)
    return counts
