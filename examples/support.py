"""An agent of a shop's support: one tool that may be repeated, one that a person has to approve.

    export OPENAI_API_KEY=…
    agentq worker --agents examples/support.py
    agentq run support "Order 77 arrived broken, please refund it" --watch

Without a key: EXAMPLE_MODEL=ollama:qwen3 agentq worker --agents examples/support.py
"""

import os

from agentq import Agent, RunContext, ToolError, tool

ORDERS = {"77": {"item": "teapot", "paid": 80.0}, "78": {"item": "desk lamp", "paid": 35.0}}


@tool(idempotent=True, timeout=10)
def lookup_order(order_id: str) -> dict[str, object]:
    """What was ordered and what was paid."""
    if order_id not in ORDERS:
        raise ToolError(f"there is no order {order_id}; ask the customer for the number")
    return ORDERS[order_id]


@tool
def refund(order_id: str, amount: float, ctx: RunContext) -> str:
    """Pay money back to the customer."""
    # A payment service takes the key, so that no attempt pays twice: pay(order_id, amount, key=ctx.idempotency_key)
    return f"refunded {amount:.2f} EUR for order {order_id} ({ctx.idempotency_key})"


support = Agent(
    "support",
    model=os.environ.get("EXAMPLE_MODEL", "openai:gpt-5.2"),
    fallback=["anthropic:claude-sonnet-4-5"],
    instructions="You help the customers of a shop. Look up the order before you promise anything. Be brief.",
    tools=[lookup_order, refund],
    approve=["refund"],
    limits={"model_calls": 10},
)
