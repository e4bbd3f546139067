"""How long what a lost worker held takes to go on: noted when it is lost, watched until somebody has it."""

import math
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.chaos.place import Server

_STEPS = """SELECT id, 0, -1, seq, lease_token, claimed_at FROM agentq.runs
            WHERE lease_token IS NOT NULL AND worker ~ %s"""
_CALLS = """SELECT run_id, turn, index, 0, lease_token, claimed_at FROM agentq.tool_calls
            WHERE lease_token IS NOT NULL AND worker ~ %s"""
_STEPS_NOW = """SELECT id, 0, -1, seq, lease_token, claimed_at,
                    status IN ('completed', 'failed', 'cancelled') FROM agentq.runs WHERE id = ANY(%s)"""
_CALLS_NOW = """SELECT run_id, turn, index, 0, lease_token, claimed_at, status = 'done'
                FROM agentq.tool_calls WHERE run_id = ANY(%s)"""
LOOK_SECS = 0.1

Place = tuple[str, int, int]


@dataclass
class Held:
    """One lease of a lost worker, and the state it was held in."""

    kind: str
    at: float
    where: Place
    seq: int
    token: Any
    claimed_at: datetime | None
    noticed: float | None = None
    goes_on: float | None = None

    def look(self, seq: int, token: Any, claimed_at: datetime | None, is_done: bool, now: float) -> None:
        moved = is_done or seq != self.seq or claimed_at != self.claimed_at
        if self.noticed is None and (moved or token != self.token):
            self.noticed = now - self.at
        if self.goes_on is None and moved:
            self.goes_on = now - self.at


class Recoveries:
    """All leases that were lost, by the kind of fault."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._open: list[Held] = []
        self.all: list[Held] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Recoveries":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def held(self, kind: str, workers: str) -> list[Held]:
        """What the processes hold whose name matches ``workers``, as lost now."""
        at = time.monotonic()
        return [
            Held(kind, at, (run_id, turn, index), seq, token, claimed_at)
            for query in (_STEPS, _CALLS)
            for run_id, turn, index, seq, token, claimed_at in self._server.ask(query, [workers])
        ]

    def watch(self, held: list[Held]) -> None:
        with self._lock:
            self._open += held
            self.all += held

    def are_over(self) -> bool:
        with self._lock:
            return not self._open

    def by_kind(self) -> dict[str, list[Held]]:
        kinds = defaultdict(list)
        for held in self.all:
            kinds[held.kind].append(held)
        return dict(sorted(kinds.items()))

    def _watch(self) -> None:
        while not self._end.wait(LOOK_SECS):
            self.look()

    def look(self) -> None:
        """One look at everything that has not gone on yet."""
        with self._lock:
            waiting = list(self._open)
        if not waiting:
            return
        ids = [list({held.where[0] for held in waiting if (held.where[2] < 0) == is_step}) for is_step in (True, False)]
        found: dict[Place, tuple[Any, ...]] = {}
        for query, run_ids in zip((_STEPS_NOW, _CALLS_NOW), ids, strict=True):
            if run_ids:
                found |= {row[:3]: row[3:] for row in self._server.ask(query, [run_ids])}
        now = time.monotonic()
        for held in waiting:
            held.look(*found[held.where], now)
        with self._lock:
            self._open = [held for held in self._open if held.goes_on is None]


def of_worker(pid: int) -> str:
    """The names of a worker and its pool's processes."""
    return f":{pid}(/[0-9]+)?$"


def of_child(pid: int, child: int) -> str:
    return f":{pid}/{child}$"


def quantile(values: list[float], share: float) -> float | None:
    """The smallest value that ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
