"""``agentq run``: enqueue one run, wait for it, print its answer."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import click
from pydantic_core import to_json

from agentq import producer
from agentq.busy import OnBusy, OnWaiting
from agentq.cli import options, timeline
from agentq.cli.output import approval_json, print_json
from agentq.cli.program import FAILED, WAITS, say
from agentq.client import Client
from agentq.content import Content, File, Image
from agentq.errors import AgentqError, ErrorInfo, RunCancelledError, RunFailedError
from agentq.handle import Handle
from agentq.run import Approval, Result
from agentq.storage import migrate
from agentq.wire import RANKS


@click.command()
@click.argument("agent")
@click.argument("text")
@click.option("--image", "images", multiple=True, metavar="PATH_OR_URL", help="An image for it; repeat it for more.")
@click.option("--file", "files", multiple=True, metavar="PATH_OR_URL", help="A file, such as a PDF or a text.")
@click.option("--watch", is_flag=True, help="Print each step on stderr as it is done.")
@click.option("--wait/--no-wait", default=True, help="Wait for the answer, or print the run's id at once.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer than this.")
@click.option("--thread", metavar="ID", help="The conversation that this message continues.")
@click.option(
    "--on-busy",
    type=click.Choice(get_args(OnBusy)),
    default="reject",
    help="While another run of the thread is at work.",
)
@click.option(
    "--on-waiting", type=click.Choice(get_args(OnWaiting)), default="reject", help="While it waits for a person."
)
@options.tags
@click.option(
    "--context", callback=options.json_object, metavar="JSON", help="A JSON object for the tools: ctx.context."
)
@click.option(
    "--idempotency-key", "--key", metavar="KEY", help="The same key gives the same run, however often it is sent."
)
@click.option(
    "--delay", "delay_secs", type=click.FloatRange(min=0), metavar="SECONDS", help="Begin so many seconds from now."
)
@click.option("--due-at", callback=options.moment, metavar="TIME", help="Begin then, as in 2026-03-01T09:00+01:00.")
@click.option(
    "--priority",
    type=click.Choice(list(RANKS)),
    default="normal",
    help="Before or after others that wait for a worker.",
)
@click.option("--concurrency-key", metavar="KEY", help="With --concurrency-limit: so many runs of this key at once.")
@click.option("--concurrency-limit", type=click.IntRange(min=1), metavar="NUMBER", help="With --concurrency-key.")
@options.agents
@options.as_json
@click.pass_context
def run(
    ctx: click.Context,
    /,
    agent: str,
    text: str,
    *,
    images: tuple[str, ...],
    files: tuple[str, ...],
    places: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run AGENT with the message TEXT and print its answer.

    A run that waits for a person ends this command with exit code 4 and the commands that approve its calls. When this
    command is interrupted, the run goes on.
    """
    message = _message(text, images, files)
    wait, watch, timeout = given.pop("wait"), given.pop("watch"), given.pop("timeout")
    options.warn_of_unknown_variables()
    with options.client(ctx.obj, places=places) as client:
        _check_services(client)
        handle = client.enqueue(agent, message, **given)
        if not wait:
            print_json({"run_id": handle.id, "is_new": handle.is_new}) if as_json else click.echo(handle.id)
            return
        try:
            with _timeline(handle) if watch else _silence():
                result = handle.wait(timeout)
        except KeyboardInterrupt:
            say(f"run {handle.id} goes on; see: agentq runs show {handle.id}")
            raise
        except (RunFailedError, RunCancelledError) as error:
            _print_failure(handle, error, as_json=as_json)
            ctx.exit(FAILED)
        _print_result(result, as_json=as_json)
    ctx.exit(WAITS if result.stop_reason == "needs_approval" else 0)


def _message(text: str, images: Sequence[str], files: Sequence[str]) -> Content:
    """Read before a client is made: a wrong path is said at once."""
    media = [_given(Image, place) for place in images] + [_given(File, place) for place in files]
    return [text, *media] if media else text


def _given(kind: type[Image] | type[File], place: str) -> Image | File:
    is_url = place.lower().startswith(("http://", "https://"))
    return kind.from_url(place) if is_url else kind.from_path(place)


def _check_services(client: Client) -> None:
    """Before anything is written: a run that nobody hears of would start only when the next worker looks for it."""
    migrate.check(client.database)
    producer.check_broker(producer.make_app(str(client.settings.broker_url), queue=client.settings.queue))


@contextmanager
def _silence() -> Iterator[None]:
    yield


@contextmanager
def _timeline(handle: Handle) -> Iterator[None]:
    """Follow the run's events, and what its model writes, beside the wait that knows about timeouts and no workers."""

    def follow() -> None:
        screen = timeline.Screen()
        try:
            for event in handle.events():
                screen.show(event)
        except AgentqError:
            return  # the wait says what is wrong

    thread = threading.Thread(target=follow, name="agentq-watch", daemon=True)
    thread.start()
    yield
    thread.join(timeout=2)


def _print_result(result: Result, *, as_json: bool) -> None:
    if as_json:
        print_json(result.__dict__ | {"approvals": [approval_json(approval) for approval in result.approvals]})
    elif result.stop_reason == "needs_approval":
        say(f"run {result.run_id} waits for a person")
        print_approvals(result.approvals)
    elif result.text is not None:
        click.echo(result.text)
    elif result.output is not None:
        click.echo(to_json(result.output, fallback=str).decode())


def print_approvals(approvals: Iterable[Approval], *, err: bool = True) -> None:
    """Each waiting call with the commands that decide on it."""
    for approval in approvals:
        ids = f"{approval.run_id} {approval.call_id}"
        click.echo(f"  {approval.tool} {approval.arguments}", err=err)
        if approval.kind == "outcome":
            click.echo(f"    its worker was lost: did it happen? Its key is {approval.idempotency_key}", err=err)
            click.echo(f"    agentq approvals settle {ids} --happened yes|no|unknown", err=err)
            continue
        click.echo(f"    agentq approvals approve {ids}", err=err)
        click.echo(f"    agentq approvals reject {ids} --reason '…'", err=err)


def _print_failure(handle: Handle, error: AgentqError, *, as_json: bool) -> None:
    if as_json:
        info = ErrorInfo(code=error.code, message=error.message, details=error.details)
        print_json({"run_id": handle.id, "status": handle.status(), "error": info})
    if isinstance(error, RunCancelledError):
        say(error.message)
    else:
        say(f"run {handle.id} failed: {error.message} ({error.code}); see: agentq runs show {handle.id}")
