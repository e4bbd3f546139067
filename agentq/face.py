"""Agents and threads as their users hold them: the definition, and the ways to run it."""

import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict, Unpack

from agentq.agent import AgentSpec
from agentq.budgets import unpriced
from agentq.busy import OnBusy, OnWaiting
from agentq.client import Client
from agentq.content import Content
from agentq.errors import ConfigError
from agentq.handle import Handle
from agentq.history import Rewound
from agentq.inputs import checked_thread
from agentq.messages import Message
from agentq.providers.registry import check
from agentq.run import Result
from agentq.threads import StoredThread
from agentq.wire import Priority


class RunOptions(TypedDict, total=False):
    """What a run may be given beside its message; see ``Client.enqueue``."""

    idempotency_key: str | None
    tags: Mapping[str, str] | None
    context: Mapping[str, Any] | None
    limits: Mapping[str, Any] | None
    delay_secs: float | None
    due_at: datetime | None
    priority: Priority
    concurrency_key: str | None
    concurrency_limit: int | None
    allow_unknown: bool
    on_busy: OnBusy
    on_waiting: OnWaiting


class EnqueueOptions(RunOptions, total=False):
    """What it may be given where nobody waits for it, too: until your commit nobody could."""

    connection: Any


class Agent(AgentSpec):
    """A model, a set of tools and some instructions, run as a loop by workers.

    ``model``: ``"provider:name"`` or a Provider; ``fallback``: models tried when it fails for good. ``tools``:
    functions, or what ``@tool`` made of them. ``approve``: names of tools whose calls wait for a person, or a mapping
    of names to a function of context and arguments that says whether, or to an ApprovalRule. ``output``: what the
    final answer must fit, a type or a JSON schema; ``output_mode``: "native" gets it by the provider's own mode, "tool"
    by calling a tool, "auto" natively where the whole schema can be held to; ``output_check``: functions of context and
    value that may return another value, or raise AskAgain.
    ``limits``: see Limits. ``on_tool_exception``: "report" shows type and message to the model, "fail" ends the run, a
    function of the exception gives the text. ``model_settings`` are sent to the provider as they are.
    ``hook_timeout_secs``: what a hook, a check, a rule of ``approve`` or the memory may take (at most 60). ``stream``:
    replies are events of the run while the model writes them, see ``Handle.events``.
    ``on_change``: what becomes of a run that began with another definition of the agent: "continue" goes on with the
    present one, "hold" leaves it to workers that have the old one (or to ``Handle.adopt``), "fail" ends it as
    ``agent_changed``. Definitions are told apart by a hash of what they show to the model and decide (models and their
    settings, instructions, tools, approvals, output, names of hooks; not limits and timeouts), or by ``version``,
    a text of yours that takes the place of the hash.
    Raises ConfigError that names what is wrong.
    """

    def _check_prices(self) -> None:
        if self.limits.usd is not None and (problem := unpriced(self)):
            raise ConfigError(f"agent {self.name!r}: {problem}")

    def _check_model(self, model: Any) -> None:
        try:
            check(model)
        except ConfigError as error:
            raise ConfigError(f"agent {self.name!r}: {error}") from error

    def enqueue(
        self,
        text: Content,
        *,
        client: Client | None = None,
        thread: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Handle:
        """Store a run and wake a worker; options and errors as of ``Client.enqueue``."""
        client = client or default_client()
        client.agents.setdefault(self.name, self)
        return client.enqueue(self.name, text, thread=thread, **options)

    def run(
        self,
        text: Content,
        *,
        timeout: float | None = None,
        client: Client | None = None,
        thread: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Result:
        """Enqueue and wait; see ``enqueue`` and ``Handle.wait`` for options and errors."""
        _refuse_connection(options)
        return self.enqueue(text, client=client, thread=thread, **options).wait(timeout)

    def thread(self, thread_id: str) -> "Thread":
        """A stored conversation of this agent."""
        return Thread(self, thread_id)


class Thread:
    """A conversation: each message sees everything said before. One run at a time."""

    def __init__(self, agent: Agent, thread_id: str) -> None:
        self.agent = agent
        self.id = checked_thread(thread_id)

    def __repr__(self) -> str:
        return f"Thread({self.id!r}, {self.agent!r})"

    def enqueue(self, text: Content, *, client: Client | None = None, **options: Unpack[EnqueueOptions]) -> Handle:
        """As ``Agent.enqueue``; ``on_busy`` and ``on_waiting`` say what it does while another run is at work."""
        return self.agent.enqueue(text, client=client, thread=self.id, **options)

    def send(
        self,
        text: Content,
        *,
        timeout: float | None = None,
        client: Client | None = None,
        **options: Unpack[RunOptions],
    ) -> Result:
        """Enqueue and wait."""
        _refuse_connection(options)
        return self.enqueue(text, client=client, **options).wait(timeout)

    def history(self, *, client: Client | None = None) -> tuple[Message, ...]:
        """Every message of the thread, oldest first."""
        return self._stored(client).history()

    def rewind(self, to: int, *, client: Client | None = None) -> Rewound:
        """See ``StoredThread.rewind``."""
        return self._stored(client).rewind(to)

    def fork(self, thread_id: str, *, at: int | None = None, client: Client | None = None) -> "Thread":
        """See ``StoredThread.fork``."""
        return Thread(self.agent, self._stored(client).fork(thread_id, at=at).id)

    def retry(self, *, limits: Mapping[str, Any] | None = None, client: Client | None = None) -> Handle:
        """See ``StoredThread.retry``."""
        return self._stored(client).retry(limits=limits)

    def delete(self, *, client: Client | None = None) -> int:
        """See ``StoredThread.delete``."""
        return self._stored(client).delete()

    def _stored(self, client: Client | None) -> StoredThread:
        client = client or default_client()
        client.agents.setdefault(self.agent.name, self.agent)
        return client.thread(self.id)


def _refuse_connection(options: RunOptions) -> None:
    if "connection" in options:
        raise ConfigError("who waits for a run cannot enqueue it with connection=: it begins after your commit only")


_default: Client | None = None
_default_lock = threading.Lock()


def default_client() -> Client:
    """The client of this process for ``Agent.run`` and ``Agent.enqueue``, made from ``AGENTQ_*`` at first use."""
    global _default  # noqa: PLW0603 - one a process, as the variables are
    with _default_lock:
        if _default is None:
            _default = Client()
        return _default
