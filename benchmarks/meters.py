"""What a stretch of work cost: wall time, CPU by whom, WAL, commits, statements, memory."""

import re
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from benchmarks.place import Place
from tests.waiting import eventually

SAMPLE_SECS = 0.2
_STATEMENT = re.compile(rb" LOG:  (?:statement|execute [^:]*):\s*\(?(\w+)")
_AROUND = (b"BEGIN", b"COMMIT", b"ROLLBACK")


@dataclass(frozen=True)
class Cost:
    """Of one stretch. ``others`` is what the rest of the machine burnt meanwhile; ``images`` a part of ``wal``."""

    secs: float
    cpu_app: float
    cpu_postgres: float
    cpu_redis: float
    cpu_others: float
    wal: int
    images: int
    commits: int

    @property
    def cpu(self) -> float:
        return self.cpu_app + self.cpu_postgres + self.cpu_redis


@dataclass(frozen=True)
class _Servers:
    postgres: float
    redis: float
    machine: float


class Meter:
    """Reads the counters when it is made and when it is stopped.

    Measured are this process, the processes of ``pids`` with the children that they have now, and the servers.
    """

    def __init__(self, place: Place, pids: Sequence[int]) -> None:
        self._place = place
        self._server = place.connect()
        self._processes = [psutil.Process(), *_tree(pids)]
        # What takes long to read is read outside the stretch: first here, last in ``stop``.
        self._servers = self._read_servers()
        self._app = self._read_app()
        self._wal = self._read_wal()
        self._at = time.monotonic()

    def stop(self) -> Cost:
        """What it cost since the meter was made."""
        secs, wal, app = time.monotonic() - self._at, self._read_wal(), self._read_app() - self._app
        servers = self._read_servers()
        postgres, redis = servers.postgres - self._servers.postgres, servers.redis - self._servers.redis
        length, images, commits = self._look_into_wal(self._wal, wal)
        self._server.close()
        return Cost(
            secs=secs,
            cpu_app=app,
            cpu_postgres=postgres,
            cpu_redis=redis,
            cpu_others=servers.machine - self._servers.machine - app - postgres - redis,
            wal=length,
            images=images,
            commits=commits,
        )

    def _read_app(self) -> float:
        return sum(_cpu(each) for each in self._processes)

    def _read_servers(self) -> _Servers:
        postgres, redis = self._place.postgres.process, self._place.redis.process
        assert postgres is not None
        assert redis is not None
        return _Servers(_cpu_of_server(postgres.pid), _cpu(psutil.Process(redis.pid)), _cpu_of_machine())

    def _read_wal(self) -> str:
        row = self._server.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        return str(row[0])

    def _look_into_wal(self, start: str, end: str) -> tuple[int, int, int]:
        """Its length, the full page images in it, and its COMMIT records."""
        # A commit of its own flushes what it is to read.
        self._server.execute("SELECT pg_logical_emit_message(true, 'bench', '')")
        row = self._server.execute("SELECT %s::pg_lsn - %s::pg_lsn", (end, start)).fetchone()
        assert row is not None
        if not row[0]:
            return 0, 0, 0
        folder = self._place.postgres.data / "pg_wal"
        words = ["--stats=record", f"--path={folder}", f"--start={start}", f"--end={end}"]
        command = [self._place.postgres.program("pg_waldump"), *words]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return int(row[0]), _total_images(shown), _commits(shown)


def _commits(shown: str) -> int:
    return sum(int(count) for count in re.findall(r"^Transaction/COMMIT\w* +(\d+)", shown, flags=re.MULTILINE))


def _total_images(shown: str) -> int:
    # Total, then number, record size [..%], size of images [..%], both.
    found = re.search(r"^Total +\d+ +\d+ \[[^\]]*\] +(\d+)", shown, flags=re.MULTILINE)
    assert found is not None, shown
    return int(found[1])


def _tree(pids: Sequence[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            yield from [process, *process.children(recursive=True)]


def _cpu(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0


def _cpu_of_server(pid: int) -> float:
    """Of Postgres, with the backends that have ended meanwhile."""
    server = psutil.Process(pid)
    times = server.cpu_times()
    ended = times.children_user + times.children_system
    return _cpu(server) + ended + sum(_cpu(child) for child in server.children())


def _cpu_of_machine() -> float:
    times = psutil.cpu_times()
    # What a guest used is counted in user already.
    return float(times.user + times.nice + times.system + getattr(times, "irq", 0) + getattr(times, "softirq", 0))


def memory(pids: Sequence[int]) -> float:
    """Megabytes of these processes and their children together, pages that they share counted once.

    That is the sum of their PSS, in which a page shared by n processes counts an n-th for each; where the system
    does not tell that, of their USS, which leaves shared pages out.
    """
    total = 0
    for process in _tree(pids):
        with suppress(psutil.NoSuchProcess):
            full = process.memory_full_info()
            total += getattr(full, "pss", full.uss)
    return total / 1e6


@contextmanager
def peak_memory(pids: Sequence[int]) -> Iterator[list[float]]:
    """Samples of ``memory`` while the block runs; the peak is their maximum."""
    samples: list[float] = [memory(pids)]
    end = threading.Event()

    def sample() -> None:
        while not end.wait(SAMPLE_SECS):
            samples.append(memory(pids))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        end.set()
        thread.join()


@dataclass
class Statements:
    """How many statements the server executed, and how many of them were BEGIN, COMMIT or ROLLBACK."""

    all: int = 0
    around: int = 0


@contextmanager
def statements(place: Place) -> Iterator[Statements]:
    """Count what the server logs while the block runs; that slows it, so it is no time to look at a clock."""
    log = place.postgres.folder / "log"
    counted = Statements()
    _log_statements(place, "all")
    start = log.stat().st_size
    try:
        yield counted
        with log.open("rb") as file:
            file.seek(start)
            words = _STATEMENT.findall(file.read())
        counted.all, counted.around = len(words), sum(word.upper() in _AROUND for word in words)
    finally:
        _log_statements(place, "none")


def _log_statements(place: Place, which: str) -> None:
    with place.connect() as server:
        server.execute(f"ALTER SYSTEM SET log_statement = '{which}'")
        server.execute("SELECT pg_reload_conf()")

    def is_known() -> bool:
        with place.connect() as asked:
            row = asked.execute("SELECT current_setting('log_statement')").fetchone()
            return row == (which,)

    eventually(is_known)
