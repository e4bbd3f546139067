"""Settings: ``AGENTQ_*`` variables, checked early, with the embedded services where nothing is configured."""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentq.errors import ConfigError

PREFIX = "AGENTQ_"
# What tests and the demo tell each other.
_NO_SETTINGS = ("AGENTQ_TEST_", "AGENTQ_DEMO_")
BROKERS = ("redis", "rediss", "sentinel", "amqp", "amqps", "pyamqp", "agentq+file")


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")


class Settings(BaseModel):
    """Everything that can be set, one field a variable: ``lease_secs`` is ``AGENTQ_LEASE_SECS``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database_url: str | None = Field(default=None, description="Postgres, as postgresql://…; embedded when not set")
    broker_url: str | None = Field(default=None, description="redis://…, amqp://…; embedded when not set")
    agents: str = Field(default="", description="where agents are: module, module:name or file.py, comma-separated")
    home: Path = Field(default=Path(".agentq"), description="folder of the embedded Postgres and broker")
    queue: str = Field(default="agentq", description="prefix of the queues: NAME for steps, NAME.tools for tools")
    lease_secs: float = Field(default=15.0, ge=1.0, le=30.0, description="until a dead worker's step is taken over")
    stop_secs: float = Field(default=25.0, ge=0.0, description="that a stopping worker's work in hand may still take")
    db_pool_size: int = Field(default=5, ge=1, description="Postgres connections a process keeps at most")
    local_steps: int = Field(
        default=64, ge=0, description="steps that may follow one in its process, without a message"
    )
    concurrency: int = Field(default=16, ge=1, description="steps at once in a worker (threads)")
    tool_concurrency: int = Field(default=4, ge=1, description="tool calls at once in a worker (processes)")
    keep_days: float | None = Field(
        default=None,
        gt=0,
        lt=36_500,
        description="after which workers delete ended runs and idle threads; never when not set",
    )
    prices: Path | None = Field(
        default=None, description="file with what models cost, TOML or JSON, beside the table of the release"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="of agentq worker")

    @field_validator("broker_url")
    @classmethod
    def _broker(cls, value: str | None) -> str | None:
        # Several brokers of one cluster are separated by ";".
        for url in (value or "").split(";"):
            scheme, separator, _ = url.strip().partition("://")
            if value is not None and not (separator and scheme in BROKERS):
                # What is no scheme may be a password.
                shown = f", not {scheme}://" if separator and _SCHEME.fullmatch(scheme) else ""
                raise ValueError(f"must be redis://, rediss:// or amqp://…{shown}")
        return value

    @field_validator("queue")
    @classmethod
    def _queue_name(cls, value: str) -> str:
        if not value.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise ValueError("use letters, digits, '.', '-' and '_'")
        return value

    @field_validator("log_level", mode="before")
    @classmethod
    def _any_case(cls, value: Any) -> Any:
        return value.strip().upper() if isinstance(value, str) else value

    @property
    def is_embedded(self) -> bool:
        """Whether this process needs the embedded Postgres or broker."""
        return self.database_url is None or self.broker_url is None

    def environment(self) -> dict[str, str]:
        """The variables that give another process the same settings."""
        return {variable(name): str(value) for name, value in self if value is not None}


def variable(field: str) -> str:
    return PREFIX + field.upper()


def load(environment: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Settings from the environment; ``overrides`` that are not None win. Raises ConfigError naming the variable."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for name in Settings.model_fields:
        if text := environment.get(variable(name), "").strip():
            values[name] = text
    values |= {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_first_problem(error)) from error


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    name = variable(str(first["loc"][0]))
    problem = first["msg"].removeprefix("Value error, ")
    if not name.endswith("_URL"):
        return f"{name}={first['input']!r}: {problem[0].lower()}{problem[1:]}"
    # A URL may hold a password.
    return f"{name} {problem}" if problem.startswith("must ") else f"{name}: {problem}"


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """One line for each ``AGENTQ_`` variable that means nothing, with the nearest one that does."""
    environment = os.environ if environment is None else environment
    known = {variable(name): name.upper() for name in Settings.model_fields}
    lines = []
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known and not name.startswith(_NO_SETTINGS):
            near = difflib.get_close_matches(name.removeprefix(PREFIX), known.values(), n=1)
            lines.append(f"{name} is not a setting" + (f"; did you mean {PREFIX}{near[0]}?" if near else ""))
    return lines
