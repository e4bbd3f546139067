"""Processes of a tools pool come and go: the others get their work, and one that was started later is no worse."""

import os
import signal

import psutil
import pytest

from tests.waiting import eventually
from tests.workers.fleet import Fleet
from tests.workers.test_kills import codes

pytestmark = pytest.mark.crash


def test_a_pool_of_which_every_idle_process_was_killed_goes_on(fleet: Fleet) -> None:
    fleet.start("steps")
    tools = fleet.start("tools", concurrency=3)
    assert fleet.client.enqueue("quick", "go").wait(30).text == "done"
    parent = psutil.Process(tools.process.pid)
    for child in parent.children():
        child.kill()
        eventually(lambda gone=child.pid: _is_replaced(parent, gone, 3), what="another process is started")
    # A wake-up that a killed process may have taken along is sent again after some seconds.
    assert fleet.client.enqueue("quick", "go").wait(30).text == "done"


def _is_replaced(parent: psutil.Process, gone: int, count: int) -> bool:
    alive = [child.pid for child in parent.children() if _is_alive(child)]
    return len(alive) == count and gone not in alive


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        # Buried by its parent since it was listed.
        return False


def test_a_worker_that_stops_waits_for_a_tool_in_a_process_that_was_started_later(fleet: Fleet) -> None:
    fleet.start("steps")
    tools = fleet.start("tools", concurrency=1)
    first = fleet.client.enqueue("slow_safe_tool", "go")
    os.kill(fleet.began(1)[0]["pid"], signal.SIGKILL)
    assert first.wait(40).text == "done"
    handle = fleet.client.enqueue("short_tool", "go")
    fleet.began(3)
    assert tools.terminate() == 0
    # The tool had three seconds to go, and the worker has more.
    fleet.start("tools", concurrency=1)
    assert handle.wait(40).text == "done"
    assert codes(handle) == [None]
