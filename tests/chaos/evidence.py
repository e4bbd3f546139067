"""What is left when all is over: rows, transcripts, events, the lines of the effects and the logs."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from agentq.messages import AssistantMessage, Message, ToolMessage, load_message
from tests.chaos.agents import ON_UNKNOWN
from tests.chaos.faults import Fault
from tests.chaos.load import Asked
from tests.chaos.place import Server


@dataclass(frozen=True)
class FoundEvent:
    """A row of events."""

    number: int
    type: str
    data: dict[str, Any]
    at: float = 0.0


@dataclass(frozen=True)
class FoundRun:
    """A row of runs with its transcript and its events."""

    id: str
    agent: str
    status: str
    parent: str | None = None
    error: str | None = None
    message_count: int = 0
    event_count: int = 0
    is_held: bool = False
    created_at: float = 0.0
    finished_at: float | None = None
    messages: tuple[tuple[int, Message], ...] = ()
    events: tuple[FoundEvent, ...] = ()


@dataclass(frozen=True)
class FoundCall:
    """A row of tool_calls, or what would be one: a turn's only call has none."""

    run_id: str
    turn: int
    index: int
    position: int
    call_id: str
    tool: str
    kind: str
    status: str
    code: str | None
    on_unknown: str
    attempt: int = 0
    is_held: bool = False
    since: float = 0.0
    finished_at: float | None = None

    @property
    def key(self) -> str:
        return f"{self.run_id}:{self.turn}:{self.index}"

    @property
    def is_safe(self) -> bool:
        return self.on_unknown == "retry"

    @property
    def is_checked(self) -> bool:
        """Whether a probe or a person looks before it runs again."""
        return self.on_unknown in ("probe", "ask")


@dataclass(frozen=True)
class Effect:
    """A line that a tool wrote: ``begin`` before its effect, ``end`` after it."""

    kind: str
    key: str
    tool: str
    attempt: int
    at: float
    pid: int = 0


@dataclass
class Evidence:
    """Everything the audit looks at."""

    asked: Asked
    runs: dict[str, FoundRun] = field(default_factory=dict)
    calls: list[FoundCall] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    model_calls: int = 0
    pending_approvals: int = 0
    questions: int = 0
    faults: list[Fault] = field(default_factory=list)


_RUNS = """SELECT id, agent, status, parent_run_id, error, message_count, event_count,
                  coalesce(lease_until, sweep_at, lease_look_at, sweep_look_at) IS NOT NULL OR lease_token IS NOT NULL,
                  created_at, finished_at FROM agentq.runs"""
_MESSAGES = "SELECT run_id, position, payload FROM agentq.messages ORDER BY run_id, position"
_EVENTS = "SELECT run_id, number, type, data, at FROM agentq.events ORDER BY run_id, number"
_CALLS = """SELECT run_id, turn, index, position, call_id, tool, kind, status, code, on_unknown, attempt,
                   lease_token IS NOT NULL OR sweep_at IS NOT NULL, coalesce(claimed_at, announced_at), finished_at
            FROM agentq.tool_calls"""
_PENDING = "SELECT count(*) FROM agentq.approvals WHERE status = 'pending'"
_QUESTIONS = "SELECT count(*) FROM agentq.approvals WHERE kind = 'outcome'"
_OPEN = """SELECT (SELECT count(*) FROM agentq.runs WHERE status NOT IN ('completed', 'failed', 'cancelled')),
                  (SELECT count(*) FROM agentq.runs WHERE lease_token IS NOT NULL OR sweep_at IS NOT NULL)
                  + (SELECT count(*) FROM agentq.tool_calls WHERE lease_token IS NOT NULL OR sweep_at IS NOT NULL)"""


def left_open(server: Server) -> tuple[int, int]:
    """How many runs have not ended, and how many rows somebody holds or the sweep still has to look at."""
    ((runs, rows),) = server.ask(_OPEN)
    return runs, rows


def gather(server: Server, folder: Path, asked: Asked, faults: list[Fault]) -> Evidence:
    """Everything from the database and the folder; nothing moves any more."""
    messages = _by_run((run_id, (position, load_message(text))) for run_id, position, text in server.ask(_MESSAGES))
    events = _by_run(
        (run_id, FoundEvent(number, kind, json.loads(data), at.timestamp()))
        for run_id, number, kind, data, at in server.ask(_EVENTS)
    )
    runs = {
        row[0]: FoundRun(
            *row[:8], _seconds(row[8]) or 0.0, _seconds(row[9]), messages.get(row[0], ()), events.get(row[0], ())
        )
        for row in server.ask(_RUNS)
    }
    calls = [FoundCall(*row[:12], _seconds(row[12]) or 0.0, _seconds(row[13])) for row in server.ask(_CALLS)]
    calls += _single_calls(runs.values(), {call.key for call in calls})
    lines = read_lines(folder / "effects.jsonl")
    effects = [
        Effect(line["kind"], line["key"], line["tool"], line["attempt"], line["at"], line["pid"])
        for line in lines
        if line["kind"] != "model"
    ]
    ((pending,),) = server.ask(_PENDING)
    ((questions,),) = server.ask(_QUESTIONS)
    return Evidence(asked, runs, calls, effects, len(lines) - len(effects), pending, questions, faults)


def _single_calls(runs: Iterable[FoundRun], known: set[str]) -> Iterator[FoundCall]:
    """The calls without a row: each is all that its reply asks for, and its result stands next to that."""
    for run in runs:
        replies = [(position, message) for position, message in run.messages if isinstance(message, AssistantMessage)]
        results = {position: message for position, message in run.messages if isinstance(message, ToolMessage)}
        for turn, (position, reply) in enumerate(replies, start=1):
            if len(reply.calls) != 1 or f"{run.id}:{turn}:0" in known:
                continue
            call, back = reply.calls[0], results.get(position + 1)
            yield FoundCall(
                run.id,
                turn,
                0,
                position + 1,
                call.id,
                call.name,
                "tool",
                "done" if back else "pending",
                (back.result.code or "success") if back else None,
                ON_UNKNOWN.get(call.name, "report"),
                max(event.data.get("attempt", 1) for event in run.events),
            )


def _by_run(rows: Iterable[tuple[str, Any]]) -> dict[str, tuple[Any, ...]]:
    found: dict[str, list[Any]] = {}
    for run_id, value in rows:
        found.setdefault(run_id, []).append(value)
    return {run_id: tuple(values) for run_id, values in found.items()}


def _seconds(at: datetime | None) -> float | None:
    return at.timestamp() if at is not None else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


_RAISED = re.compile(r"^(?:[A-Za-z_]+\.)*[A-Z][A-Za-z_]*(?:Error|Exception|Lost|Exit|Warning|Interrupt|Exceeded)\b.*")
_NUMBERS = re.compile(r"0x[0-9a-f]+|run_[0-9a-z]+|\d+")


def tracebacks(logs: Iterable[Path]) -> Counter[str]:
    """The last lines of the tracebacks in these logs, without their numbers, counted."""
    found: Counter[str] = Counter()
    for log in logs:
        is_inside = False
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("Traceback (most recent call last)"):
                is_inside = True
            elif is_inside and _RAISED.match(line):
                found[_NUMBERS.sub("…", line)[:160]] += 1
                is_inside = False
    return found
