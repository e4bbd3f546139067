"""Tool calls: run one within its limits and turn whatever happens into its result."""

import logging
import time
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from uuid import UUID

from agentq.agent import AgentSpec
from agentq.approvals import Deferred, NeedsApproval
from agentq.arguments import ArgumentsError
from agentq.content import File, Image
from agentq.context import RunContext
from agentq.errors import ErrorInfo, ToolError
from agentq.heartbeat import Lease
from agentq.hooks import EndRun
from agentq.invoke import ToolCancelledError, ToolTimeoutError, invoke
from agentq.limits import MAX_HOOKS_SECS
from agentq.messages import ToolCall, ToolResult
from agentq.outcomes import CallsFinished, HookEnded
from agentq.results import to_content
from agentq.run import OpenCall, Snapshot
from agentq.services import Services
from agentq.steps.base import context, is_stopped
from agentq.steps.hooked import Notes, Passed, after_tool, before_tool
from agentq.steps.review import reject
from agentq.storage import approvals
from agentq.storage import steps as storage
from agentq.storage.approvals import Permission, Question
from agentq.storage.rows import CallRef
from agentq.text import clean, cut, told
from agentq.tools import Tool
from agentq.unknown import Happened, NotHappened
from agentq.values import replace

logger = logging.getLogger(__name__)

_MESSAGE_CHARS = 4_000
# How a call comes back that its tool has not been called for.
_NOT_BEGUN = frozenset({"unknown_tool", "invalid_arguments"})


