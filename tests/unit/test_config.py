"""Settings come from AGENTQ_* variables, are checked at once, and name the variable that is wrong."""

from pathlib import Path

import pytest

from agentq.config import Settings, load, unknown_variables, variable
from agentq.errors import ConfigError


def test_without_variables_everything_is_embedded() -> None:
    settings = load({})
    assert settings == Settings()
    assert settings.is_embedded
    assert settings.home == Path(".agentq")


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("AGENTQ_LEASE_SECS", "5", "lease_secs", 5.0),
        ("AGENTQ_LEASE_SECS", " 5 ", "lease_secs", 5.0),
        ("AGENTQ_CONCURRENCY", "3", "concurrency", 3),
        ("AGENTQ_HOME", "/data", "home", Path("/data")),
        ("AGENTQ_QUEUE", "team.agents-1", "queue", "team.agents-1"),
        ("AGENTQ_LOG_LEVEL", "debug", "log_level", "DEBUG"),
        ("AGENTQ_DATABASE_URL", "", "database_url", None),
        ("AGENTQ_BROKER_URL", "  ", "broker_url", None),
    ],
)
def test_each_field_has_its_variable(name: str, text: str, field: str, value: object) -> None:
    assert getattr(load({name: text}), field) == value


def test_given_values_win_and_none_is_not_given() -> None:
    settings = load({"AGENTQ_QUEUE": "a", "AGENTQ_CONCURRENCY": "2"}, queue="b", concurrency=None)
    assert (settings.queue, settings.concurrency) == ("b", 2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("AGENTQ_LEASE_SECS", "0.5"),
        ("AGENTQ_LEASE_SECS", "nan"),
        ("AGENTQ_LEASE_SECS", "inf"),
        ("AGENTQ_LEASE_SECS", "soon"),
        ("AGENTQ_CONCURRENCY", "0"),
        ("AGENTQ_CONCURRENCY", "2.5"),
        ("AGENTQ_DB_POOL_SIZE", "-1"),
        ("AGENTQ_QUEUE", "a b"),
        ("AGENTQ_QUEUE", "---"),
        ("AGENTQ_LOG_LEVEL", "LOUD"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_variable_and_the_value(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as made:
        load({name: text})
    line = str(made.value)
    assert line.startswith(f"{name}={text!r}: ")
    assert "\n" not in line


def test_a_wrong_url_is_not_repeated_for_it_may_hold_a_password() -> None:
    with pytest.raises(ConfigError) as made:
        load({}, database_url=b"postgresql://u:hunter2@h/\xff")
    assert str(made.value).startswith("AGENTQ_DATABASE_URL: ")
    assert "hunter2" not in str(made.value)


@pytest.mark.parametrize(
    "url", ["redis://h/0", "rediss://h", "amqp://u:p@h//", "pyamqp://h;amqps://h", "agentq+file:///x"]
)
def test_a_broker_that_is_served_is_taken(url: str) -> None:
    assert load({}, broker_url=url).broker_url == url


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("kafka://u:hunter2@h", "redis://, rediss:// or amqp://…, not kafka://"),
        ("redis://h;sqs://hunter2", "redis://, rediss:// or amqp://…, not sqs://"),
        ("hunter2", "redis://, rediss:// or amqp://…"),
        ("u:hunter2@h://x", "redis://, rediss:// or amqp://…"),
    ],
)
def test_another_broker_is_refused_in_one_line_without_its_password(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as made:
        load({"AGENTQ_BROKER_URL": url})
    assert str(made.value) == f"AGENTQ_BROKER_URL must be {says}"


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="AGENTQ_COLOUR"):
        load({}, colour="red")


def test_another_process_gets_the_same_settings() -> None:
    settings = load({}, database_url="postgresql://h/d", queue="q", lease_secs=3.0, home="/data")
    assert load(settings.environment()) == settings
    assert variable("broker_url") not in settings.environment()


def test_a_misspelt_variable_is_told_with_the_nearest_one() -> None:
    environment = {"AGENTQ_DATBASE_URL": "x", "AGENTQ_ZZZ": "x", "AGENTQ_QUEUE": "q", "AGENTQ_TEST_X": "x", "PATH": "x"}
    assert unknown_variables(environment) == [
        "AGENTQ_DATBASE_URL is not a setting; did you mean AGENTQ_DATABASE_URL?",
        "AGENTQ_ZZZ is not a setting",
    ]
