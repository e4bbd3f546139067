"""A desk whose threads are busy: its agent, and what the tests see of it."""

from collections.abc import Callable
from typing import Any

from agentq import (
    Agent,
    Handle,
    Message,
    ToolMessage,
    UserMessage,
    tool,
)
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.engine.drain import Drain


class Desk:
    """An agent that calls a tool when it is told ``work``, and answers by repeating what it heard last.

    ``meanwhile`` is done in the first model call (by name "model") or in its tool ("tool"), once.
    """

    def __init__(self, database: Database, *, approve: bool = False, **options: Any) -> None:
        self.did: list[int] = []
        self.seen: list[tuple[Message, ...]] = []
        self.meanwhile: dict[str, Callable[[], object]] = {}

        @tool
        def act(n: int) -> str:
            """Do something outside."""
            self.did.append(n)
            self._meanwhile("tool")
            return f"did {n}"

        self.agent = Agent(
            "desk", model=Scripted([self._answer] * 30), tools=[act], approve=["act"] if approve else [], **options
        )
        self.drain = Drain(database, self.agent)

    def _answer(self, request: ModelRequest) -> Any:
        self.seen.append(request.messages)
        self._meanwhile("model")
        last = request.messages[-1]
        heard = [message.text for message in request.messages if isinstance(message, UserMessage)][-1]
        return Call("act", {"n": len(self.seen)}) if isinstance(last, UserMessage) and heard == "work" else heard

    def _meanwhile(self, where: str) -> None:
        if act := self.meanwhile.pop(where, None):
            act()

    def say(self, text: str, **options: Any) -> Handle:
        return self.drain.enqueue(self.agent, text, **({"thread": "t"} | options))

    def history(self) -> list[str]:
        return [texts(message) for message in self.drain.client.history("t")]

    def work_at(self, run: Handle) -> None:
        """Work off what is first, as long as it is of the run."""
        waiting: list[Any] = self.drain.wake_ups
        while waiting and waiting[0].run_id == run.id:
            self.drain.do(waiting.pop(0))

    def settle(self) -> None:
        """Work and sweep until nothing is left to do."""
        for _ in range(4):
            self.drain.work()
            self.drain.age(20)
            self.drain.sweep()
        assert self.drain.wake_ups == []


def texts(message: Message) -> str:
    if isinstance(message, ToolMessage):
        return f"t:{message.result.code or message.result.text}"
    if isinstance(message, UserMessage):
        return f"u:{message.text}"
    called = "".join(call.name for call in message.calls[:1])
    return f"a:{message.text or called}"
