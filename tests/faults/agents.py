"""The agents of these tests: unsafe tools that write down what they do, and models that say when they are asked."""

import time

from agentq import Agent, RunContext, tool
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Answer, Call, Scripted
from tests.workers.agents_under_test import log

WALK_TURNS = 6
TRIO_SECS, THINK_SECS, LONG_SECS = 3.0, 3.0, 20.0


@tool(timeout=60)
def act(n: int, secs: float, ctx: RunContext) -> str:
    """Do something that must not be done twice."""
    log("begin", n=n, run=ctx.run_id)
    time.sleep(secs)
    log("end", n=n, run=ctx.run_id)
    return f"did {n}"


def think(request: ModelRequest) -> Answer:
    """Take long for the first answer."""
    log("asked", text=request.messages[0].text)  # type: ignore[union-attr]
    time.sleep(THINK_SECS)
    return Call("act", {"n": 0, "secs": 0})


def acts(*numbers: int, secs: float) -> list[str | Call]:
    return [Call("act", {"n": n, "secs": secs}) for n in numbers]


def turn(number: int) -> list[str | Call]:
    """Every other turn is a batch."""
    first = number * 10
    return acts(first, secs=0.2) if number % 2 == 0 else acts(first, first + 1, first + 2, secs=0.2)


walk = Agent("walk", model=Scripted([*map(turn, range(WALK_TURNS)), "done"], delay_secs=0.2), tools=[act])
trio = Agent("trio", model=Scripted([acts(0, 1, 2, secs=TRIO_SECS), "done"]), tools=[act])
thinker = Agent("thinker", model=Scripted([think, "done"]), tools=[act])
long = Agent("long", model=Scripted([acts(0, secs=LONG_SECS), "done"]), tools=[act])
long_batch = Agent("long_batch", model=Scripted([acts(0, 1, secs=LONG_SECS), "done"]), tools=[act])
short = Agent("short", model=Scripted([acts(0, secs=0), "done"]), tools=[act])
# What each does when nothing goes wrong.
NUMBERS: dict[str, list[int]] = {
    "walk": [n for number in range(WALK_TURNS) for n in ([number * 10 + i for i in range(1 + number % 2 * 2)])],
    "trio": [0, 1, 2],
    "thinker": [0],
    "long": [0],
    "long_batch": [0, 1],
    "short": [0],
}