@dataclass(frozen=True)
class CallDone:
    """What one call brought: its result, and the run's end where a hook or ``on_tool_exception="fail"`` wants it.

    ``probe`` is what a tool's probe said of an earlier attempt, where it was asked; ``noted`` is of its hooks. ``asks``
    is what a person is to be asked before the call is run at all; the result is what becomes of it where nobody can be.
    """

    result: ToolResult
    ends: HookEnded | ErrorInfo | None = None
    probe: str | None = None
    asks: Question | None = None
    noted: dict[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> dict[str, Any]:
        """For the event: what a probe said, and what hooks did."""
        return ({"probe": self.probe} if self.probe else {}) | self.noted

    def as_outcome(self, index: int) -> CallsFinished | HookEnded:
        """For a step that runs its only call itself."""
        if isinstance(self.ends, HookEnded):
            return replace(self.ends, results=((index, self.result),))
        return CallsFinished(((index, self.result),), fatal=self.ends)

    def as_last(self) -> CallsFinished | HookEnded:
        """For a lane, whose result is saved already."""
        return self.ends if isinstance(self.ends, HookEnded) else CallsFinished(fatal=self.ends)


def run_call(
    snapshot: Snapshot,
    call: OpenCall,
    agent: AgentSpec,
    services: Services,
    *,
    lease: Lease,
    attempt: int,
    may_have_run: bool,
) -> CallDone:
    """Run the call and its hooks. Never raises for anything the tool does, short of killing the process.

    ``may_have_run``: an earlier attempt was begun, so that a tool's probe is asked first whether it took effect. Raises
    LeaseLost when the call was answered while this process stood still: its tool must not begin any more.
    """
    call = replace(call, timeout_secs=_bounded(call, snapshot))
    ref = CallRef(snapshot.run_id, snapshot.turn, call.index)
    given = _permission(ref, services) if call.needs_approval else None
    sent = _known_to_ask(call, services, lease) or asked_for(snapshot, call, services, token=lease.token)
    if call.needs_approval and (given is None or not given.is_approved):
        return CallDone(_not_permitted(call))
    # Other than the model's are those that hooks had made of them when the tool asked: they have to do so again.
    bound = None if given is None or given.edited is not None or _permits(given, sent) else given.arguments_sha256
    key, approved = ref.idempotency_key, call.needs_approval
    ctx = context(snapshot, call_id=call.call_id, idempotency_key=key, attempt=attempt, approved=approved)
    this = _Attempt(snapshot, call, agent, services, ctx, lease, may_have_run, bound)
    if given is None or given.edited is None:
        return _run_with_hooks(sent, sent, this)
    return _run_with_hooks(sent, sent.model_copy(update={"arguments": given.edited}), this)


@dataclass(frozen=True)
class _Attempt:
    """One try of a call, with what it needs; ``bound`` is the SHA-256 of the arguments that hooks are to make of it."""

    snapshot: Snapshot
    call: OpenCall
    agent: AgentSpec
    services: Services
    ctx: RunContext
    lease: Lease
    may_have_run: bool
    bound: str | None


def _permission(ref: CallRef, services: Services) -> Permission | None:
    with services.database.autocommit() as connection:
        return approvals.permission(connection, ref)


def _permits(given: Permission | None, sent: ToolCall) -> bool:
    """Whether it was given, and for what the model sent."""
    return given is not None and given.is_approved and given.arguments_sha256 == _sha256(sent)


def _sha256(call: ToolCall) -> str:
    return sha256(call.arguments.encode()).hexdigest()


def _not_permitted(call: OpenCall) -> ToolResult:
    text = "Not run: no approval of these arguments is on record."
    return ToolResult(call_id=call.call_id, name=call.tool, status="rejected", code="rejected", text=text)


def refused(snapshot: Snapshot, call: OpenCall, services: Services) -> ToolResult | None:
    """The result of a sub-agent's call that may not be begun, as no person has approved it; None where it may."""
    if call.kind != "agent" or not call.needs_approval:
        return None
    given = _permission(CallRef(snapshot.run_id, snapshot.turn, call.index), services)
    return None if _permits(given, asked_for(snapshot, call, services)) else _not_permitted(call)


def _as_edited(done: CallDone, sent: ToolCall, edited: str, agent: AgentSpec) -> CallDone:
    """The model is told what ran in the place of its own arguments; what does not fit goes back to the person."""
    if done.result.code == "invalid_arguments":
        need = NeedsApproval(f"The changed arguments do not fit: {done.result.text}")
        return replace(done, asks=_question(sent, need, agent))
    # What is handed to the outside has its result still to come.
    return done if done.asks is not None else replace(done, result=tell_of_edit(done.result, edited))


def tell_of_edit(result: ToolResult, edited: str | None) -> ToolResult:
    """The result of a call that ran with the arguments ``edited`` by a person, so that the model knows of them."""
    if edited is None:
        return result
    note = f"A person changed the arguments to {cut(edited, _MESSAGE_CHARS)} before it ran.\n"
    media = tuple(one.placed(len(note) + one.at) for one in result.media)
    return result.model_copy(update={"text": note + result.text, "media": media})


def _question(sent: ToolCall, need: NeedsApproval, agent: AgentSpec) -> Question:
    """What a person is asked; the agent's rule for the tool goes before the tool's own."""
    rule = agent.approve.get(sent.name)
    deadline = rule if rule is not None and rule.deadline_secs is not None else need
    return Question(sent.arguments, "approval", need.reason, deadline.deadline_secs, deadline.on_expiry)


def _run_with_hooks(sent: ToolCall, asked: ToolCall, this: _Attempt) -> CallDone:
    """Run what is ``asked`` for: what the model ``sent``, or what a person made of it."""
    call, agent, lease, notes = this.call, this.agent, this.lease, Notes()
    passed = Passed[ToolCall | ToolResult](asked)
    if agent.listeners["before_tool"]:
        began = time.monotonic()
        lease.begin(MAX_HOOKS_SECS)
        passed = before_tool(agent, this.ctx, asked, notes, is_bound=this.bound is None)
        if passed.ends is not None:
            unrun = interrupted(call) if this.may_have_run else hook_ended(call)
            return CallDone(unrun, _ended(passed.ends), noted=notes.data)
        if not _is_sure(lease, this.services):
            asked_for(this.snapshot, call, this.services, token=lease.token)
        later = replace(this.snapshot, age_secs=this.snapshot.age_secs + time.monotonic() - began)
        call = replace(call, timeout_secs=_bounded(call, later))
    if isinstance(passed.value, ToolResult):
        done = CallDone(passed.value)
    elif this.bound not in (None, _sha256(passed.value)):
        done = CallDone(_not_permitted(call))
    else:
        done = _unless_decided(_run_or_probe(passed.value, call, this), passed.value, call, this)
        done = done if asked is sent else _as_edited(done, sent, asked.arguments, agent)
    if agent.listeners["after_tool"] and done.asks is None:
        lease.prolong(MAX_HOOKS_SECS)
        after = after_tool(agent, this.ctx, done.result, notes)
        done = replace(done, result=after.value, ends=_ended(after.ends) or done.ends)
    return replace(done, noted=notes.data) if notes.data else done


def _run_or_probe(asked: ToolCall, call: OpenCall, this: _Attempt) -> CallDone:
    agent, ctx, lease = this.agent, this.ctx, this.lease
    probed = _probe(asked, call, agent, ctx, lease) if this.may_have_run and call.on_unknown == "probe" else None
    done = probed if probed and probed.probe != NOT_HAPPENED else _run(asked, call, agent, ctx, lease)
    if probed:
        return replace(done, probe=probed.probe)
    return _not_again(done, call) if this.may_have_run and done.result.code in _NOT_BEGUN else done


def _not_again(done: CallDone, call: OpenCall) -> CallDone:
    """A deploy keeps a call from running a second time: what the first try did is as unknown as ever."""
    lost = interrupted(call)
    return replace(done, result=lost.model_copy(update={"text": f"{lost.text} {done.result.text}"}))


def _unless_decided(done: CallDone, asked: ToolCall, call: OpenCall, this: _Attempt) -> CallDone:
    """Where the tool asks whether it may run, and a decision for the rest of the run says so, nobody is asked again."""
    if done.asks is None or done.asks.kind != "approval":
        return done
    with this.services.database.autocommit() as connection:
        _, standing = approvals.under_review(connection, this.snapshot.run_id)
        answer = standing.get(call.tool)
        if answer is None:
            return done
        # Of an attempt that is lost it stays on record, too: it was decided so.
        approvals.put(connection, this.snapshot, call, replace(done.asks, answer=answer))
    if answer.status == "rejected":
        return CallDone(reject(call, answer.reason))
    return _run(asked, call, this.agent, replace(this.ctx, approved=True), this.lease)


def _ended(ends: EndRun | ErrorInfo | None) -> HookEnded | ErrorInfo | None:
    return HookEnded(ends.output) if isinstance(ends, EndRun) else ends


def _known_to_ask(call: OpenCall, services: Services, lease: Lease) -> ToolCall | None:
    """What the model asked for, where it came along and the lease is ours for sure; else the database says it."""
    if call.arguments is None or not _is_sure(lease, services):
        return None
    return ToolCall(id=call.call_id, name=call.tool, arguments=call.arguments)


def _is_sure(lease: Lease, services: Services) -> bool:
    """Whether nobody else can have been given the work by now."""
    return lease.sure_until is not None and services.clock() < lease.sure_until


def asked_for(snapshot: Snapshot, call: OpenCall, services: Services, *, token: UUID | None = None) -> ToolCall:
    """What the model asked for: it stands in the reply, which is found by the place of the call's result.

    Raises LeaseLost where the lease of ``token`` is not held any more.
    """
    with services.database.autocommit() as connection:
        return storage.reply(connection, snapshot.run_id, token=token).calls[call.index]


def _bounded(call: OpenCall, snapshot: Snapshot) -> float:
    """The call's time limit, or what is left of the run's."""
    left = snapshot.secs_left
    return call.timeout_secs if left is None else min(call.timeout_secs, max(left, 0.001))


NOT_HAPPENED = "not happened"


def _probe(asked: ToolCall, call: OpenCall, agent: AgentSpec, ctx: RunContext, lease: Lease) -> CallDone:
    """What the destination says of an earlier attempt. With NOT_HAPPENED its result means nothing: the tool may run."""
    tool = agent.tools.get(call.tool)
    if tool is None or tool.probe is None:
        return CallDone(interrupted(call), probe="not there any more")
    lease.begin(call.timeout_secs)
    try:
        arguments = tool.probe.bind(tool.parameters.parse(asked.arguments), ctx)
        answer = invoke(
            tool.probe.function, arguments, _answer, timeout_secs=call.timeout_secs, is_cancelled=lease.is_cancelled
        )
    except (Exception, SystemExit, ToolTimeoutError) as error:
        if is_stopped(error):
            raise
        # Its text may hold what the run is about: only for those who ask for it.
        what = type(error).__name__
        logger.warning("the on_unknown function of tool %s: %s (AGENTQ_LOG_LEVEL=DEBUG shows more)", asked.name, what)
        logger.debug("the on_unknown function of tool %s", asked.name, exc_info=True)
        return CallDone(interrupted(call), probe=f"failed with {what}")
    if answer is None:
        return CallDone(interrupted(call), probe=NOT_HAPPENED)
    text, media = answer
    return CallDone(ToolResult(call_id=asked.id, name=asked.name, text=text, media=media), probe="happened")


def _answer(value: Any) -> tuple[str, tuple[Image | File, ...]] | None:
    if isinstance(value, NotHappened):
        return None
    if isinstance(value, Happened):
        return to_content(value.result)
    raise TypeError(f"it returned {type(value).__name__}, not Happened(...) or NotHappened()")


def _run(asked: ToolCall, call: OpenCall, agent: AgentSpec, ctx: RunContext, lease: Lease) -> CallDone:
    tool = agent.tools.get(call.tool)
    if tool is None or tool.agent is not None:
        # Taken away since it was asked for, or made an agent's: what runs is never another function.
        return CallDone(unknown_tool(call, agent))
    lease.begin(call.timeout_secs)
    try:
        return CallDone(_success(asked, tool, call, ctx, lease))
    except ArgumentsError as error:
        return CallDone(ToolResult.error(asked, "invalid_arguments", str(error)))
    except (NeedsApproval, Deferred) as waits:
        return _waiting(asked, call, agent, ctx, waits)
    except ToolError as error:
        return CallDone(ToolResult.error(asked, "tool_error", _shown(str(error.message or "the tool failed"))))
    except ToolTimeoutError:
        return CallDone(timed_out(call))
    except ToolCancelledError:
        text = "The run was cancelled while the tool was running: it may or may not have taken effect."
        return CallDone(ToolResult.error(asked, "cancelled", text))
    except (Exception, SystemExit) as error:
        if is_stopped(error):
            # The process is told to go, the tool did nothing wrong: what becomes of the call is the sweep's to say.
            raise
        return _failed(asked, agent, error)


def _waiting(
    asked: ToolCall, call: OpenCall, agent: AgentSpec, ctx: RunContext, waits: NeedsApproval | Deferred
) -> CallDone:
    """A tool that asks whether it may run, or that has handed its call to the outside."""
    if isinstance(waits, Deferred):
        question = Question(asked.arguments, "deferred", waits.note, waits.deadline_secs, waits.on_expiry)
        return CallDone(interrupted(call), asks=question)
    if ctx.approved:
        return _failed(asked, agent, waits)
    not_asked = ToolResult.error(asked, "cancelled", "Not run: it needs approval, and the run has ended.")
    return CallDone(not_asked, asks=_question(asked, waits, agent))


def _success(asked: ToolCall, tool: Tool, call: OpenCall, ctx: RunContext, lease: Lease) -> ToolResult:
    arguments = tool.bind(tool.parameters.parse(asked.arguments), ctx)
    text, media = invoke(
        tool.function, arguments, to_content, timeout_secs=call.timeout_secs, is_cancelled=lease.is_cancelled
    )
    return ToolResult(call_id=asked.id, name=asked.name, text=text, media=media)


def _failed(asked: ToolCall, agent: AgentSpec, error: BaseException) -> CallDone:
    logger.info("tool %s raised %s", asked.name, type(error).__name__)
    logger.debug("tool %s", asked.name, exc_info=error)
    rule = agent.on_tool_exception
    text = _shown(told(error))
    if callable(rule) and isinstance(error, Exception):
        try:
            text = _shown(str(rule(error)))
        except Exception:
            logger.warning("on_tool_exception of agent %s raised", agent.name)
            logger.debug("on_tool_exception of agent %s", agent.name, exc_info=True)
    result = ToolResult.error(asked, "tool_failed", text)
    if rule == "fail":
        return CallDone(
            result, ErrorInfo(code="tool_failed", message=f"tool {asked.name}: {text}", details={"tool": asked.name})
        )
    return CallDone(result)


def _shown(text: str) -> str:
    return cut(clean(text), _MESSAGE_CHARS) if text.strip() else "the tool failed"


def timed_out(call: OpenCall) -> ToolResult:
    text = f"The tool did not finish within {call.timeout_secs:g} s; it may or may not have taken effect."
    return _settled(call, "timeout", text)


def interrupted(call: OpenCall) -> ToolResult:
    text = "The worker stopped while the tool was running: it may or may not have taken effect. It was not run again."
    return _settled(call, "interrupted", text)


def hook_ended(call: OpenCall) -> ToolResult:
    return _settled(call, "cancelled", "Not run: a hook ended the run.")


def not_run(call: OpenCall, fatal: ErrorInfo) -> ToolResult:
    why = "the agent has changed, and the run ends" if fatal.code == "agent_changed" else "the run's time is over"
    return _settled(call, "cancelled", f"Not run: {why}.")


def unknown_tool(call: OpenCall, agent: AgentSpec) -> ToolResult:
    known = ", ".join(agent.tools) or "none"
    return _settled(call, "unknown_tool", f"There is no tool {call.tool!r} any more. The tools are: {known}.")


def crashed(call: OpenCall, attempts: int) -> ToolResult:
    return _settled(call, "crashed", f"The tool killed its worker {attempts} times; it will not be run again.")


def _settled(call: OpenCall, code: str, text: str) -> ToolResult:
    return ToolResult(call_id=call.call_id, name=call.tool, status="error", code=code, text=text)
