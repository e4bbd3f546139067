"""M1: twenty messages at once, or one while a tool runs: one run is active, the rest are refused or wait."""

from threading import Thread
from typing import Any

import pytest

from agentq import Agent, Handle, ThreadBusyError, ToolMessage, UserMessage, tool
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.cases.stored import assert_over
from tests.engine.drain import Drain


def echo(request: ModelRequest) -> Any:
    return [message.text for message in request.messages if isinstance(message, UserMessage)][-1]


@pytest.mark.parametrize("on_busy", ["reject", "enqueue"])
def test_of_twenty_messages_at_once_one_run_is_active(database: Database, on_busy: Any) -> None:
    agent = Agent("test", model=Scripted([echo] * 40))
    drain = Drain(database, agent)
    taken: list[Handle] = []
    refused: list[ThreadBusyError] = []

    def say(number: int) -> None:
        try:
            taken.append(drain.enqueue(agent, f"m{number}", thread="t", on_busy=on_busy))
        except ThreadBusyError as error:
            refused.append(error)

    threads = [Thread(target=say, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    active = [handle for handle in taken if not handle.run().is_held]
    assert len(active) == 1
    assert (len(taken), len(refused)) == ((1, 19) if on_busy == "reject" else (20, 0))
    assert all(active[0].id in str(error) for error in refused)
    drain.work()
    said = [message.text for message in drain.client.history("t") if isinstance(message, UserMessage)]
    assert sorted(said) == sorted(str(handle.result().text) for handle in taken)
    for handle in taken:
        assert_over(database, handle)


@pytest.mark.parametrize("on_busy", ["reject", "enqueue", "steer"])
def test_a_message_while_a_tool_runs_comes_behind_its_result(database: Database, on_busy: Any) -> None:
    refused: list[ThreadBusyError] = []

    @tool
    def act() -> str:
        """Do something."""
        try:
            drain.enqueue(agent, "more", thread="t", on_busy=on_busy)
        except ThreadBusyError as error:
            refused.append(error)
        return "acted"

    def answer(request: ModelRequest) -> Any:
        is_first = len(request.messages) == 1
        return Call("act") if is_first else echo(request)

    agent = Agent("test", model=Scripted([answer] * 9), tools=[act])
    drain = Drain(database, agent)
    drain.run(agent, "work", thread="t")
    history = drain.client.history("t")
    assert len(refused) == (on_busy == "reject")
    place = next(at for at, message in enumerate(history) if isinstance(message, ToolMessage))
    later = [at for at, message in enumerate(history) if isinstance(message, UserMessage) and message.text == "more"]
    assert later == ([] if refused else [place + 1] if on_busy == "steer" else [place + 2])
    for run in drain.client.runs():
        assert_over(database, drain.client.handle(run.id))
