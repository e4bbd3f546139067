"""A process of its own that runs one call and freezes inside the transaction that saves it."""

import os
import signal
import sys
from typing import Any

from agentq import Agent, tool
from agentq.providers.scripted import Call, Scripted
from agentq.storage import calls
from agentq.storage.database import Database
from tests.engine.drain import Drain


@tool(idempotent=True)
def safe(n: int) -> str:
    """Do no harm when repeated."""
    return f"safe {n}"


def batch() -> Agent:
    return Agent("batch", model=Scripted([[Call("safe", {"n": n}) for n in range(3)], "done"]), tools=[safe])


def freeze(url: str, run_id: str, seq: int, index: int) -> None:
    real = calls.announce_next

    def announce_next(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        os.write(1, b"frozen\n")
        os.kill(os.getpid(), signal.SIGSTOP)
        return found

    calls.announce_next = announce_next
    Drain(Database(url), batch()).engine.run_call(run_id, seq, index)


if __name__ == "__main__":
    freeze(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
