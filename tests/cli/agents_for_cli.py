"""The agents that the command line's tests run."""

from typing import Any

from pydantic import BaseModel

from agentq import Agent, Image, tool
from agentq.messages import media_of
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from tests.images import png


class Place(BaseModel):
    city: str


@tool(idempotent=True)
def add(a: int, b: int) -> int:
    """Add."""
    print(f"adding {a} and {b}")  # noqa: T201
    return a + b


@tool(queue="agentq_test_cli_gpu")
def render() -> str:
    """Render."""
    return "done"


@tool
def read() -> str:
    """Read."""
    return "x" * 2000


@tool(idempotent=True)
def draw() -> list[Any]:
    """Draw."""
    return ["drawn", Image.from_bytes(png(2), name="chart.png")]


def look(request: ModelRequest) -> str:
    """Say how large what was seen is."""
    return " ".join(str(len(one.data or b"")) for message in request.messages for one in media_of(message))


painter = Agent("painter", model=Scripted([Call("draw"), look]), tools=[draw])
long = Agent("long", model=Scripted([Call("read"), "read"]), tools=[read])
plain = Agent("plain", model=Scripted(["fine"]))
adder = Agent("adder", model=Scripted([Call("add", {"a": 1, "b": 2}), "three"]), tools=[add, render])
gated = Agent(
    "gated", model=Scripted([Call("add", {"a": 1, "b": 2}, id="call_7"), "over"]), tools=[add], approve=["add"]
)
typed = Agent("typed", model=Scripted([Call("final_answer", {"city": "Riga"})]), output=Place)
failing = Agent("failing", model=Scripted([]))
teller = Agent("teller", model=Scripted(["Once upon a time"], delay_secs=0.6), stream=True)
slow = Agent("slow", model=Scripted(["late"], delay_secs=20))
