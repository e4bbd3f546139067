"""What models and tools really did, one appended line a call by whichever process made it; and word to the driver."""

import os
import select
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

CALLS, ENDS, WAL = "BENCH_CALLS", "BENCH_ENDS", "BENCH_WAL"


@dataclass(frozen=True)
class Note:
    """One call: at which nanosecond of the machine's monotonic clock, at which place of the WAL if that was asked."""

    kind: str
    run: str
    key: str
    at: int
    wal: int


def note(kind: str, run: str, key: str) -> None:
    """Write down a call of a model or a tool, as it returns."""
    if path := os.environ.get(CALLS):
        wal = _wal_position() if kind == "model" else 0
        os.write(_opened(path), f"{kind} {run} {key} {time.monotonic_ns()} {wal}\n".encode())


def tell(kind: str, run: str) -> None:
    """Wake the driver: a worker is ``ready``, a run has ``ended``."""
    # A line this short is written in one piece, also beside other processes.
    os.write(_opened(os.environ[ENDS]), f"{kind} {run} {time.monotonic_ns()}\n".encode())


@cache
def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND)


@cache
def _connection(url: str) -> "psycopg.Connection[tuple[Any, ...]]":
    return psycopg.connect(url, autocommit=True)


def _wal_position() -> int:
    """Where the WAL is now, if this measurement is about that."""
    url = os.environ.get(WAL)
    if not url:
        return 0
    row = _connection(url).execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    assert row is not None
    return int(row[0])


class Notes:
    """The driver's side of a measurement: the file of calls and the pipe that ends are told through."""

    def __init__(self, folder: Path) -> None:
        self._calls, self._ends = folder / "calls", folder / "ends"
        self._calls.write_bytes(b"")
        os.mkfifo(self._ends)
        # Held open for writing too: so it does not end with the last worker.
        self._pipe = os.open(self._ends, os.O_RDWR)
        self._rest = b""
        self._told: list[bytes] = []

    def close(self) -> None:
        os.close(self._pipe)
        self._ends.unlink()

    def variables(self) -> dict[str, str]:
        return {CALLS: str(self._calls), ENDS: str(self._ends)}

    def next(self, *, within: float) -> tuple[str, str, int]:
        """What is told next: its kind, the run, when. Raises TimeoutError."""
        while not self._told:
            if not select.select([self._pipe], [], [], within)[0]:
                raise TimeoutError(f"nothing was told within {within:g} s")
            *lines, self._rest = (self._rest + os.read(self._pipe, 65536)).split(b"\n")
            self._told = lines[::-1]
        kind, run, at = self._told.pop().decode().split()
        return kind, run, int(at)

    def calls(self) -> Iterable[Note]:
        """Everything noted until now."""
        for line in self._calls.read_text().splitlines():
            kind, run, key, at, wal = line.split()
            yield Note(kind, run, key, int(at), int(wal))
