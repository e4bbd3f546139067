"""``agentq worker``: both pools in one command, started, watched, stopped, and never left behind."""

import re
import signal
from pathlib import Path

import psutil
import pytest

from agentq.storage import leases, queries
from agentq.storage.database import Database
from tests.cli.conftest import ready
from tests.cli.program import Program, processes_of, processes_with
from tests.waiting import eventually

pytestmark = [pytest.mark.xdist_group("cli-worker"), pytest.mark.timeout(180)]


def holder(database: Database, run_id: str) -> str | None:
    """The worker whose lease on the run's step is running."""
    with database.autocommit() as connection:
        run = queries.run(connection, run_id)
    return run.worker if run.lease_until else None


def pools(program: Program) -> list[psutil.Process]:
    (started,) = program.started
    return psutil.Process(started.process.pid).children()


def test_it_serves_runs_and_one_sigterm_stops_it_cleanly(installation: Program, database: Database) -> None:
    worker = ready(installation.start("worker"))
    queue = installation.settings["AGENTQ_QUEUE"]
    for line in (f"from {queue}\n", f"from {queue}.tools, agentq_test_cli_gpu\n", "agents    adder, failing, gated"):
        assert line in worker.text()
    assert installation("run", "adder", "1 + 2").out == "three\n"
    assert worker.end() == 0
    assert "stopped" in worker.text()
    # What a tool prints is as it is, each pool has its name, and Celery does not speak of each task.
    assert "\nadding 1 and 2\n" in worker.text()
    assert all(re.search(rf"^\[{kind}\] .* ready\.$", worker.text(), re.M) for kind in ("steps", "tools"))
    assert not re.search("Warning:|received|succeeded", worker.text())
    assert processes_with(queue) == []
    with database.autocommit() as connection:
        assert queries.workers(connection) == []


def test_its_agents_are_known_before_its_pools_work_and_keys_they_miss_are_told(
    installation: Program, database: Database
) -> None:
    (installation.folder / "keyed.py").write_text("from agentq import Agent\na = Agent('a', model='groq:x')\n")
    installation.settings["AGENTQ_AGENTS"] += ",keyed.py"
    with database.autocommit() as connection:
        leases.know_agents(connection, ["another"])
    worker = installation.start("worker")
    worker.says("agents    a, adder")
    assert "agentq: GROQ_API_KEY is not set here; needed by a\n" in worker.text()
    assert "ready." not in worker.text()
    assert installation("run", "plain", "hi", AGENTQ_AGENTS="").out == "fine\n"


def test_a_pool_that_dies_is_started_again_and_leaves_no_process(installation: Program) -> None:
    worker = ready(installation.start("worker"))
    tools = next(pool for pool in pools(installation) if "prefork" in pool.cmdline())
    below = processes_of(tools.pid)
    tools.kill()
    worker.says("ready.", "ready.", "ready.")
    assert "the tools process ended (SIGKILL)" in worker.text()
    eventually(lambda: not any(process.is_running() for process in below), what="its processes are gone")
    assert installation("run", "adder", "1 + 2").out == "three\n"


def test_when_the_supervisor_is_killed_its_pools_end_by_themselves(installation: Program) -> None:
    worker = ready(installation.start("worker"))
    worker.process.kill()
    worker.process.wait()
    eventually(lambda: not processes_with(installation.settings["AGENTQ_QUEUE"]), what="no process is left")
    assert "the process that started this worker is gone" in worker.text()


def test_work_in_progress_is_finished_first_and_a_second_signal_cuts_it_off(
    installation: Program, database: Database
) -> None:
    worker = ready(installation.start("worker"))
    run = installation("run", "slow", "hi", "--no-wait").out.strip()
    held_by = eventually(lambda: holder(database, run))
    assert held_by.startswith("steps-")
    worker.process.send_signal(signal.SIGTERM)
    worker.says("stopping: ")
    assert worker.end(signal.SIGINT, within=15) == 130
    assert processes_with(installation.settings["AGENTQ_QUEUE"]) == []
    # Given back: nobody has to wait for the end of its lease.
    assert holder(database, run) is None


@pytest.mark.parametrize(("only", "pool"), [("steps", "threads"), ("tools", "prefork")])
def test_one_pool_alone_is_the_process_itself(installation: Program, only: str, pool: str) -> None:
    worker = installation.start("worker", "--only", only)
    worker.says("ready.")
    assert pool in psutil.Process(worker.process.pid).cmdline()
    assert worker.end() == 0


def test_named_queues_are_served_instead_of_all(installation: Program, database: Database) -> None:
    worker = installation.start("worker", "--only", "tools", "--queues", "agentq_test_cli_gpu")
    worker.says("ready.")
    with database.autocommit() as connection:
        (found,) = queries.workers(connection)
    assert found.queues == ("agentq_test_cli_gpu",)
    assert worker.end() == 0


def test_with_nothing_configured_the_embedded_services_are_started_and_stopped(
    installation: Program, short_folder: Path
) -> None:
    for name in ("AGENTQ_DATABASE_URL", "AGENTQ_BROKER_URL"):
        del installation.settings[name]
    installation.settings["AGENTQ_HOME"] = str(short_folder)
    worker = ready(installation.start("worker"))
    assert "embedded" in worker.text()
    assert (short_folder / ".gitignore").read_text() == "*\n"
    assert installation("run", "adder", "1 + 2").out == "three\n"
    assert worker.end() == 0
    eventually(lambda: not processes_with(str(short_folder)), what="the server has stopped")
