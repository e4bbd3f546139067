"""Events as lines a person can follow: when, what, for how long, by whom."""

from collections.abc import Callable
from typing import Any

import click

from agentq.cli.output import paint
from agentq.run import Event

Words = Callable[[dict[str, Any]], str]


def line(event: Event, *, run: str | None = None, worker: Callable[[str], str] = str) -> str:
    """One event. ``run`` is a name to show for its run; ``worker`` shortens a worker's name."""
    describe = _WORDS.get(event.type)
    text = describe(event.data) if describe else " ".join(f"{key}={value}" for key, value in event.data.items())
    parts = [event.at.astimezone().strftime("%H:%M:%S.%f")[:-3]]
    if run:
        parts.append(run)
    parts.append(paint(f"{_title(event):<14}", _COLOURS.get(event.type)))
    if "ms" in event.data:
        text = f"{event.data['ms']:>5} ms  {text}"
    parts.append(text)
    if name := event.data.get("worker") or event.data.get("lost_worker"):
        parts.append(paint(f"[{worker(name)}]", dim=True))
    return "  ".join(part for part in parts if part.strip())


class Screen:
    """Events of one run on stderr, with replies in full as they are written."""

    def __init__(self) -> None:
        self._is_writing = False

    def show(self, event: Event) -> None:
        if event.type == "model.delta":
            if event.data.get("kind") == "text":
                click.echo(event.data["text"], nl=False, err=True)
                self._is_writing = True
            return
        if self._is_writing:
            click.echo(err=True)
            self._is_writing = False
        click.echo(line(event), err=True)


def _title(event: Event) -> str:
    if event.type == "step":
        return f"{event.data.get('seq', '?'):>2} {event.data.get('phase', 'step')}"
    if event.type == "call":
        return f"   call {event.data.get('index', 0) + 1}"
    return event.type.partition(".")[2] if event.type.startswith("run.") else event.type.replace(".", " ")


def _step(data: dict[str, Any]) -> str:
    words = [str(data[name]) for name in ("model", "tool", "code", "error") if data.get(name)]
    calls = data.get("calls") or data.get("waiting_for")
    if calls:
        words.append(", ".join(map(str, calls)))
    if data.get("input_tokens") is not None:
        words.append(f"{data['input_tokens']} in / {data.get('output_tokens') or 0} out")
    if data.get("cost") is not None:
        words.append(f"${data['cost']}")
    words += [f"without {each.get('model')}, which refuses calls" for each in data.get("skipped", ())]
    if cooling := data.get("cooling"):
        words.append(f"refuses calls ({cooling['code']}): its turn in {cooling['wait_secs']:.1f} s")
    if data.get("retry"):
        words.append(f"retry: {data['retry']}")
    if data.get("probe"):
        words.append(f"looked for: {data['probe']}")
    if data.get("attempt", 1) > 1:
        words.append(f"attempt {data['attempt']}")
    if data.get("lost_worker"):
        words.append(f"its worker was lost or stopped: {data['lost_worker']}")
    return "  ".join(words)


def _decision(data: dict[str, Any]) -> str:
    return str(data.get("decision")).replace("_", " ")


def _asks(data: dict[str, Any]) -> str:
    if data.get("kind") != "outcome":
        return ""
    lost = f", its worker was lost or stopped: {data['lost_worker']}" if data.get("lost_worker") else ""
    return f"  did it happen?{lost}"


_WORDS: dict[str, Words] = {
    "run.enqueued": lambda data: str(data.get("agent", "")),
    "step": _step,
    "call": _step,
    "step.failed": lambda data: f"{data.get('phase')} failed with {data.get('error')}, tried again",
    "model.reset": lambda _: "what was written of this reply is taken back",
    "step.recovered": lambda data: f"the {data.get('phase')} step goes on: its worker was lost",
    "approval.requested": lambda data: f"{data.get('tool')}  {data.get('call_id')}{_asks(data)}",
    "approval.decided": lambda data: f"{_decision(data)} by {data.get('by')}  {data.get('call_id')}",
    "agent.changed": lambda data: f"goes on with version {data.get('to')}, was {data.get('from')}",
    "agent.held": lambda data: f"needs version {data.get('from')}, the code is {data.get('to')}",
    "agent.adopted": lambda data: f"by {data.get('by')}: goes on with version {data.get('to')}, was {data.get('from')}",
    "run.ended": lambda data: " ".join(str(data[name]) for name in ("status", "reason") if data.get(name)),
}
_COLOURS = {
    "step.failed": "red",
    "model.reset": "magenta",
    "step.recovered": "magenta",
    "agent.changed": "yellow",
    "agent.held": "yellow",
    "agent.adopted": "yellow",
    "approval.requested": "yellow",
    "approval.decided": "yellow",
    "run.ended": "green",
}
