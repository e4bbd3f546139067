"""B2: one reply with calls that cannot run, tools that raise, and one that is well: each has its own result."""

import pytest

from agentq import Agent, ToolError, ToolMessage, tool
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.cases.stored import assert_over
from tests.engine.drain import Drain

ran: list[str] = []


class Odd(Exception):
    """One that cannot be made again from its text."""

    def __init__(self, a: int, *, b: int) -> None:
        super().__init__()
        self.a, self.b = a, b


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@tool
def good() -> str:
    """Do it."""
    ran.append("good")
    return "well done"


@tool
def ids(ids: list[int]) -> str:
    """Take numbers."""
    ran.append("ids")
    return "taken"


def raising(name: str, error: BaseException) -> object:
    def act() -> str:
        """Fail."""
        raise error

    return tool(name=name)(act)


TOOLS = {
    "odd": (Odd(1, b=2), "Odd"),
    "plain": (RuntimeError("broken pipe"), "RuntimeError: broken pipe"),
    "empty": (KeyError(), "KeyError"),
    "mute": (Mute(), "Mute"),
    "said": (ToolError("try tomorrow"), "try tomorrow"),
    "exits": (SystemExit(3), "SystemExit"),
}
BAD = [
    (Call("ids", '{"{"ids":[1]}'), "invalid_arguments", "JSON"),
    (Call("ids", {"ids": "x"}), "invalid_arguments", "ids"),
    (Call("ids", {}), "invalid_arguments", "ids: required"),
    (Call("ids", "[1, 2]"), "invalid_arguments", "object"),
    (Call("serach", {}), "unknown_tool", "good"),
    *((Call(name), "tool_error" if name == "said" else "tool_failed", text) for name, (_, text) in TOOLS.items()),
]


@pytest.mark.parametrize("place", range(len(BAD) + 1))
def test_the_good_call_runs_once_wherever_it_stands_and_each_other_is_told_what_is_wrong(
    database: Database, place: int
) -> None:
    ran.clear()
    asked = [call for call, _, _ in BAD]
    asked.insert(place, Call("good"))
    expected = [(code, text) for _, code, text in BAD]
    expected.insert(place, (None, "well done"))
    tools = [good, ids, *(raising(name, error) for name, (error, _) in TOOLS.items())]
    agent = Agent("test", model=Scripted([asked, "done"]), tools=tools)
    drain = Drain(database, agent)
    handle = drain.enqueue(agent)
    drain.work()
    assert handle.result().text == "done"
    back = [message.result for message in handle.messages() if isinstance(message, ToolMessage)]
    assert [result.code for result in back] == [code for code, _ in expected]
    for result, (_, text) in zip(back, expected, strict=True):
        assert text in result.text
    assert ran == ["good"]
    assert_over(drain.database, handle)
