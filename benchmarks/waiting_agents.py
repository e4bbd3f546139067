"""What the workers load that ten thousand runs wait on: a tool that a person is asked about, in either pool."""

import os

from celery.signals import worker_ready

from agentq import Agent, RunContext, tool
from agentq.providers.scripted import Call, Scripted
from benchmarks import notes

# By where the tool runs: in a process of the tools' pool, or in the steps' process.
POOLED, INLINE = "waits_for_pool", "waits_inline"


def _agent(name: str, *, inline: bool) -> Agent:
    def refund(order_id: str, amount: int, ctx: RunContext) -> str:
        """Pay money back."""
        notes.tell("begun", ctx.run_id)
        return f"refunded {amount} for {order_id}"

    script = Scripted([Call("refund", {"order_id": "77", "amount": 80}), "Refunded."], name)
    return Agent(name, model=script, tools=[tool(inline=inline)(refund)], approve=["refund"])


pooled = _agent(POOLED, inline=False)
inline = _agent(INLINE, inline=True)
worker_ready.connect(lambda **_: notes.tell("ready", str(os.getpid())), weak=False)
