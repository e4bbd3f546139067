"""The agent of ``agentq demo``: support for a small shop. Copy it; with a real model it works as it stands."""

import os
import re
import time
from typing import Any

from agentq import Agent, RunContext, ToolError, UserMessage, tool
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted

ORDERS: dict[str, dict[str, Any]] = {
    "77": {"item": "teapot", "paid": 80.0, "parcel": "P-4711"},
    "78": {"item": "desk lamp", "paid": 35.0, "parcel": "P-4712"},
}


# Reading twice does no harm: after a crash the call is simply made again.
@tool(idempotent=True)
def lookup_order(order_id: str) -> dict[str, Any]:
    """What was ordered, what was paid, and the number of the parcel."""
    if order_id not in ORDERS:
        raise ToolError(f"there is no order {order_id}")
    return ORDERS[order_id]


@tool(idempotent=True, timeout=30)
def track_parcel(parcel: str) -> str:
    """Where a parcel is."""
    time.sleep(2)  # the carrier is slow
    return f"{parcel} is on its way, expected tomorrow"


# Not marked idempotent: if a worker dies in the middle, it is not done again, and the model is told so. The key is the
# same for every attempt, for a payment service that takes one.
@tool
def refund(order_id: str, amount: float, ctx: RunContext) -> str:
    """Pay money back to the customer."""
    return f"refunded {amount:.2f} EUR for order {order_id}, reference {ctx.idempotency_key[-8:]}"


def _decide(request: ModelRequest) -> str | Call:
    """What the scripted model does after it has seen the order."""
    if "broken" in _question(request):
        return Call("refund", {"order_id": "77", "amount": 80.0})
    return Call("track_parcel", {"parcel": "P-4712"})


def _answer(request: ModelRequest) -> str:
    if "broken" in _question(request):
        return "I am sorry about the teapot. Your 80 EUR are on their way back to you."
    return "Your desk lamp is on its way and should be with you tomorrow."


def _look_up(request: ModelRequest) -> Call:
    number = re.search(r"order (\d+)", _question(request), re.IGNORECASE)
    return Call("lookup_order", {"order_id": number[1] if number else "0"})


def _question(request: ModelRequest) -> str:
    return next(message.text for message in request.messages if isinstance(message, UserMessage))


SCRIPT = Scripted([_look_up, _decide, _answer], delay_secs=0.2)

support = Agent(
    "support",
    model=os.environ.get("AGENTQ_DEMO_MODEL") or SCRIPT,
    instructions=(
        "You help the customers of a small shop. Look up the order first. For a question about delivery track the "
        "parcel. For something broken refund what was paid. Then answer in one or two sentences."
    ),
    tools=[lookup_order, track_parcel, refund],
    approve=["refund"],
)
