"""What is done to workers, broker and database: kinds of faults, and a schedule of them that a seed decides."""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from agentq import AgentqError
from tests.chaos.load import Load
from tests.chaos.place import Place
from tests.chaos.recovery import Recoveries, of_child, of_worker
from tests.chaos.workers import Fleet, Slot

DOWN_SECS = 5.0
PAST_LEASE_SECS = 5.0


@dataclass(frozen=True)
class Fault:
    """Something that was done, when, and to which processes."""

    kind: str
    at: float
    until: float
    pids: frozenset[int] = frozenset()


@dataclass
class Faults:
    """Makes them, each in a thread of its own, so that they may overlap."""

    place: Place
    fleet: Fleet
    load: Load
    recoveries: Recoveries
    chance: random.Random
    mean_secs: float = 10.0
    done: list[Fault] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        """Faults for so long, with exponential gaps; the last ones are over when this returns."""
        give_up, threads = time.monotonic() + seconds, []
        while (gap := self.chance.expovariate(1 / self.mean_secs)) < give_up - time.monotonic():
            time.sleep(gap)
            kinds = self.kinds()
            (fault,) = self.chance.choices(list(kinds), list(kinds.values()))
            # Chosen here, not in the thread: the same seed asks for the same faults.
            thread = threading.Thread(target=self._try, args=(fault, random.Random(self.chance.random())), daemon=True)
            thread.start()
            threads.append(thread)
        time.sleep(max(0.0, give_up - time.monotonic()))
        for thread in threads:
            thread.join()

    def kinds(self) -> dict[Callable[[random.Random], None], float]:
        """Each kind and its weight."""
        kinds = {
            self.worker_killed: 3.0,
            self.machine_lost: 1.0,
            self.pool_process_killed: 2.0,
            self.worker_stopped: 2.0,
            self.worker_frozen: 1.0,
            self.redis_killed: 1.0,
            self.redis_flushed: 1.0,
            self.redis_connections_cut: 1.0,
            self.redis_frozen: 1.0,
            self.all_postgres_connections_cut: 1.0,
            self.some_postgres_connections_cut: 1.0,
        }
        # A server that is shared with others is not ours to crash.
        return kinds | ({self.postgres_crashed: 1.0} if self.place.server.is_ours else {})

    def _try(self, fault: Callable[[random.Random], None], chance: random.Random) -> None:
        try:
            fault(chance)
        except Exception as error:  # the report says so: a fault that was not made proves nothing
            self.problems.append(f"{fault.__name__}: {type(error).__name__}: {error}")

    def _note(self, kind: str, since: float, *pids: int) -> None:
        self.done.append(Fault(kind, since, time.time(), frozenset(pids)))

    # -- workers --

    def worker_killed(self, chance: random.Random) -> None:
        self.kill("worker killed", chance.choice(self.fleet.slots))

    def machine_lost(self, chance: random.Random) -> None:
        self.kill("both pools' workers killed", *[chance.choice(self.fleet.of(kind)) for kind in ("steps", "tools")])

    def kill(self, kind: str, *slots: Slot) -> int:
        """kill -9 of these workers with their pools; how many leases they held."""
        since, held = time.time(), []
        pids = [pid for slot in slots if (pid := slot.pid)]
        children = [pid for slot in slots for pid in slot.children()]
        for slot in slots:
            slot.send(signal.SIGKILL)
        for pid in pids:
            held += self.recoveries.held(kind, of_worker(pid))
        self.recoveries.watch(held)
        self._note(kind, since, *pids, *children)
        return len(held)

    def pool_process_killed(self, chance: random.Random) -> None:
        slot = chance.choice(self.fleet.of("tools"))
        if pool := slot.children():
            since, pid, victim = time.time(), slot.pid or 0, chance.choice(pool)
            psutil.Process(victim).kill()
            self.recoveries.watch(self.recoveries.held("pool process killed", of_child(pid, victim)))
            self._note("pool process killed", since, victim)

    def worker_stopped(self, chance: random.Random) -> None:
        slot = chance.choice(self.fleet.slots)
        since, pid, children = time.time(), slot.pid or 0, slot.children()
        held = self.recoveries.held("worker stopped", of_worker(pid))
        slot.stop()
        self.recoveries.watch(held)
        with suppress(psutil.Error):
            psutil.Process(pid).wait(60)
        self._note("worker stopped", since, pid, *children)

    def worker_frozen(self, chance: random.Random) -> None:
        slot = chance.choice(self.fleet.slots)
        since, pid, children = time.time(), slot.pid or 0, slot.children()
        slot.send(signal.SIGSTOP)
        self.recoveries.watch(self.recoveries.held("worker frozen", of_worker(pid)))
        time.sleep(self.fleet.settings.lease_secs + PAST_LEASE_SECS)
        slot.send(signal.SIGCONT)
        self._note("worker frozen", since, pid, *children)

    # -- the broker --

    def redis_killed(self, chance: random.Random) -> None:
        with self.place.broker.lock:
            since = time.time()
            self.place.broker.kill()
            # At least one producer meets the dead broker.
            with suppress(AgentqError):
                self.load.enqueue_one()
            time.sleep(chance.uniform(0, DOWN_SECS))
            self.place.broker.start()
            self._note("Redis killed, back empty", since)

    def redis_flushed(self, chance: random.Random) -> None:
        with self.place.broker.lock, self.place.broker.client() as client:
            since = time.time()
            client.flushall()
            self._note("Redis flushed", since)

    def redis_connections_cut(self, chance: random.Random) -> None:
        with self.place.broker.lock, self.place.broker.client() as client:
            since = time.time()
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")
            self._note("Redis connections cut", since)

    def redis_frozen(self, chance: random.Random) -> None:
        with self.place.broker.lock:
            since = time.time()
            self.place.broker.send(signal.SIGSTOP)
            time.sleep(chance.uniform(1, 3 * DOWN_SECS))
            self.place.broker.send(signal.SIGCONT)
            self._note("Redis frozen", since)

    # -- the database --

    def all_postgres_connections_cut(self, chance: random.Random) -> None:
        self._cut("Postgres connections cut, all", 1.0)

    def some_postgres_connections_cut(self, chance: random.Random) -> None:
        self._cut("Postgres connections cut, some", 0.3)

    def _cut(self, kind: str, share: float) -> None:
        since = time.time()
        self.place.server.cut(share)
        self._note(kind, since)

    def postgres_crashed(self, chance: random.Random) -> None:
        since = time.time()
        self.place.server.crash()
        self.place.server.ask("SELECT 1")
        self._note("Postgres crashed", since)


def counts(faults: list[Fault]) -> Counter[str]:
    return Counter(fault.kind for fault in faults)
