"""What a tool or a hook may know about the run it works for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RunContext:
    """Given to every tool parameter annotated with it, and to every hook.

    ``idempotency_key`` is the same for every attempt of one call: hand it to whatever the tool changes. It is empty in
    hooks. ``context`` is the JSON object given to ``enqueue``; ``attempt`` counts from 1. ``approved`` says that this
    call was approved, by a person or by its rule when nobody decided in time.
    """

    run_id: str
    agent: str
    thread_id: str | None = None
    call_id: str = ""
    idempotency_key: str = ""
    attempt: int = 1
    approved: bool = False
    context: Mapping[str, Any] = field(default_factory=dict)
