"""kill -9 of the worker that is where the moment says, and what that worker had in hand."""

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from tests.scenarios.crew import Crew
from tests.scenarios.scenario import TOLD, Moment
from tests.scenarios.stage import PIPE

# Somebody who was told of a run takes it up within this, or nobody does.
CLAIM_SECS = 1.5

_HOLDER = """SELECT worker FROM agentq.runs WHERE id = ANY(%(runs)s) AND lease_token IS NOT NULL
    UNION ALL SELECT worker FROM agentq.tool_calls WHERE run_id = ANY(%(runs)s) AND lease_token IS NOT NULL"""
_HELD = r"""SELECT 'run', id, phase FROM agentq.runs WHERE lease_token IS NOT NULL AND worker ~ %(mine)s
    UNION ALL SELECT 'call', run_id, tool FROM agentq.tool_calls WHERE lease_token IS NOT NULL AND worker ~ %(mine)s"""


@dataclass(frozen=True)
class Kill:
    """One death: of which worker, when, and the rows it held at that time, by the database's word."""

    kind: str
    pid: int
    moment: Moment
    held: tuple[tuple[str, str, str], ...]
    marks: tuple[str, ...]

    @property
    def is_hit(self) -> bool:
        """Whether the worker had something of the scenario in hand: a lease, or a hook of an end in its middle."""
        return bool(self.held or self.marks)

    def __str__(self) -> str:
        had = ", ".join(f"{kind} ({what})" for kind, _, what in self.held) or "nothing"
        was = f" in {', '.join(self.marks)}" if self.marks else ""
        return f"{self.kind} worker killed {self.moment}: it had {had}{was}"


@dataclass
class Killer:
    """Reads the marks of all workers as they come, and kills once for each moment it was given."""

    crew: Crew
    kills: list[Kill] = field(default_factory=list)
    _wanted: list[Moment] = field(default_factory=list)
    _seen: dict[tuple[str, bool], int] = field(default_factory=dict)
    # By process: what has begun there and not ended.
    _within: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    _runs: list[str] = field(default_factory=list)
    _round: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _all_read: dict[str, threading.Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        path = self.crew.folder / PIPE
        os.mkfifo(path)
        # Held open for writing too, so that it does not end with the last worker.
        self._pipe = os.open(path, os.O_RDWR)
        threading.Thread(target=self._read, name="killer", daemon=True).start()

    def close(self) -> None:
        os.write(self._pipe, b"\n")

    def aim(self, *moments: Moment) -> None:
        """Forget what was, and kill at these moments."""
        with self._lock:
            self._wanted, self.kills, self._runs = list(moments), [], []
            self._seen.clear()
            self._within.clear()
            self._round += 1

    def watch(self, run_id: str) -> None:
        """A run of the scenario, of which the producer knows."""
        with self._lock:
            self._runs.append(run_id)

    def told(self, point: str) -> None:
        """The producer has done something; whoever takes it up may be the one."""
        assert point in TOLD
        with self._lock:
            if moment := self._count(point, end=False):
                self._start(self._kill_holder, moment)

    def _read(self) -> None:
        rest = b""
        while True:
            *lines, rest = (rest + os.read(self._pipe, 65536)).split(b"\n")
            for line in lines:
                if not line:
                    return os.close(self._pipe)
                self._look(json.loads(line))

    def _look(self, mark: dict[str, Any]) -> None:
        if "all_read" in mark:
            self._all_read.pop(mark["all_read"]).set()
            return
        with self._lock:
            inside = self._within.setdefault(mark["pid"], [])
            if not mark["end"]:
                inside += [mark] if mark["point"] != "effect" else []
            elif begun := next((each for each in inside if _same(each, mark)), None):
                inside.remove(begun)
            if moment := self._count(mark["point"], end=mark["end"]):
                self._start(self._kill_later, moment, mark["group"])

    def _count(self, point: str, *, end: bool) -> Moment | None:
        self._seen[point, end] = nth = self._seen.get((point, end), 0) + 1
        for moment in self._wanted:
            if (moment.point, moment.end, moment.nth) == (point, end, nth):
                self._wanted.remove(moment)
                return moment
        return None

    def _start(self, kill: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=kill, args=(self._round, *arguments), daemon=True).start()

    def _kill_later(self, number: int, moment: Moment, group: int) -> None:
        time.sleep(moment.delay)
        self._kill(number, moment, group)

    def _kill_holder(self, number: int, moment: Moment) -> None:
        give_up = time.monotonic() + CLAIM_SECS
        with self.crew.connect() as connection:
            while time.monotonic() < give_up:
                if rows := connection.execute(_HOLDER, {"runs": self._runs}).fetchall():
                    time.sleep(moment.delay)
                    return self._kill(number, moment, _main_pid(str(rows[0][0])))
        return None

    def _kill(self, number: int, moment: Moment, group: int) -> None:
        """Not in another scenario than the one it was meant for."""
        with self._lock:
            worker = self.crew.of(group)
            if worker is None or number != self._round:
                return
            worker.kill()
        with self.crew.connect() as connection:
            held = connection.execute(_HELD, {"mine": f":{group}(/|$)"}).fetchall()
        self._await_its_last_words()
        with self._lock:
            inside = tuple(each["point"] for marks in self._within.values() for each in marks if each["group"] == group)
            if number == self._round:
                self.kills.append(Kill(worker.kind, group, moment, tuple(held), inside))  # type: ignore[arg-type]
        self.crew.replace()

    def _await_its_last_words(self) -> None:
        """What it has marked stands in the pipe before what is written now."""
        name = token_hex(8)
        self._all_read[name] = seen = threading.Event()
        os.write(self._pipe, (json.dumps({"all_read": name}) + "\n").encode())
        seen.wait(10)


def _same(begin: dict[str, Any], end: dict[str, Any]) -> bool:
    return all(begin.get(key) == end.get(key) for key in ("point", "agent", "run", "call", "moment"))


def _main_pid(worker: str) -> int:
    return int(worker.rpartition(":")[2].split("/")[0])
