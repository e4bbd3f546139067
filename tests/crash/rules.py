"""What a run that somebody died in must look like at its end, beside one that nobody disturbed."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentq import Event, Handle, Message, Run, ToolMessage, Usage
from agentq.storage.database import Database
from tests.crash.agents import noted
from tests.crash.matrix import Cell

OPEN_WORK = """
    SELECT 'run ' || id FROM agentq.runs WHERE sweep_at IS NOT NULL OR lease_token IS NOT NULL
        OR lease_until IS NOT NULL OR open_calls <> 0 OR status <> 'completed'
    UNION ALL
    SELECT 'call ' || index || ' of ' || run_id FROM agentq.tool_calls WHERE sweep_at IS NOT NULL
        OR lease_token IS NOT NULL OR lease_until IS NOT NULL OR status <> 'done'
    UNION ALL
    SELECT 'approval ' || call_id || ' of ' || run_id FROM agentq.approvals WHERE status = 'pending'
"""


def open_work(database: Database) -> list[str]:
    """Everything that the database still expects somebody to do."""
    with database.autocommit() as connection:
        return list(connection.execute(OPEN_WORK).scalars())


@dataclass(frozen=True)
class Story:
    """All that is known of one run and of the run of its sub-agent: what is stored, and what the outside saw."""

    runs: tuple[Run, ...]
    messages: tuple[tuple[Message, ...], ...]
    events: tuple[tuple[Event, ...], ...]
    effects: tuple[str, ...]
    replies: tuple[str, ...]
    hits: tuple[dict[str, Any], ...]
    deaths: tuple[dict[str, Any], ...]


def story(handle: Handle, folder: Path) -> Story:
    client = handle.client
    below = [run.id for run in client.runs() if run.parent_run_id == handle.id]
    handles = [handle, *map(client.handle, below)]
    return Story(
        runs=tuple(each.run() for each in handles),
        messages=tuple(each.messages() for each in handles),
        events=tuple(tuple(each.events(follow=False)) for each in handles),
        effects=tuple(effect["key"] for effect in noted(folder, "effects")),
        replies=tuple(f"{reply['agent']} {reply['step']}" for reply in noted(folder, "replies")),
        hits=tuple(noted(folder, "hits")),
        deaths=tuple(noted(folder, "deaths")),
    )


def check(found: Story, undisturbed: Story, cell: Cell, *, local: bool) -> None:
    """Raises AssertionError for the first promise that was not kept; ``local`` where lanes go on without a message."""
    assert [(hit["point"], hit["what"]) for hit in found.deaths] == [(cell.point, cell.place.what)] * len(
        cell.death.hits
    ), "each death came, and came once"
    interrupted = [result for result in found.messages[0] if _is_interrupted(result)]
    _check_transcript(found, undisturbed)
    least = 0 if cell.safe else cell.in_progress
    most = 0 if cell.safe else cell.in_progress + cell.bystanders + (cell.taken_on if local else 0)
    assert least <= len(interrupted) <= most
    _check_events(found, undisturbed)
    _check_effects(found, cell, len(interrupted))
    asked, expected = Counter(found.replies), Counter(undisturbed.replies)
    assert not expected - asked
    repeated = (asked - expected).total()
    # One who goes on in his process sees that he stood still before he asks.
    saw_it = local and cell.kind == "stop" and repeated == 0
    assert repeated == cell.repeated_model_calls or saw_it
    _check_usage(found, undisturbed, same_texts=not interrupted)


def _is_interrupted(message: Message) -> bool:
    return isinstance(message, ToolMessage) and message.result.code == "interrupted"


def _check_transcript(found: Story, undisturbed: Story) -> None:
    """The same messages in the same places; ``interrupted`` stands only where a worker was lost in the call."""
    lost = _lost_calls(found)
    for messages, expected in zip(found.messages, undisturbed.messages, strict=True):
        for message, other in zip(messages, expected, strict=True):
            if not _is_interrupted(message):
                assert message == other
                continue
            assert isinstance(message, ToolMessage)
            assert isinstance(other, ToolMessage)
            assert (message.result.call_id, message.result.name) == (other.result.call_id, other.result.name)
            assert message.result.call_id in lost
    assert [(run.status, run.stop_reason, run.text, run.error) for run in found.runs] == [
        (run.status, run.stop_reason, run.text, run.error) for run in undisturbed.runs
    ]


def _lost_calls(found: Story) -> set[str]:
    calls = [message.result.call_id for message in found.messages[0] if isinstance(message, ToolMessage)]
    return {
        calls[event.data.get("index", 0)]
        for event in found.events[0]
        if event.data.get("code") == "interrupted" and "lost_worker" in event.data
    }


def _check_events(found: Story, undisturbed: Story) -> None:
    """Numbered without gaps; each step and each call committed once, in both the same ones."""
    for events, expected in zip(found.events, undisturbed.events, strict=True):
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        assert _commits(events) == _commits(expected)


def _commits(events: tuple[Event, ...]) -> list[tuple[Any, ...]]:
    steps = [(event.type, event.data["seq"], event.data["phase"]) for event in events if event.type == "step"]
    calls = sorted((event.type, event.data["index"], event.data["tool"]) for event in events if event.type == "call")
    rest = sorted((event.type,) for event in events if not event.type.startswith(("step", "call")))
    return [*steps, *calls, *rest]


def _check_effects(found: Story, cell: Cell, interrupted: int) -> None:
    counts = Counter(found.effects)
    calls = sum(isinstance(message, ToolMessage) for message in found.messages[0]) if cell.agent != "boss" else 0
    keys = {f"{found.runs[0].id}:1:{n}" for n in range(calls)}
    assert set(counts) <= keys, "an effect has its call's key"
    repeats = cell.in_progress if cell.point == "effect" else 0
    if cell.safe:
        assert set(counts) == keys
        assert repeats <= len(found.effects) - calls <= repeats + cell.bystanders
        assert max(counts.values()) <= 2
    else:
        assert len(counts) == len(found.effects), "what may not be repeated had no second effect"
        ran = calls - (cell.in_progress - repeats)
        # Of the others that went down with the worker nobody knows how far they had come.
        assert ran - (interrupted - cell.in_progress) <= len(counts) <= ran


def _check_usage(found: Story, undisturbed: Story, *, same_texts: bool) -> None:
    """Only what was saved is counted, and all of it."""
    for run, other, events in zip(found.runs, undisturbed.runs, found.events, strict=True):
        saved = [event.data for event in events if "input_tokens" in event.data]
        counted = [(data["input_tokens"], data["output_tokens"]) for data in saved]
        # What a sub-agent used is used by the run that it answered.
        counted += [
            (below.usage.input_tokens or 0, below.usage.output_tokens or 0)
            for below in found.runs
            if below.parent_run_id == run.id
        ]
        assert run.usage == Usage(input_tokens=sum(i for i, _ in counted), output_tokens=sum(o for _, o in counted))
        # What the next model call reads is longer where a result says that the call was interrupted.
        assert run.usage == other.usage or not same_texts
