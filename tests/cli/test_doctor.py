"""The doctor: one line a check, the fix beside it, and never a traceback."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentq.storage import cooldowns, leases
from agentq.storage.database import Database
from agentq.storage.sql import text
from tests.cli.program import Done, Program


def statuses(done: Done) -> dict[str, Any]:
    return {check["check"]: check["status"] for check in done.json["checks"]}


def test_without_a_worker_it_warns_of_every_queue_and_names_the_command(
    installation: Program, database: Database
) -> None:
    done = installation("doctor", "--json")
    assert done.code == 0
    warned = [check for check in done.json["checks"] if check["status"] == "WARN"]
    queue = installation.settings["AGENTQ_QUEUE"]
    assert [check["message"].partition(":")[0] for check in warned] == [queue, f"{queue}.tools", "agentq_test_cli_gpu"]
    assert all(check["fix"].startswith("agentq worker") for check in warned)


def test_an_unreachable_database_and_broker_fail_with_code_3(installation: Program) -> None:
    away = {
        "AGENTQ_DATABASE_URL": "postgresql://u:secret@127.0.0.1:1/x",
        "AGENTQ_BROKER_URL": "redis://:secret@127.0.0.1:1",
    }
    done = installation("doctor", "--json", **away)
    assert done.code == 3
    assert not done.json["ok"]
    found = statuses(done)
    assert (found["database"], found["broker"]) == ("FAIL", "FAIL")
    assert "secret" not in done.out + done.err


def test_a_missing_schema_fails_and_the_fix_is_the_command(
    installation: Program, new_database_url: Callable[[], str]
) -> None:
    done = installation("doctor", "--json", AGENTQ_DATABASE_URL=new_database_url())
    assert done.code == 2
    (schema,) = [check for check in done.json["checks"] if check["check"] == "schema"]
    assert (schema["status"], schema["fix"]) == ("FAIL", "agentq db upgrade")


def test_a_mistyped_variable_is_a_warning_with_the_right_name(installation: Program) -> None:
    out = installation("doctor", AGENTQ_LEASE_SEC="3").out
    assert "WARN  settings    AGENTQ_LEASE_SEC is not a setting; did you mean AGENTQ_LEASE_SECS?" in out


def test_a_wrong_setting_is_a_failure(installation: Program) -> None:
    done = installation("doctor", "--json", AGENTQ_LEASE_SECS="0")
    assert (done.code, statuses(done)) == (2, {"settings": "FAIL"})


def test_agents_that_cannot_be_imported_fail_beside_the_other_checks(installation: Program) -> None:
    done = installation("doctor", "--json", "--agents", "nowhere.py")
    found = statuses(done)
    assert (done.code, found["agents"], found["database"], found["broker"]) == (2, "FAIL", "OK", "OK")
    assert [check["check"] for check in done.json["checks"]].count("agents") == 1


def test_a_key_that_the_agents_models_need_is_missed(installation: Program, tmp_path: Path) -> None:
    (tmp_path / "keyed.py").write_text("from agentq import Agent\na = Agent('a', model='openai:gpt-5.2')\n")
    out = installation("doctor", "--agents", "keyed.py").out
    assert "WARN  keys        OPENAI_API_KEY is not set here; needed by a" in out
    assert "keys" not in installation("doctor", "--agents", "keyed.py", OPENAI_API_KEY="sk-x").out


def test_workers_are_counted_and_a_silent_one_is_told(installation: Program, database: Database) -> None:
    queue = installation.settings["AGENTQ_QUEUE"]
    with database.autocommit() as connection:
        leases.seen(connection, "steps@a:1", pool="thread", queues=[queue], agents=[])
        leases.seen(connection, "tools@a:2", pool="prefork", queues=[f"{queue}.tools"], agents=[])
        connection.execute(text("UPDATE agentq.workers SET seen_at = now() - interval '30 s' WHERE id = 'tools@a:2'"))
    out = installation("doctor").out
    assert f"{queue}: 1 worker\n" in out
    assert re.search(r"WARN  queues      worker tools@a:2: last seen 3\d s ago\n", out)
    assert "steps@a:1" not in out
    assert "3 processes may open 15 of " in out


def test_where_nobody_works_the_fix_can_be_typed_as_it_stands(installation: Program, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from agentq import Agent\na = Agent('a', model='openai:gpt-5.2')\n")
    assert "fix: agentq worker --agents mine.py\n" in installation("doctor", "--agents", "mine.py").out
    del installation.settings["AGENTQ_AGENTS"]
    assert "fix: agentq worker --agents my_agents.py\n" in installation("doctor").out


def test_the_round_trip_works_on_each_broker(installation: Program, broker_url: str) -> None:
    assert statuses(installation("doctor", "--json", AGENTQ_BROKER_URL=broker_url))["broker"] == "OK"


def test_models_that_refuse_calls_are_told_with_a_hash_for_their_key(installation: Program, database: Database) -> None:
    assert "limits" not in statuses(installation("doctor", "--json"))
    with database.autocommit() as connection:
        for _ in range(2):
            refused = {"provider": "openai", "code": "provider_rate_limited", "wait_secs": 60}
            cooldowns.refused(connection, "1f2e3d4c5b6a", "gpt-5.2", **refused)
        cooldowns.take(connection, "1f2e3d4c5b6a", "gpt-5.2")
    out = installation("doctor").out
    told = (
        r"WARN  limits      openai:gpt-5.2, key 1f2e3d4c5b6a: provider_rate_limited 2 times, nobody calls it for \d+ s"
    )
    assert re.search(told + r" more, about 3 in line", out), out
