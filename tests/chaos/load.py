"""As many open runs as asked for, all the time: enqueued, decided on, and some cancelled, by producers that persist."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from agentq import AgentqError, Approval, ApprovalNotPendingError, Client, UnavailableError
from tests.chaos.agents import MESSAGES_OF_A_THREAD, WEIGHTS, happened
from tests.chaos.place import Place
from tests.chaos.workers import Fleet

LOOK_SECS = 0.25
CANCELLED_SHARE = 0.05
APPROVED_SHARE = 0.8


@dataclass
class Asked:
    """What the producers asked for, and were told that it is stored."""

    agents: dict[str, str] = field(default_factory=dict)
    cancels: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)


class Load:
    """Runs in a thread of its own until told to add no more; then it decides on what waits until all have ended."""

    def __init__(self, place: Place, fleet: Fleet, *, runs: int, chance: random.Random) -> None:
        self.asked = Asked()
        self._place = place
        self._client = Client(settings=fleet.settings)
        self._runs = runs
        self._chance = chance
        self._lock = threading.Lock()
        self._open: dict[str, str | None] = {}
        self._cancel_at: dict[str, float] = {}
        self._decide_at: dict[tuple[str, str], float] = {}
        self._threads: Counter[str] = Counter()
        self._is_adding = True
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()
        self._client.close()

    @property
    def open(self) -> int:
        return len(self._open)

    def add_no_more(self) -> None:
        self._is_adding = False

    def _work(self) -> None:
        while not self._end.wait(LOOK_SECS):
            # What did not work is tried again in the next round, as any producer would.
            for task in (self._forget_ended, self._fill, self._decide, self._cancel):
                with suppress(AgentqError):
                    task()

    def _forget_ended(self) -> None:
        over = "SELECT id FROM agentq.runs WHERE id = ANY(%s) AND status IN ('completed', 'failed', 'cancelled')"
        for (run_id,) in self._place.server.ask(over, [list(self._open)]):
            self._open.pop(run_id)
            self._cancel_at.pop(run_id, None)

    def _fill(self) -> None:
        while self._is_adding and len(self._open) < self._runs and not self._end.is_set():
            self.enqueue_one()

    def enqueue_one(self) -> None:
        """Enqueue a run with a key of its own, as often as it takes: the same key is the same run."""
        with self._lock:
            (agent,) = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
            key = f"{sum(self.asked.counts.values())}"
            thread = self._free_thread() if agent == "talk" else None
            self.asked.counts[agent] += 1
            was_up = self._place.broker.is_up
            run_id = self._persist(lambda: self._client.enqueue(agent, "go", idempotency_key=key, thread=thread).id)
            self.asked.agents[run_id] = agent
            if not (was_up and self._place.broker.is_up):
                self.asked.counts["while the broker was away"] += 1
            self._open[run_id] = thread
            if self._chance.random() < CANCELLED_SHARE:
                self._cancel_at[run_id] = time.monotonic() + self._chance.uniform(0.5, 15)

    def _persist(self, ask: Callable[[], str]) -> str:
        while True:
            try:
                return ask()
            except UnavailableError:
                if self._end.wait(LOOK_SECS):
                    raise

    def _free_thread(self) -> str:
        """A thread that has no open run and few messages yet."""
        busy = set(self._open.values())
        number = 0
        while (name := f"thread-{number}") in busy or self._threads[name] >= MESSAGES_OF_A_THREAD:
            number += 1
        self._threads[name] += 1
        return name

    def _decide(self) -> None:
        """A person takes up to ten seconds, and says yes four times out of five."""
        now = time.monotonic()
        for approval in self._client.approvals():
            call = (approval.run_id, approval.call_id)
            slow = self._chance.uniform(0, 10) if self._is_adding else 0
            if now < self._decide_at.setdefault(call, now + slow):
                continue
            handle = self._client.handle(approval.run_id)
            # Decided by a try whose answer was lost, or the run was cancelled.
            with suppress(ApprovalNotPendingError):
                if approval.kind == "outcome":
                    self._look_and_settle(approval)
                elif self._chance.random() < APPROVED_SHARE:
                    handle.approve(approval.call_id, by="chaos")
                else:
                    handle.reject(approval.call_id, by="chaos", reason="no")

    def _look_and_settle(self, approval: Approval) -> None:
        is_there = happened(approval.idempotency_key, self._place.folder)
        result = f"{approval.tool} found" if is_there else None
        self._client.handle(approval.run_id).settle(approval.call_id, happened=is_there, result=result, by="chaos")

    def _cancel(self) -> None:
        now = time.monotonic()
        for run_id in [run_id for run_id, at in self._cancel_at.items() if at <= now]:
            self.asked.cancels.add(run_id)
            self._client.handle(run_id).cancel()
            self._cancel_at.pop(run_id, None)
