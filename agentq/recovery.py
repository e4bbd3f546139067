"""The rule that finds what was lost: expired leases, wake-ups that never arrived, parents that were never told."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Literal

from agentq.engine import Engine, settled
from agentq.errors import ErrorInfo, LeaseLost, LockedError, UnavailableError
from agentq.heartbeat import GRACE_SECS
from agentq.limits import MAX_ATTEMPTS
from agentq.messages import ToolResult
from agentq.outcomes import Cancelled, Failed
from agentq.run import TERMINAL, OpenCall, Snapshot
from agentq.saving import CallEnd
from agentq.steps.base import Done
from agentq.steps.tool_batch import CallDone, crashed, timed_out
from agentq.storage import calls, leases, line, outdated, steps, threads
from agentq.storage.journal import NewEvent
from agentq.storage.leases import Due
from agentq.storage.rows import Claim
from agentq.storage.steps import Again
from agentq.values import replace
from agentq.wire import WakeUp

logger = logging.getLogger(__name__)


def sweep(
    engine: Engine,
    *,
    limit: int = 500,
    mine: Sequence[str] = (),
    spare_leases: bool = False,
    hung: Callable[[str], None] = logger.warning,
) -> int:
    """One round; the answer is how much there was to look at. Any number of processes may sweep at the same time.

    ``mine`` are living processes of this worker's pool: one may be too busy to renew its lease, as with a tool that
    never lets go of the interpreter, and is not lost for that; ``hung`` is called with one whose tool has outlived its
    time limit and is not to be stopped. With ``spare_leases`` those that ran out are left alone:
    nobody could renew one while the database was away.
    """
    lease_secs, asked = engine.services.lease_secs, time.monotonic()
    with engine.services.database.autocommit() as connection:
        found = leases.due(connection, limit=limit, mine=mine, fading_secs=lease_secs / 2)
        if time.monotonic() - asked > lease_secs / 3:
            raise UnavailableError("Postgres stood still: nobody could renew a lease meanwhile")
        fading = [due for due in found if due.kind == "fading"]
        for due in fading:
            grace_secs = GRACE_SECS + lease_secs / 3
            if process := leases.keep(connection, due, mine=mine, lease_secs=lease_secs, grace_secs=grace_secs):
                hung(process)
    left = [due for due in found if due.kind != "fading" and not (spare_leases and due.leased)]
    lost = [due for due in left if due.leased or due.kind in ("late", "undecided", "behind") or due.status in TERMINAL]
    _each(engine, lost, _look_at)
    _line_up(engine, [due.run_id for due in left if due.kind == "line"])
    _announce_again(engine, [due for due in left if due not in lost and due.kind != "line"])
    return len(left)


def _line_up(engine: Engine, run_ids: list[str]) -> None:
    """What has become due goes into the line of its concurrency key, and those who are next are let in."""
    if not run_ids:
        return
    with engine.services.database.autocommit() as connection:
        keys = line.keys_of(connection, run_ids)
    for key, due in keys.items():
        let_in(engine, key, due)


def let_in(engine: Engine, key: str, due: Sequence[str] = ()) -> None:
    """Give free places of a concurrency key to the first in its line, with those that have become due."""
    services = engine.services
    with services.database.transaction() as connection:
        wake_ups = line.let_in_if_free(connection, key, patience_secs=services.patience_secs, due=due)
    engine.saver.send(wake_ups)


def let_in_all(engine: Engine) -> None:
    """See to keys and threads that stand still, as when somebody has deleted a run that was at work; now and then is
    enough.
    """
    with engine.services.database.autocommit() as connection:
        keys, held_up = line.standing(connection), threads.standing(connection)
    for key in keys:
        logger.warning("concurrency key %s had a free place and a line: letting the first in", key)
        let_in(engine, key)
    for thread_id in held_up:
        logger.warning("thread %s had nobody at work and a message that waits: letting it go", thread_id)
        engine.let_follow(thread_id)


def wake_outdated(engine: Engine, *, is_new: bool = False) -> int:
    """See to runs that were left to code of another version than others had, which this process may have.

    ``is_new``: it asks for the first time. The answer is how many are announced now.
    """
    woken = 0
    while True:
        with engine.services.database.autocommit() as connection:
            some = outdated.wake(connection, engine.services.agents.values(), is_new=is_new)
        if some == 0:
            return woken
        woken += some


def take_back(engine: Engine, gone: str, *, forgive: bool = False) -> int:
    """Settle what a worker, or a process of its pool, held that is known to be dead; the answer is how much it was.

    ``forgive``: it was told to end, which is no fault of the steps it left.
    """
    later = _Later()
    settling = Engine(replace(engine.services, dispatcher=later))
    with engine.services.database.autocommit() as connection:
        found = leases.held_by(connection, gone)

    def recover(engine: Engine, due: Due) -> None:
        if due.kind == "run":
            _recover_step(engine, due, gone=gone, forgive=forgive)
        else:
            _recover_call(engine, due, gone=gone)

    _each(settling, found, recover)
    # Last, because a broker that hangs must not keep us from settling the rest.
    engine.saver.send(later.wake_ups)
    return len(found)


class _Later:
    """A dispatcher that keeps what is to be sent."""

    def __init__(self) -> None:
        self.wake_ups: list[WakeUp] = []

    def send(self, wake_up: WakeUp) -> None:
        self.wake_ups.append(wake_up)


def _each(engine: Engine, found: list[Due], look_at: Callable[[Engine, Due], bool | None]) -> None:
    """Look at one after the other, until one says that there is no use (False)."""
    for due in found:
        try:
            if look_at(engine, due) is False:
                return
        except LeaseLost as lost:
            logger.info("%s", lost)
        except LockedError as error:
            # Looked at again in the next round: it says nothing of the database, and must not keep us from the others.
            logger.warning("run %s: %s", due.run_id, error)
        except UnavailableError:
            raise
        except Exception as error:
            # One that cannot be read, say of a newer release, must not keep the sweep from all others.
            logger.error("run %s could not be looked after: %s: %s", due.run_id, type(error).__name__, error)
            logger.debug("run %s", due.run_id, exc_info=True)
            with engine.services.database.autocommit() as connection:
                leases.postpone(connection, due)


def _look_at(engine: Engine, due: Due) -> None:
    if due.kind == "run" and due.status in ("completed", "failed", "cancelled"):
        engine.tell_of_end(due.run_id)
    elif due.kind == "behind":
        engine.look_behind(due.run_id)
    elif due.kind == "late":
        engine.expire(due.run_id)
    elif due.kind == "undecided":
        engine.expire_approvals(due.run_id)
    elif due.kind == "run":
        _recover_step(engine, due)
    else:
        _recover_call(engine, due)


def _announce_again(engine: Engine, found: list[Due]) -> None:
    """Send wake-ups that are due, or were lost; none after the first that the broker does not take."""
    database, patience = engine.services.database, engine.services.patience_secs
    runs = [due.run_id for due in found if due.kind == "run"]
    again: dict[str, Again] = {}
    if runs:
        with database.autocommit() as connection:
            again = leases.reannounce_steps(connection, runs, patience_secs=patience)

    def announce(engine: Engine, due: Due) -> bool:
        if due.kind == "run":
            wake_up = again.pop(due.run_id, Again())
        else:
            with database.autocommit() as connection:
                wake_up = leases.reannounce_call(connection, due.ref, patience_secs=patience)
        is_sent = engine.go_on(due.run_id, wake_up)
        if not is_sent and due.kind == "run":
            again[due.run_id] = wake_up
        elif not is_sent:
            with database.autocommit() as connection:
                leases.hasten_call(connection, due.ref)
        return is_sent

    _each(engine, found, announce)
    if again:
        with database.autocommit() as connection:
            # It costs no patience: the next round begins with them, as soon as the broker is back.
            leases.hasten_steps(connection, list(again))


def _recover_step(engine: Engine, due: Due, *, gone: str | None = None, forgive: bool = False) -> None:
    services = engine.services
    with services.database.autocommit() as connection:
        taken = steps.take_over(
            connection, due.run_id, lease_secs=services.lease_secs, worker=services.worker, gone=gone
        )
    if taken is None:
        return
    claim, snapshot = taken
    logger.warning("run %s: worker %s was lost in %s", claim.run_id, claim.worker, snapshot.phase)
    data = {"lost_worker": claim.worker}
    only = snapshot.only_call
    verdict = _verdict(claim, only, snapshot) if only else "again"
    if only is not None and verdict != "again":
        done = engine.unclear(snapshot, only) if verdict == "unclear" else settled(only, verdict)
        done.data |= data
        engine.settle(claim, snapshot, done)
    elif snapshot.cancel_requested:
        engine.settle(claim, snapshot, Done(Cancelled(), data))
    elif claim.attempt >= MAX_ATTEMPTS and not (forgive and only is None):
        engine.settle(claim, snapshot, Done(Failed(_crashed(claim, snapshot)), data))
    else:
        event = NewEvent("step.recovered", data | {"phase": snapshot.phase, "attempt": claim.attempt})
        with services.database.transaction() as connection:
            again = steps.release(
                # A tool was begun: that counts, whoever is to blame.
                connection,
                claim,
                patience_secs=services.patience_secs,
                forgive=forgive and only is None,
                events=[event],
            )
        engine.go_on(claim.run_id, again)


def _recover_call(engine: Engine, due: Due, *, gone: str | None = None) -> None:
    services = engine.services
    with services.database.autocommit() as connection:
        taken = calls.take_over(connection, due.ref, lease_secs=services.lease_secs, worker=services.worker, gone=gone)
    if taken is None:
        return
    claim, call = taken.claim, taken.call
    logger.warning("run %s: worker %s was lost in call %d (%s)", claim.run_id, claim.worker, call.index, call.tool)
    verdict = _verdict(claim, call, taken.snapshot)
    data: dict[str, object] = {"attempt": claim.attempt, "lost_worker": claim.worker}
    if isinstance(verdict, ToolResult):
        end = engine.finish_call(taken.ref, CallDone(verdict), claim, data)
    elif verdict == "unclear":
        end = engine.unclear_call(taken, data)
    else:
        with services.database.autocommit() as connection:
            end = CallEnd(next=calls.rearm(connection, taken, patience_secs=services.patience_secs))
    engine.saver.send(end.wake_ups)


def _verdict(claim: Claim, call: OpenCall, snapshot: Snapshot) -> ToolResult | Literal["again", "unclear"]:
    """The result of a call whose worker was lost; or that it may run again, or that its outcome is unclear."""
    if claim.overdue:
        return timed_out(call)
    if snapshot.cancel_requested or not call.may_run_again:
        return "unclear"
    if claim.attempt >= MAX_ATTEMPTS:
        return crashed(call, claim.attempt)
    return "again"


def _crashed(claim: Claim, snapshot: Snapshot) -> ErrorInfo:
    message = f"the {snapshot.phase} step lost its worker {claim.attempt} times"
    return ErrorInfo(code="crashed", message=message, details={"phase": snapshot.phase, "attempts": claim.attempt})
