"""The scenarios of one broker, one after another on the same workers; both brokers' lanes go at the same time."""

import argparse
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from secrets import token_hex

from agentq.storage import migrate
from agentq.storage.database import Database
from tests import services
from tests.scenarios.audit import audit, untold
from tests.scenarios.crew import Crew
from tests.scenarios.killer import Kill, Killer
from tests.scenarios.scenario import SCENARIOS, Scenario
from tests.scenarios.scene import Scene
from tests.waiting import eventually

BROKERS = ("redis", "rabbitmq")
# A kill may come when nobody has anything of the run in hand: then another moment is tried.
TRIES = 3
UNTOLD_SECS = 100.0


@dataclass(frozen=True)
class Tried:
    """What came of one try of a scenario; ``problem`` is empty where all its promises were kept."""

    name: str
    kills: tuple[Kill, ...]
    secs: float
    problem: str = ""

    @property
    def hit(self) -> bool:
        return any(kill.is_hit for kill in self.kills)


@dataclass
class Lane:
    """The crew of one broker, and what came of its scenarios."""

    broker: str
    crew: Crew
    killer: Killer
    chance: Random
    say: Callable[[str], None]
    kills: bool = True
    tried: list[Tried] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.problems and not any(each.problem for each in self.tried)

    def run(self, chosen: Sequence[Scenario]) -> None:
        """All of them, and what can be seen only at the end."""
        later: list[Callable[[], None]] = []
        for scenario in chosen:
            for _ in range(TRIES):
                self.crew.man()
                tried = self._try(scenario, Random(self.chance.random()), later)
                self.tried.append(tried)
                how = "; ".join(map(str, tried.kills)) or "nobody was killed"
                self.say(f"{self.broker}: {scenario.name}: {tried.secs:.1f} s, {how}{' FAILED' * bool(tried.problem)}")
                if tried.hit or tried.problem or not self.kills:
                    break
        for check in [*later, self._leaves_nothing]:
            self._check(check)

    def _try(self, scenario: Scenario, chance: Random, later: list[Callable[[], None]]) -> Tried:
        began, problem = time.monotonic(), ""
        moments = [scenario.moment(chance)] if self.kills else []
        scene = Scene(self.crew, self.killer, chance)
        self.killer.aim(*moments)
        try:
            scenario.act(scene)
            audit(scene)
        except BaseException:
            problem = f"{', '.join(map(str, moments))}\n{traceback.format_exc()}"
            self.say(f"{self.broker}: {scenario.name}: {problem}")
            self._give_up(scene)
        later += scene.later
        return Tried(scenario.name, tuple(self.killer.kills), time.monotonic() - began, problem)

    def _give_up(self, scene: Scene) -> None:
        """What it left undone must not reach into the next one."""
        for handle in scene.handles:
            try:
                handle.cancel()
                eventually(lambda handle=handle: handle.run().is_terminal, within=20)
            except Exception as error:
                self.say(f"{handle}: {error!r}")

    def _leaves_nothing(self) -> None:
        """When all is over nobody waits, no hook is to be told, and the broker has nothing, also of workers that go."""
        eventually(lambda: not untold(Scene(self.crew, self.killer, self.chance)), within=UNTOLD_SECS)
        Scene(self.crew, self.killer, self.chance).cli("doctor", "--stuck")
        self.crew.await_nothing_queued()
        for worker in self.crew.workers:
            if worker.is_alive:
                worker.process.terminate()
        for worker in self.crew.workers:
            worker.process.wait(timeout=40)
        assert not self.crew.queued(), f"messages that nobody had acknowledged: {self.crew.queued()}"

    def _check(self, check: Callable[[], None]) -> None:
        try:
            check()
        except BaseException:
            self.problems.append(traceback.format_exc())
            self.say(f"{self.broker}: {self.problems[-1]}")


def lanes(options: argparse.Namespace, chance: Random, say: Callable[[str], None]) -> list[Lane]:
    """Deal the scenarios out to the brokers, and do them all."""
    chosen = [SCENARIOS[name] for name in options.names or SCENARIOS] * options.times
    chance.shuffle(chosen)
    # A minute passes before hooks hear again of an end whose teller has died: not at the end, please.
    chosen.sort(key=lambda scenario: "ending" not in "".join(scenario.kills))
    names = [options.broker] if options.broker else list(BROKERS)
    with ExitStack() as exits:
        found = [
            Lane(
                name,
                *exits.enter_context(place(name, options.keep)),
                Random(chance.random()),
                say,
                not options.no_kills,
            )
            for name in names
        ]
        threads = [
            threading.Thread(target=lane.run, args=(chosen[number :: len(found)],)) for number, lane in enumerate(found)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not all(lane.is_good for lane in found):
            keep(found, say)
    return found


def keep(found: Sequence[Lane], say: Callable[[str], None]) -> None:
    """What somebody needs who looks for a cause."""
    kept = Path(tempfile.mkdtemp(prefix="agentq-scenarios-failed-"))
    for lane in found:
        shutil.copytree(lane.crew.folder, kept / lane.broker, ignore=shutil.ignore_patterns("*.pipe"))
    say(f"logs and marks are kept in {kept}")


@contextmanager
def place(broker: str, kept: Path | None) -> Iterator[tuple[Crew, Killer]]:
    """A database, a place on the broker and a folder for one lane; all gone afterwards."""
    found = services.find(stand_in=None)
    with ExitStack() as exits:
        folder = Path(tempfile.mkdtemp(prefix="agentq-scenarios-"))
        exits.callback(shutil.rmtree, folder, ignore_errors=True)
        database = Database(exits.enter_context(services.new_database(found)))
        migrate.upgrade(database)
        exits.callback(database.dispose)
        queue = f"agentq_test_{found.token}_{token_hex(4)}"
        if broker == "redis":
            url = exits.enter_context(services.own_redis_database(found))
        else:
            url = str(found.rabbitmq.url)
            exits.callback(services.delete_queues, url, [queue, f"{queue}.tools"])
        crew = Crew(folder, database, url, queue)
        killer = Killer(crew)
        exits.callback(killer.close)
        exits.callback(crew.stop)
        yield crew, killer
        if kept is not None:
            shutil.copytree(folder, kept / broker, ignore=shutil.ignore_patterns("*.pipe"), dirs_exist_ok=True)
