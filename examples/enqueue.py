"""A producer, such as a web service: it knows the agent's name only, not its code.

    python examples/enqueue.py "Order 77 arrived broken, please refund it"

It needs a worker that has the agent: agentq worker --agents examples/support.py
"""

import sys

from agentq import AgentqError, Client

text = sys.argv[1] if len(sys.argv) > 1 else "Where is order 78?"

try:
    with Client() as client:
        # The key makes it safe to send the same mail twice: there is one run.
        run = client.enqueue("support", text, idempotency_key=f"mail:{text}", tags={"customer": "42"})
        print("enqueued", run.id)

        # From here on everything could happen in another process: client.handle(run_id) is all it takes.
        result = run.wait(timeout=60)
        for call in result.approvals:
            print(f"{call.tool} {call.arguments} waits for a person")
            if input("approve? [y/N] ").strip().lower() == "y":
                run.approve(call.call_id)
            else:
                run.reject(call.call_id, reason="not this time")
            result = run.wait(timeout=60)
        print(result.text)
except AgentqError as error:
    sys.exit(f"{error.code}: {error}")
