"""The tables, as SQLAlchemy sees them; migrations create them, this is what queries and checks are written against."""

from sqlalchemy import (
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

SCHEMA = "agentq"
metadata = MetaData(schema=SCHEMA)
_TIME = DateTime(timezone=True)
_NOW = text("now()")


def _lease() -> list[Column[object]]:
    """Who works on the row, until when, how often it was begun, and when the sweep looks at it next."""
    return [
        Column("attempt", Integer, nullable=False, server_default="0"),
        Column("lease_token", Uuid),
        Column("lease_until", _TIME),
        Column("claimed_at", _TIME),
        Column("worker", Text),
        Column("sweep_at", _TIME),
    ]


threads = Table(
    "threads",
    metadata,
    Column("id", Text, primary_key=True),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("depth", Integer, nullable=False),
    Column("progress", Text, nullable=False),
    Column("context", Text, nullable=False),
    Column("tags", JSONB, nullable=False),
    Column("idempotency_key", Text),
    Column("thread_id", Text),
    Column("thread_position", Integer),
    Column("parent_run_id", Text),
    Column("parent_turn", Integer),
    Column("parent_index", Integer),
    Column("message_count", Integer, nullable=False, server_default="0"),
    Column("event_count", Integer, nullable=False, server_default="0"),
    Column("open_calls", Integer, nullable=False, server_default="0"),
    # Of these, those that a person is asked about: where there are no others, the run waits.
    Column("asked_calls", Integer, nullable=False, server_default="0"),
    Column("queue", Text, nullable=False),
    Column("timeout_secs", Float),
    Column("due_at", _TIME),
    *_lease(),
    # When a run with ``run_secs`` must have ended; NULL once it has.
    Column("deadline_at", _TIME),
    Column("cancel_requested", Boolean, nullable=False, server_default=text("false")),
    Column("stop_reason", Text),
    Column("output", Text),
    Column("error", Text),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("updated_at", _TIME, nullable=False, server_default=_NOW),
    Column("finished_at", _TIME),
    ForeignKeyConstraint(["thread_id"], [f"{SCHEMA}.threads.id"]),
    Index(
        "runs_of_key",
        "agent",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
    Index(
        "runs_of_thread",
        "thread_id",
        "thread_position",
        unique=True,
        postgresql_where=text("thread_id IS NOT NULL"),
    ),
    Index("runs_lease_until", "lease_until", postgresql_where=text("lease_until IS NOT NULL")),
    Index("runs_sweep_at", "sweep_at", postgresql_where=text("sweep_at IS NOT NULL")),
    Index("runs_deadline_at", "deadline_at", postgresql_where=text("deadline_at IS NOT NULL")),
    Index("runs_created_at", "created_at"),
    Index("runs_parent", "parent_run_id", postgresql_where=text("parent_run_id IS NOT NULL")),
    Index("runs_tags", "tags", postgresql_using="gin", postgresql_where=text("tags <> '{}'::jsonb")),
)

messages = Table(
    "messages",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("payload", Text, nullable=False),
    Column("at", _TIME, nullable=False, server_default=_NOW),
    PrimaryKeyConstraint("run_id", "position"),
    ForeignKeyConstraint(["run_id"], [f"{SCHEMA}.runs.id"], ondelete="CASCADE"),
)

tool_calls = Table(
    "tool_calls",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("index", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("call_id", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("timeout_secs", Float, nullable=False),
    Column("on_unknown", Text, nullable=False),
    Column("needs_approval", Boolean, nullable=False),
    Column("status", Text, nullable=False),
    Column("code", Text),
    Column("child_run_id", Text),
    *_lease(),
    Column("announced_at", _TIME),
    Column("finished_at", _TIME),
    PrimaryKeyConstraint("run_id", "turn", "index"),
    ForeignKeyConstraint(["run_id"], [f"{SCHEMA}.runs.id"], ondelete="CASCADE"),
    Index("tool_calls_lease_until", "lease_until", postgresql_where=text("lease_until IS NOT NULL")),
    Index("tool_calls_sweep_at", "sweep_at", postgresql_where=text("sweep_at IS NOT NULL")),
)

approvals = Table(
    "approvals",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("index", Integer, nullable=False),
    Column("number", Integer, nullable=False, server_default="0"),
    Column("kind", Text, nullable=False, server_default="approval"),
    Column("call_id", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("arguments_sha256", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("requested_at", _TIME, nullable=False, server_default=_NOW),
    Column("decided_at", _TIME),
    Column("decided_by", Text),
    Column("reason", Text),
    PrimaryKeyConstraint("run_id", "turn", "index", "number"),
    ForeignKeyConstraint(["run_id"], [f"{SCHEMA}.runs.id"], ondelete="CASCADE"),
    Index("approvals_pending", "requested_at", postgresql_where=text("status = 'pending'")),
)

events = Table(
    "events",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("type", Text, nullable=False),
    Column("data", Text, nullable=False),
    Column("at", _TIME, nullable=False, server_default=text("clock_timestamp()")),
    PrimaryKeyConstraint("run_id", "number"),
    ForeignKeyConstraint(["run_id"], [f"{SCHEMA}.runs.id"], ondelete="CASCADE"),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("queues", JSONB, nullable=False),
    Column("agents", JSONB, nullable=False),
    Column("started_at", _TIME, nullable=False, server_default=_NOW),
    Column("seen_at", _TIME, nullable=False, server_default=_NOW),
)

# Every agent a worker ever had: producers that do not import the agents check names against it.
agents = Table(
    "agents",
    metadata,
    Column("name", Text, primary_key=True),
    Column("seen_at", _TIME, nullable=False, server_default=_NOW),
)
