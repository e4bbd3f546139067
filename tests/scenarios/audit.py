"""What holds of every scenario at its end, whoever was killed in it; the first promise that was not kept is raised."""

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from agentq import AssistantMessage, Event, Handle, Message, Run, ToolMessage, Usage
from agentq.run import TERMINAL
from tests.scenarios.killer import Kill
from tests.scenarios.scene import LOST, UNSAFE, Scene
from tests.waiting import eventually

_OPEN = """
    SELECT 'run ' || id || ' ' || status FROM agentq.runs WHERE lease_token IS NOT NULL OR lease_until IS NOT NULL
        OR (sweep_at IS NOT NULL AND on_end_at IS NULL) OR open_calls <> 0 OR finished_at IS NULL
        OR deadline_at IS NOT NULL OR has_place
    UNION ALL
    SELECT 'call ' || index || ' of ' || run_id FROM agentq.tool_calls WHERE lease_token IS NOT NULL
        OR lease_until IS NOT NULL OR sweep_at IS NOT NULL OR status <> 'done'
    UNION ALL SELECT 'approval ' || call_id || ' of ' || run_id FROM agentq.approvals WHERE status = 'pending'
    UNION ALL SELECT 'message for ' || run_id FROM agentq.inbox WHERE message IS NOT NULL
"""
# A sweep tells hooks of an end after a minute, where whoever was to do it has died; the row says so until then.
_UNTOLD = "SELECT id FROM agentq.runs WHERE on_end_at IS NOT NULL"


def audit(scene: Scene) -> None:
    """All rules, for all runs of the scenario."""
    runs = scene.runs()
    for run in runs:
        handle = scene.client.handle(run.id)
        assert run.status in TERMINAL, run
        messages, events = handle.messages(), list(handle.events(follow=False))
        legal(messages)
        numbered(events)
        interrupted(events, scene.killer.kills, [each.status for each in handle.approvals(status=None)])
        counted(run, events, [each for each in runs if each.parent_run_id == run.id])
        decided_once(handle)
        happened(scene, handle, messages)
    effects_once(scene)
    eventually(lambda: not open_rows(scene), within=30, what=f"no open rows: {open_rows(scene)}")
    scene.crew.await_nothing_queued()


def legal(messages: Sequence[Message]) -> None:
    """Each call of a reply has one result, at once behind it, in the order asked; no result has no call."""
    rest = list(messages)
    while rest:
        message = rest.pop(0)
        assert not isinstance(message, ToolMessage), f"a result that nobody asked for: {message}"
        if not isinstance(message, AssistantMessage):
            continue
        behind = takewhile(lambda each: isinstance(each, ToolMessage), rest)
        back = [each.result for each in behind if isinstance(each, ToolMessage)]
        assert [(call.id, call.name) for call in message.calls] == [(each.call_id, each.name) for each in back], (
            messages
        )
        del rest[: len(back)]


def numbered(events: Sequence[Event]) -> None:
    assert [event.number for event in events] == list(range(1, len(events) + 1)), events


def interrupted(events: Sequence[Event], kills: Sequence[Kill], decisions: Sequence[str]) -> None:
    """Only what a killed worker had is interrupted, and what a person could not tell."""
    dead = {kill.pid for kill in kills}
    unexplained = 0
    for event in events:
        lost = event.data.get("lost_worker")
        assert not lost or int(lost.rpartition(":")[2].split("/")[0]) in dead, event
        unexplained += event.type == "call" and event.data.get("code") == LOST and not lost
    assert unexplained <= decisions.count("unknown"), events


def counted(run: Run, events: Sequence[Event], below: Sequence[Run]) -> None:
    """Usage is that of the replies that were saved, and of the sub-agents that have answered; each once."""
    saved = [event.data for event in events if "input_tokens" in event.data]
    used = [(data["input_tokens"] or 0, data["output_tokens"] or 0) for data in saved]
    used += [(each.usage.input_tokens or 0, each.usage.output_tokens or 0) for each in below]
    if used and not (below and run.status == "cancelled"):  # it did not wait for their answers
        whole = Usage(input_tokens=sum(i for i, _ in used), output_tokens=sum(o for _, o in used))
        assert run.usage == whole, (run, used)
    assert run.model_calls == len(saved), (run, saved)


def decided_once(handle: Handle) -> None:
    """Nothing waits any more; who decided, and when, is written down, once for each question."""
    asked = [each for each in handle.approvals(status=None) if each.run_id == handle.id]
    for each in asked:
        assert each.status != "pending", each
        assert each.decided_at is not None, each
        assert each.decided_by or each.status in ("expired", "closed"), each
    keys = Counter((each.call_id, each.requested_at) for each in asked)
    assert all(count == 1 for count in keys.values()), asked
    decided = Counter(
        each.call_id for each in asked if each.kind == "approval" and each.status in ("approved", "rejected")
    )
    assert all(count == 1 for count in decided.values()), asked


def happened(scene: Scene, handle: Handle, messages: Sequence[Message]) -> None:
    """What came back as done was done, what says that it was not run was not."""
    effects = Counter(each["call"] for each in scene.marked("effect", run=handle.id))
    answered = {each.call_id for each in handle.approvals(status=None) if each.status in ("responded", "happened")}
    for message in messages:
        if not isinstance(message, ToolMessage) or message.result.name not in (*UNSAFE, "look", "fetch"):
            continue
        result = message.result
        if result.code is None and result.text.startswith(result.name):
            assert effects[result.call_id] >= 1 or result.call_id in answered, result
        if result.code in ("rejected", "expired", "skipped", "invalid_arguments"):
            assert effects[result.call_id] == 0, result


def effects_once(scene: Scene) -> None:
    """An unsafe effect happened once at most; what ran again had the same key."""
    effects = scene.marked("effect")
    for (run, call, tool), count in Counter((e["run"], e["call"], e["tool"]) for e in effects).items():
        assert count == 1 or tool in ("look", "fetch"), f"{tool} ({call} of {run}) happened {count} times"
    keys: dict[tuple[str, str], set[str]] = {}
    for each in effects:
        assert each["key"], each
        keys.setdefault((each["run"], each["call"]), set()).add(each["key"])
    assert all(len(found) == 1 for found in keys.values()), keys
    of = Counter(key for found in keys.values() for key in found)
    assert all(count == 1 for count in of.values()), keys


def open_rows(scene: Scene) -> list[str]:
    """Everything that the database still expects somebody to do, whatever scenario it is of."""
    with scene.crew.connect() as connection:
        return [str(row[0]) for row in connection.execute(_OPEN).fetchall()]


def untold(scene: Scene) -> list[str]:
    """Ended runs whose hooks have not heard of it."""
    with scene.crew.connect() as connection:
        return [str(row[0]) for row in connection.execute(_UNTOLD).fetchall()]
