"""The tables, as SQLAlchemy sees them; migrations create them, this is what queries and checks are written against."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    SmallInteger,
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


threads = Table(
    "threads",
    metadata,
    Column("id", Text, primary_key=True),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    # The messages that were copied from another thread, in the form of the journal's.
    Column("prefix", Text),
)

# What changes with a step stands together, a tool's at the beginning and a model's at the end of that: Postgres logs a
# row from the first byte that an UPDATE changes to the last one.
runs = Table(
    "runs",
    metadata,
    # What the journal knows the run by.
    Column("number", BigInteger, Identity(always=True), nullable=False),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("id", Text, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("depth", Integer, nullable=False),
    Column("context", Text, nullable=False),
    Column("tags", JSONB, nullable=False),
    Column("idempotency_key", Text),
    Column("thread_id", Text),
    Column("thread_position", Integer),
    Column("parent_run_id", Text),
    Column("parent_turn", Integer),
    Column("parent_index", Integer),
    # When a run with ``run_secs`` must have ended; NULL once it has.
    Column("deadline_at", _TIME),
    Column("cancel_requested", Boolean, nullable=False, server_default=text("false")),
    Column("finished_at", _TIME),
    Column("stop_reason", Text),
    Column("output", Text),
    Column("error", Text),
    # The next step: where it runs, who has it.
    Column("queue", Text, nullable=False),
    Column("lease_token", Uuid),
    Column("lease_until", _TIME),
    Column("worker", Text),
    Column("sweep_at", _TIME),
    # Since when it may be claimed; of no meaning while somebody has it.
    Column("due_at", _TIME),
    # See begun_at in agentq/storage/steps.py.
    Column("claimed_at", _TIME),
    Column("status", Text, nullable=False),
    Column("progress", Text, nullable=False),
    Column("attempt", Integer, nullable=False, server_default="0"),
    # Calls with a row that have not come back.
    Column("open_calls", Integer, nullable=False, server_default="0"),
    # Of these, those that a person is asked about: where there are no others, the run waits.
    Column("asked_calls", Integer, nullable=False, server_default="0"),
    # When the sweep looks at the row, never later than lease_until and sweep_at say. See agentq/storage/steps.py.
    Column("lease_look_at", _TIME),
    Column("sweep_look_at", _TIME),
    Column("turn", Integer, nullable=False),
    Column("tool_calls", Integer, nullable=False, server_default="0"),
    Column("phase", Text, nullable=False),
    # Of the turn's only call, where the run's row is all there is of it; see Snapshot.is_single.
    Column("on_unknown", Text),
    Column("timeout_secs", Float),
    Column("seq", Integer, nullable=False),
    Column("message_count", Integer, nullable=False, server_default="0"),
    Column("event_count", Integer, nullable=False, server_default="0"),
    # The row of the journal that has the latest reply.
    Column("reply", Integer),
    Column("model_calls", Integer, nullable=False, server_default="0"),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cache_read_tokens", BigInteger),
    Column("cache_write_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    # So many of its messages are left in its thread; NULL where all are, and nobody has cut it.
    Column("kept", Integer),
    # What it was enqueued with, where that was not as usual: for when, and before which others (-1 high, 1 low).
    Column("start_at", _TIME),
    Column("priority", SmallInteger, nullable=False, server_default="0"),
    # See agentq/storage/line.py: true for a run that has one of its key's places, false for one in the line for it.
    Column("concurrency_key", Text),
    Column("concurrency_limit", Integer),
    Column("has_place", Boolean),
    # When the sweep tells the hooks of a run that has ended; NULL where they have heard, or there are none.
    Column("on_end_at", _TIME),
    # See agentq/storage/outdated.py: the version of its agent that it goes on with; since when no worker that has come
    # by goes on with that, and which version the last of these had.
    Column("agent_version", Text),
    Column("outdated_at", _TIME),
    Column("outdated_by", Text),
    # On a busy thread, see storage/threads.py: true for a run that waits for those before it, or ended while it did;
    # whether another one waits for this; how many messages were sent into it, and how many of them it has taken up.
    Column("held", Boolean),
    Column("followed", Boolean),
    Column("steered", Integer),
    Column("heard", Integer),
    # In US dollars, of its model calls and its sub-agents' whose cost is known; and whether there were others.
    Column("known_cost", Numeric),
    Column("unpriced", Boolean),
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
    Index("runs_lease_look_at", "lease_look_at", postgresql_where=text("lease_look_at IS NOT NULL")),
    Index("runs_sweep_look_at", "sweep_look_at", postgresql_where=text("sweep_look_at IS NOT NULL")),
    Index("runs_deadline_at", "deadline_at", postgresql_where=text("deadline_at IS NOT NULL")),
    Index("runs_parent", "parent_run_id", postgresql_where=text("parent_run_id IS NOT NULL")),
    Index("runs_at_work", "concurrency_key", postgresql_where=text("has_place")),
    Index("runs_in_line", "concurrency_key", "priority", "number", postgresql_where=text("NOT has_place")),
    Index("runs_outdated", "agent", "id", postgresql_where=text("outdated_at IS NOT NULL")),
    Index("runs_held", "thread_id", "thread_position", postgresql_where=text("held AND finished_at IS NULL")),
    Index("runs_tags", "tags", postgresql_using="gin", postgresql_where=text("tags <> '{}'::jsonb")),
)

# See agentq/storage/journal.py. Without a foreign key, which would lock the run's row once more for every entry: only
# statements that have the run's row write here, and a trigger deletes what a deleted run leaves.
journal = Table(
    "journal",
    metadata,
    Column("run", BigInteger, nullable=False),
    Column("at", _TIME, nullable=False, server_default=text("clock_timestamp()")),
    Column("number", Integer, nullable=False),
    Column("events", Text, nullable=False),
    Column("messages", Text),
    PrimaryKeyConstraint("run", "number"),
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
    # Who works on it, until when, how often it was begun, and when the sweep looks at it next.
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("lease_token", Uuid),
    Column("lease_until", _TIME),
    Column("claimed_at", _TIME),
    Column("worker", Text),
    Column("sweep_at", _TIME),
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
    # What the tool said when it asked by itself.
    Column("question", Text, nullable=False, server_default=""),
    # The arguments a person put in the place of the model's.
    Column("edited", Text),
    # For the tool's later calls in the run as well.
    Column("sticky", Boolean, nullable=False, server_default=text("false")),
    Column("expires_at", _TIME),
    Column("on_expiry", Text, nullable=False, server_default="report"),
    PrimaryKeyConstraint("run_id", "turn", "index", "number"),
    ForeignKeyConstraint(["run_id"], [f"{SCHEMA}.runs.id"], ondelete="CASCADE"),
    Index("approvals_pending", "requested_at", postgresql_where=text("status = 'pending'")),
    Index(
        "approvals_expires_at",
        "expires_at",
        postgresql_where=text("status = 'pending' AND expires_at IS NOT NULL"),
    ),
)

# Messages that were sent into a run at work; the text is gone from here once it is among the run's messages.
inbox = Table(
    "inbox",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("idempotency_key", Text),
    Column("message", Text),
    PrimaryKeyConstraint("run_id", "number"),
    ForeignKeyConstraint(["run_id"], [f"{SCHEMA}.runs.id"], ondelete="CASCADE"),
    Index("inbox_key", "idempotency_key", postgresql_where=text("idempotency_key IS NOT NULL")),
)

# See agentq/storage/blobs.py.
blobs = Table(
    "blobs",
    metadata,
    Column("sha256", Text, primary_key=True),
    Column("media_type", Text, nullable=False),
    Column("size", Integer, nullable=False),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("data", LargeBinary, nullable=False),
)

# Of a thread are those in its prefix.
blob_refs = Table(
    "blob_refs",
    metadata,
    Column("sha256", Text, nullable=False),
    Column("run_id", Text),
    Column("thread_id", Text),
    ForeignKeyConstraint(["sha256"], [f"{SCHEMA}.blobs.sha256"]),
    ForeignKeyConstraint(["run_id"], [f"{SCHEMA}.runs.id"], ondelete="CASCADE"),
    ForeignKeyConstraint(["thread_id"], [f"{SCHEMA}.threads.id"], ondelete="CASCADE"),
    Index("blob_refs_of_blob", "sha256", "run_id", "thread_id", unique=True, postgresql_nulls_not_distinct=True),
    Index("blob_refs_of_run", "run_id", postgresql_where=text("run_id IS NOT NULL")),
    Index("blob_refs_of_thread", "thread_id", postgresql_where=text("thread_id IS NOT NULL")),
)

# See agentq/storage/cooldowns.py. An account is a hash of provider, address and key, never the key.
cooldowns = Table(
    "cooldowns",
    metadata,
    Column("account", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("provider", Text, nullable=False),
    # Of the last refusal; which cool-down it is, since when there were any, and until when nobody calls.
    Column("code", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("since", _TIME, nullable=False),
    Column("until", _TIME, nullable=False),
    # When it is as if there had been none.
    Column("expires_at", _TIME, nullable=False),
    # So many calls a second are let go then, twice as many each time so many seconds have passed.
    Column("pace", Float, nullable=False),
    Column("doubling_secs", Float, nullable=False),
    # How many cool-downs before this one ended in a refusal at once; places given in this one; refusals in all.
    Column("streak", Integer, nullable=False),
    Column("taken", Float, nullable=False),
    Column("refused", Integer, nullable=False),
    PrimaryKeyConstraint("account", "model"),
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
    # Of its agents, by name.
    Column("versions", JSONB, nullable=False, server_default=text("'{}'")),
)

# Every agent a worker ever had: producers that do not import the agents check names against it.
agents = Table(
    "agents",
    metadata,
    Column("name", Text, primary_key=True),
    Column("seen_at", _TIME, nullable=False, server_default=_NOW),
    Column("hears_ends", Boolean, nullable=False, server_default=text("false")),
)
