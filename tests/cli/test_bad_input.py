"""Whatever is wrong, one clear line says what to do, with the right exit code, and nothing is half written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentq.storage import migrate, queries
from agentq.storage.database import Database
from tests.cli.program import Program, one_line
from tests.services import Services

NOWHERE = "postgresql://postgres:secret@127.0.0.1:1/agentq"
NO_REDIS = "redis://:secret@127.0.0.1:1/0"


def test_a_database_that_is_read_only_as_in_a_failover_is_code_3(installation: Program, service_urls: Services) -> None:
    if service_urls.pooled:
        pytest.skip("PgBouncer takes no options of a session")
    url = installation.settings["AGENTQ_DATABASE_URL"]
    read_only = f"{url}{'&' if '?' in url else '?'}options=-cdefault_transaction_read_only%3Don"
    assert "read-only" in one_line(installation("run", "plain", "hi", AGENTQ_DATABASE_URL=read_only), 3)


def test_an_unknown_agent_is_answered_with_the_nearest_one(installation: Program) -> None:
    line = one_line(installation("run", "plan", "hello"), 2)
    assert "no agent 'plan'" in line
    assert "did you mean 'plain'" in line


@pytest.mark.parametrize("words", [("run", "plain", "hi"), ("worker",), ("db", "upgrade")])
def test_a_database_that_is_away_is_code_3_without_the_password(installation: Program, words: tuple[str, ...]) -> None:
    line = one_line(installation(*words, AGENTQ_DATABASE_URL=NOWHERE), 3)
    assert "127.0.0.1:1" in line
    assert "AGENTQ_DATABASE_URL" in line
    assert "secret" not in line


@pytest.mark.parametrize("url", ["mysql://root@127.0.0.1/x", "not a url"])
def test_a_database_url_of_something_else_is_code_2(installation: Program, url: str) -> None:
    assert "AGENTQ_DATABASE_URL" in one_line(installation("runs", "ls", AGENTQ_DATABASE_URL=url), 2)


@pytest.mark.parametrize("words", [("run", "plain", "hi"), ("worker",), ("db", "check")])
def test_a_database_without_the_schema_names_the_command(
    installation: Program, new_database_url: Callable[[], str], words: tuple[str, ...]
) -> None:
    assert "agentq db upgrade" in one_line(installation(*words, AGENTQ_DATABASE_URL=new_database_url()), 2)


@pytest.mark.parametrize("words", [("run", "plain", "hi", "--agents", "{agents}"), ("worker",)])
def test_a_broker_that_is_away_is_code_3_and_no_run_is_written(
    installation: Program, database: Database, words: tuple[str, ...]
) -> None:
    words = tuple(word.format(agents=installation.settings["AGENTQ_AGENTS"]) for word in words)
    line = one_line(installation(*words, AGENTQ_BROKER_URL=NO_REDIS), 3)
    assert "AGENTQ_BROKER_URL" in line
    assert "secret" not in line
    with database.autocommit() as connection:
        assert queries.runs(connection) == []


@pytest.mark.parametrize("words", [("run", "plain", "hi"), ("worker",)])
def test_a_broker_nobody_knows_is_code_2(installation: Program, words: tuple[str, ...]) -> None:
    line = one_line(installation(*words, AGENTQ_BROKER_URL="carrier-pigeon://u:secret@roof"), 2)
    assert line == "AGENTQ_BROKER_URL must be redis://, rediss:// or amqp://…, not carrier-pigeon://"


MODULES: dict[str, tuple[str, str]] = {
    "bad tool name": ("agentq.tool(name='not a name')(print)", "not a name"),
    "bad default": ("@agentq.tool\ndef fetch(x: int = object()) -> str:\n    return ''", "fetch"),
    "syntax": ("def (", "SyntaxError"),
    "missing import": ("import no_such_module_at_all", "no_such_module_at_all"),
    "raises": ("raise RuntimeError('boom\\nsecond line')", "boom"),
    "no agent": ("x = 1", "no Agent"),
    "same name twice": (
        "a = agentq.Agent('a', model='openai:x')\nb = agentq.Agent('a', model='openai:x')",
        "two agents",
    ),
    "bad model": ("a = agentq.Agent('a', model='opnai:x')", "did you mean 'openai:x'"),
}


@pytest.mark.parametrize(("source", "word"), MODULES.values(), ids=MODULES)
def test_a_module_that_is_wrong_is_code_2_and_says_where(
    installation: Program, tmp_path: Path, source: str, word: str
) -> None:
    (tmp_path / "mine.py").write_text(f"import agentq\n{source}\n")
    assert word in one_line(installation("worker", "--agents", "mine.py"), 2)


def test_a_producer_refuses_a_wrong_module_too(installation: Program, database: Database, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"import agentq\n{MODULES['bad tool name'][0]}\n")
    assert "not a name" in one_line(installation("run", "plain", "hi", "--agents", "mine.py"), 2)
    with database.autocommit() as connection:
        assert queries.runs(connection) == []


@pytest.mark.parametrize("place", ["nowhere.py", "no_such_module", "json:dumps", "json"])
def test_a_place_without_agents_is_code_2_and_is_named(installation: Program, place: str) -> None:
    assert place.partition(":")[0] in one_line(installation("worker", "--agents", place), 2)


def test_a_worker_without_agents_is_code_2_and_says_how_to_name_them(installation: Program) -> None:
    del installation.settings["AGENTQ_AGENTS"]
    assert "--agents" in one_line(installation("worker"), 2)


def test_a_wait_that_ends_before_a_worker_is_there_says_so(installation: Program) -> None:
    done = installation("run", "plain", "hi", "--timeout", "0.1")
    assert done.code == 124
    assert "no worker is running; start one with: agentq worker --agents my_agents.py" in done.err


@pytest.mark.parametrize(
    ("name", "value"),
    [("AGENTQ_LEASE_SECS", "0"), ("AGENTQ_LEASE_SECS", "soon"), ("AGENTQ_QUEUE", "a b"), ("AGENTQ_LOG_LEVEL", "LOUD")],
)
def test_an_impossible_setting_is_code_2_and_is_named(installation: Program, name: str, value: str) -> None:
    assert name in one_line(installation("runs", "ls", **{name: value}), 2)


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "show", "run_nope"),
        ("runs", "cancel", "run_nope"),
        ("runs", "ls", "--before", "run_nope"),
        ("approvals", "approve", "run_nope", "call_1"),
        ("approvals", "show", "run_nope", "call_1"),
        ("approvals", "ls", "--run", "run_nope"),
        ("approvals", "ls", "--after", "run_nope:1:0:0"),
        ("approvals", "reject", "run_nope", "call_1", "--reason", "no"),
    ],
)
def test_a_run_that_does_not_exist_is_code_5(installation: Program, words: tuple[str, ...]) -> None:
    assert "run_nope" in one_line(installation(*words), 5)


USAGE: list[tuple[Any, ...]] = [
    ("rnus",),
    ("run",),
    ("run", "plain", "hi", "--context", "[1]"),
    ("run", "plain", "hi", "--context", "{"),
    ("run", "plain", "hi", "--tag", "customer"),
    ("runs", "ls", "--status", "done"),
    ("worker", "--only", "steps", "--queues", "gpu"),
    ("approvals", "reject", "run_1", "call_1"),
    ("approvals", "approve", "run_1", "call_1", "--arguments", '{"amount": NaN}'),
    ("approvals", "approve", "run_1", "call_1", "--arguments", '{"amount": 1e999}'),
]


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_wrong_usage_is_code_2(installation: Program, words: tuple[str, ...]) -> None:
    done = installation(*words)
    assert done.code == 2
    assert "Error:" in done.err


def test_a_mistyped_command_is_answered_with_the_nearest_one(program: Program) -> None:
    assert "Did you mean 'runs'?" in program("rnus").err


def test_a_message_of_spaces_is_code_2(installation: Program) -> None:
    assert "not empty" in one_line(installation("run", "plain", "  "), 2)


def test_a_revision_that_does_not_exist_is_code_2(program: Program) -> None:
    assert migrate.head() in one_line(program("db", "sql", "nope"), 2)


@pytest.mark.parametrize(
    "words", [("run", "plan", "hi"), ("worker", "--agents", "nowhere.py"), ("demo", "--model", "x")]
)
def test_a_misspelt_variable_is_told_where_it_would_matter(installation: Program, words: tuple[str, ...]) -> None:
    done = installation(*words, AGENTQ_LEASE_SEC="3")
    assert done.code == 2
    first, second = done.err.splitlines()
    assert first == "agentq: AGENTQ_LEASE_SEC is not a setting; did you mean AGENTQ_LEASE_SECS?"
    assert "LEASE" not in second


@pytest.mark.parametrize("words", [("runs", "ls"), ("runs", "show", "run_1"), ("approvals", "ls")])
def test_to_look_at_nothing_makes_no_database(program: Program, words: tuple[str, ...]) -> None:
    assert one_line(program(*words), 2) == (
        "there is no embedded database in ./.agentq yet; start one with agentq worker --agents my_agents.py, "
        "or set AGENTQ_DATABASE_URL"
    )
    assert list(program.folder.iterdir()) == []
