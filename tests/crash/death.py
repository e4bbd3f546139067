"""A probe that brings a death: a file says what, where and how often, and it is written down before it comes."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from tests.crash.agents import note, noted

Kind = Literal["exception", "exit", "kill_child", "kill_worker", "stop"]


class Fault(RuntimeError):
    """A fault of the step itself: what an error in our own code would be."""


@dataclass(frozen=True)
class Death:
    """``hits`` says which times that any process comes to this point are the last: each one happens once."""

    kind: Kind
    point: str
    what: str
    hits: tuple[int, ...]

    def write(self, folder: Path) -> None:
        half = folder / "death.half"
        half.write_text(json.dumps(asdict(self)))
        half.rename(folder / "death.json")


def probe_in(folder: Path, bring: Callable[[Kind, Path], None]) -> Callable[[str, str], None]:
    """The probe of one worker; all workers of a fleet share the folder, and so the count of who came where."""

    def probe(point: str, what: str) -> None:
        kind = _count(folder, point, what)
        if kind is not None:
            bring(kind, folder)

    return probe


def _count(folder: Path, point: str, what: str) -> Kind | None:
    """Note that somebody came here, and say what it is to die of.

    Without a lock, which a frozen process would hold: the order of the lines in the file is who came when.
    """
    place, me = {"point": point, "what": what}, uuid4().hex
    who = {"pid": os.getpid(), "group": os.getpgrp()}
    note("hits", **place, **who, id=me)
    plan = folder / "death.json"
    death = json.loads(plan.read_text()) if plan.exists() else None
    if death is None or (death["point"], death["what"]) != (point, what):
        return None
    here = [hit["id"] for hit in noted(folder, "hits") if (hit["point"], hit["what"]) == (point, what)]
    if here.index(me) + 1 not in death["hits"]:
        return None
    kind: Kind = death["kind"]
    note("deaths", **place, **who, at=time.time())
    return kind


def die(kind: Kind, folder: Path) -> None:
    """What becomes of a real worker."""
    match kind:
        case "exception":
            raise Fault("the probe says so")
        case "exit":
            os._exit(9)
        case "kill_child":
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill_worker":
            os.killpg(0, signal.SIGKILL)
        case "stop":
            os.killpg(0, signal.SIGSTOP)
    # The signal may reach another thread first: not a statement more before somebody says so.
    while not (folder / "resume").exists():
        time.sleep(0.01)
    _resumed.add(threading.get_ident())


_resumed: set[int] = set()


def task_ended(**_: Any) -> None:
    """For Celery's signal: a task that was frozen has run to its end, so all its late writes have been tried."""
    if threading.get_ident() in _resumed:
        _resumed.discard(threading.get_ident())
        note("late", pid=os.getpid())
