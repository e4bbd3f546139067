"""What steps and the engine work with: the database, the agents, the models and the broker of one process."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agentq.agent import AgentSpec
from agentq.blob_cache import BlobCache
from agentq.dispatch import Dispatcher
from agentq.elsewhere import Elsewhere
from agentq.heartbeat import Heartbeat
from agentq.providers.base import Provider
from agentq.storage.database import Database
from agentq.transcripts import Transcripts
from agentq.wire import STEP_QUEUE


def boot_time() -> float:
    """Seconds that go on while the machine sleeps: what was a lease before may not be one after."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def no_probe(point: str, what: str) -> None:
    """Crash tests pass one that kills the process at a point: claimed, effect, committed, announced."""


@dataclass(frozen=True)
class Services:
    """Made once a process. ``resolve`` turns an agent's model into a provider and the name it knows the model by."""

    database: Database
    agents: Mapping[str, AgentSpec]
    dispatcher: Dispatcher
    heartbeat: Heartbeat
    resolve: Callable[[Any], tuple[Provider, str]]
    worker: str
    lease_secs: float = 15.0
    probe: Callable[[str, str], None] = field(default=no_probe)
    # How many steps may follow the first one of a message in the same process, and whether it may take any more.
    local_steps: int = 0
    may_stay: Callable[[], bool] = field(default=lambda: True)
    clock: Callable[[], float] = boot_time
    # False for the sweep: one run that somebody has locked must not keep it from all others.
    waits_for_locks: bool = True
    # What the queues of this installation begin with.
    queue: str = STEP_QUEUE

    @cached_property
    def transcripts(self) -> Transcripts:
        """What this process knows of conversations."""
        return Transcripts(self.database)

    @cached_property
    def blobs(self) -> BlobCache:
        """What this process knows of images and files."""
        return BlobCache(self.database)

    @cached_property
    def elsewhere(self) -> Elsewhere:
        """What this process knows of work that it does not have the agents for."""
        return Elsewhere(self.queue)

    @property
    def patience_secs(self) -> float:
        """How long a wake-up may take to be picked up before it is sent again, for the first time."""
        return patience_secs(self.lease_secs)


def patience_secs(lease_secs: float) -> float:
    """Who wants lost workers noticed early wants lost messages noticed early, too."""
    return min(5.0, lease_secs / 3)
