"""Queues, and what a worker refuses."""

import os
import subprocess
import sys

from agentq import ToolMessage
from agentq.storage.database import Database
from tests.workers.fleet import Fleet


def test_a_tool_with_a_queue_of_its_own_runs_where_that_queue_is_consumed(redis_fleet: Fleet) -> None:
    redis_fleet.start("steps")
    redis_fleet.start("tools", concurrency=1)
    special = redis_fleet.start("tools", concurrency=1, queues="special")
    result = redis_fleet.client.enqueue("special", "go").wait(30)
    (call,) = [message.result for message in result.messages if isinstance(message, ToolMessage)]
    parents = subprocess.run(["ps", "-o", "ppid=", "-p", call.text], capture_output=True, text=True, check=True)
    assert int(parents.stdout) == special.process.pid


def test_a_worker_refuses_a_database_without_the_schema_and_names_the_command(
    redis_fleet: Fleet, new_database_url: "object"
) -> None:
    url = new_database_url()  # type: ignore[operator]
    redis_fleet.database = Database(url)
    command = [sys.executable, "-m", "celery", "-A", "agentq_workers.main", "worker", "-P", "threads", "-Q", "none"]
    environment = os.environ | redis_fleet.settings.environment() | {"AGENTQ_TEST_LOG": str(redis_fleet.folder)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "agentq: the database has no agentq schema; run: agentq db upgrade" in ended.stderr
