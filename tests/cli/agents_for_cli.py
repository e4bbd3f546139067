"""The agents that the command line's tests run."""

from pydantic import BaseModel

from agentq import Agent, tool
from agentq.providers.scripted import Call, Scripted


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


long = Agent("long", model=Scripted([Call("read"), "read"]), tools=[read])
plain = Agent("plain", model=Scripted(["fine"]))
adder = Agent("adder", model=Scripted([Call("add", {"a": 1, "b": 2}), "three"]), tools=[add, render])
gated = Agent(
    "gated", model=Scripted([Call("add", {"a": 1, "b": 2}, id="call_7"), "over"]), tools=[add], approve=["add"]
)
typed = Agent("typed", model=Scripted([Call("final_answer", {"city": "Riga"})]), output=Place)
failing = Agent("failing", model=Scripted([]))
slow = Agent("slow", model=Scripted(["late"], delay_secs=20))
