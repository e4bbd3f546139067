"""``agentq demo``: runs on two workers, one of which is killed, and a call that waits for a person."""

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from agentq.cli import options, timeline
from agentq.cli.output import paint
from agentq.cli.program import FAILED
from agentq.cli.stage import LEASE_SECS, Stage, name_of, stage
from agentq.errors import AgentqError, ConfigError
from agentq.handle import Handle
from agentq.providers.registry import check, missing_key
from agentq.run import Event, Run

QUESTIONS = ("Order 77 arrived broken.", "Where is my order 78?", "Is order 78 on its way?")
PATIENCE_SECS = 60.0
PATIENCE_WITH_MODEL_SECS = 300.0
LOOK_SECS = 0.02
# A step that is held for longer than this is killed in its middle.
HELD_SECS = 0.3


@click.command()
@click.option("--model", metavar="PROVIDER:NAME", help="A real model, such as openai:gpt-5.2; its key must be set.")
@click.option(
    "--home", type=click.Path(file_okay=False, path_type=Path), help="Keep everything here; else it is removed."
)
@click.pass_context
def demo(ctx: click.Context, /, *, model: str | None, home: Path | None) -> None:
    """Show runs that survive a kill -9.

    Starts a Postgres, a broker and two Celery workers of its own, runs an agent (agentq/demo.py), kills one worker in
    the middle of a step, and approves a call that waits for a person. Without --model a script plays the model.
    """
    options.warn_of_unknown_variables()
    _check_model(model)
    if model:
        os.environ["AGENTQ_DEMO_MODEL"] = model
    started = time.monotonic()
    _say(f"Starting Postgres, a broker and two Celery workers; {model or 'a script, which needs no key,'} is the model")
    with stage(home.absolute() if home else None) as built:
        ready = time.monotonic() - started
        _say(f"Ready after {ready:.1f} s. A lost worker is noticed after {LEASE_SECS:g} s here, 15 s by default")
        is_ok = Play(built, real=model is not None).run()
    if home:
        click.echo(f"everything is still in {home}: agentq --home {home} runs ls")
    _say("what next")
    click.echo("   An agent of your own in ten lines: README.md; its workers: agentq worker --agents my_agents.py")
    click.echo("   On your own Postgres and broker: set AGENTQ_DATABASE_URL and AGENTQ_BROKER_URL, then agentq doctor")
    ctx.exit(0 if is_ok else FAILED)


def _check_model(model: str | None) -> None:
    if model is None:
        return
    check(model)
    if key := missing_key(model):
        raise ConfigError(f"--model {model} needs a key; set {key}, or leave --model out for the scripted one")


def _say(text: str) -> None:
    click.echo(paint(f"== {text}", bold=True))


class Play:
    """The acts of the demo, with the timeline of all runs running below them."""

    def __init__(self, built: Stage, *, real: bool) -> None:
        self.stage = built
        self.give_up = time.monotonic() + (PATIENCE_WITH_MODEL_SECS if real else PATIENCE_SECS)
        self.runs: dict[str, Handle] = {}
        self._seen: dict[str, int] = {}
        self._recovered: dict[str, datetime] = {}
        self._held: dict[tuple[str, int], float] = {}

    def run(self) -> bool:
        """True if every run was completed, the interrupted one too."""
        self.enqueue()
        cut_off, killed_at = self.kill_a_worker()
        self.until(lambda: all(run.is_terminal or run.status == "waiting" for run in self.now()))
        self.approve()
        self.until(lambda: all(run.is_terminal for run in self.now()))
        self.tell_answers()
        if cut_off not in self._recovered:
            raise AgentqError(f"run {cut_off} was not taken over")
        after = (self._recovered[cut_off] - killed_at).total_seconds()
        _say(
            f"{self.label(cut_off)} was taken over {after:.1f} s after the kill; no step that was saved was done again"
        )
        return all(run.status == "completed" for run in self.now())

    def enqueue(self) -> None:
        for number, question in enumerate(QUESTIONS, 1):
            handle = self.stage.client.enqueue("support", question)
            self.runs[handle.id] = handle
            self._seen[handle.id] = 0
            click.echo(f"   #{number} {handle.id}  {question}")

    def kill_a_worker(self) -> tuple[str, datetime]:
        """Kill whoever holds a step of a run that has already saved some; the answer is the run's id, and when."""
        held: list[Run] = []

        def find() -> bool:
            held[:] = [run for run in self.now() if self._is_in_the_middle(run)]
            if not held and all(run.is_terminal for run in self.now()):
                raise AgentqError("every run ended before a worker could be killed")
            return bool(held)

        self.until(find)
        run = held[0]
        name = name_of(run.worker)
        assert name is not None
        pids = self.stage.kill(name)
        _say(
            f"kill -9 of worker {name} (processes {', '.join(map(str, pids))} and their children) "
            f"while it does step {run.seq}, {run.phase}, of {self.label(run.id)}"
        )
        return run.id, datetime.now(UTC)

    def _is_in_the_middle(self, run: Run) -> bool:
        if run.lease_until is None or name_of(run.worker) is None:
            return False
        since = self._held.setdefault((run.id, run.seq), time.monotonic())
        # Long enough to be hit: the slow tool, or a model that takes its time.
        return run.turn >= 1 and time.monotonic() - since > HELD_SECS

    def approve(self) -> None:
        for approval in self.stage.client.approvals():
            if approval.run_id in self.runs:
                _say(f"{self.label(approval.run_id)} waits for a person: {approval.tool} {approval.arguments}")
                click.echo(f"   agentq approvals approve {approval.run_id} {approval.call_id}")
                self.runs[approval.run_id].approve(approval.call_id, by="the demo")

    def tell_answers(self) -> None:
        _say("answers")
        for question, run in zip(QUESTIONS, self.now(), strict=True):
            answer = f"{run.error.message} ({run.error.code})" if run.error else run.text or run.status
            click.echo(f"   {self.label(run.id)} {question}\n      {paint(answer, 'red' if run.error else 'green')}")

    # -- the timeline --

    def until(self, is_so: Callable[[], bool]) -> None:
        """Show what happens until it is so."""
        while not is_so():
            if time.monotonic() > self.give_up:
                raise AgentqError(f"the demo does not get on; the workers say:\n{self.stage.log_tail()}")
            self.show_events()
            time.sleep(LOOK_SECS)
        self.show_events()

    def now(self) -> Sequence[Run]:
        return [handle.run() for handle in self.runs.values()]

    def label(self, run_id: str) -> str:
        return f"#{list(self.runs).index(run_id) + 1}"

    def show_events(self) -> None:
        events: list[Event] = []
        for run_id, handle in self.runs.items():
            new = list(handle.events(after=self._seen[run_id], follow=False))
            if new:
                self._seen[run_id] = new[-1].number
            events += new
        for event in sorted(events, key=lambda event: event.at):
            if event.type == "step.recovered":
                self._recovered[event.run_id] = event.at
            click.echo(timeline.line(event, run=self.label(event.run_id), worker=_shown))


def _shown(worker: str) -> str:
    name = name_of(worker)
    return f"worker {name}" if name else worker
