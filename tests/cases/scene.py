"""One agent on a thread with everything about it noted: how often its end was heard, and whether it can go on."""

from collections.abc import Callable, Sequence
from typing import Any

from agentq import Agent, Handle, Hooks, RunContext, UserMessage
from agentq.messages import ToolMessage
from agentq.providers.base import ModelReply, ModelRequest
from agentq.providers.scripted import Scripted, Step
from agentq.services import no_probe
from agentq.storage.database import Database
from tests.cases.stored import assert_over
from tests.engine.drain import Drain
from tests.waiting import eventually

AGAIN = "are you still there?"


class Model:
    """A script, and an answer of its own to the next message on the thread."""

    name = "model"

    def __init__(self, steps: Sequence[Step]) -> None:
        self._script = Scripted(steps)
        self.transcripts: list[Sequence[Any]] = []

    def complete(self, request: ModelRequest) -> ModelReply:
        if isinstance(last := request.messages[-1], UserMessage) and last.text == AGAIN:
            self.transcripts.append(request.messages)
            return Scripted([lambda _: "still here"] * 99).complete(request)
        return self._script.complete(request)


class Scene:
    """An agent, its run on a thread, and the loop that works on it."""

    def __init__(
        self,
        database: Database,
        steps: Sequence[Step],
        *others: Agent,
        lease_secs: float = 15.0,
        probe: Callable[[str, str], None] = no_probe,
        **definition: Any,
    ) -> None:
        self.ends: list[str] = []
        ends = self.ends

        class Ends(Hooks):
            def on_end(self, ctx: RunContext, status: str) -> None:
                ends.append(f"{ctx.agent} {status}")

        self.database = database
        self.model = Model(steps)
        hooks = [*definition.pop("hooks", ()), Ends()]
        self.agent = Agent("test", model=self.model, hooks=hooks, **definition)
        for other in others:
            other.hooks = (*other.hooks, Ends())
        self.drain = Drain(database, self.agent, *others, lease_secs=lease_secs, probe=probe)
        self.handle: Handle = self.drain.enqueue(self.agent, thread="t")

    def settle(self) -> str:
        """Let all messages come, and all time pass: the run has ended, and that is the end of it."""
        for _ in range(30):
            self.drain.work()
            if self.handle.run().is_terminal:
                break
            self.drain.age(70)
            self.drain.sweep()
        status = self.handle.status()
        self.drain.age(70)
        while self.drain.sweep():
            self.drain.work()
            self.drain.age(70)
        self.drain.sent.clear()
        self.drain.age(600)
        assert self.drain.sweep() == 0
        assert self.drain.sent == []
        assert self.handle.status() == status
        assert_over(self.database, self.handle)
        eventually(lambda: f"test {status}" in self.ends, what="the hooks hear of the end")
        return status

    def goes_on(self) -> None:
        """A next message on the thread is answered, from a transcript that every provider takes."""
        ends = len(self.ends)
        handle = self.drain.enqueue(self.agent, AGAIN, thread="t")
        self.drain.work()
        assert handle.result().text == "still here"
        asked: list[str] = []
        for message in self.model.transcripts[-1]:
            if isinstance(message, ToolMessage):
                assert message.result.call_id == asked.pop(0)
            else:
                assert asked == []
                asked = [call.id for call in getattr(message, "calls", ())]
        eventually(lambda: len(self.ends) > ends)
        assert self.ends[ends:] == ["test completed"]
        assert len([end for end in self.ends[:ends] if end.startswith("test ")]) == 1
