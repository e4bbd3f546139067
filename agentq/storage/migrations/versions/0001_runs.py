"""Runs, their transcript, tool calls, approvals, events; threads and workers."""

from alembic import op

revision = "0001"
down_revision = None

STATEMENTS = (
    """
    CREATE TABLE agentq.agents (
        name TEXT NOT NULL,
        seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        PRIMARY KEY (name)
    )
    """,
    """
    CREATE TABLE agentq.threads (
        id TEXT NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        PRIMARY KEY (id)
    )
    """,
    """
    CREATE TABLE agentq.workers (
        id TEXT NOT NULL,
        pool TEXT NOT NULL,
        queues JSONB NOT NULL,
        agents JSONB NOT NULL,
        started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        PRIMARY KEY (id)
    )
    """,
    """
    CREATE TABLE agentq.runs (
        id TEXT NOT NULL,
        agent TEXT NOT NULL,
        status TEXT NOT NULL,
        phase TEXT NOT NULL,
        seq INTEGER NOT NULL,
        turn INTEGER NOT NULL,
        depth INTEGER NOT NULL,
        progress TEXT NOT NULL,
        context TEXT NOT NULL,
        tags JSONB NOT NULL,
        idempotency_key TEXT,
        thread_id TEXT,
        thread_position INTEGER,
        parent_run_id TEXT,
        parent_turn INTEGER,
        parent_index INTEGER,
        message_count INTEGER DEFAULT '0' NOT NULL,
        event_count INTEGER DEFAULT '0' NOT NULL,
        open_calls INTEGER DEFAULT '0' NOT NULL,
        queue TEXT NOT NULL,
        timeout_secs FLOAT,
        due_at TIMESTAMP WITH TIME ZONE,
        attempt INTEGER DEFAULT '0' NOT NULL,
        lease_token UUID,
        lease_until TIMESTAMP WITH TIME ZONE,
        claimed_at TIMESTAMP WITH TIME ZONE,
        worker TEXT,
        sweep_at TIMESTAMP WITH TIME ZONE,
        cancel_requested BOOLEAN DEFAULT false NOT NULL,
        stop_reason TEXT,
        output TEXT,
        error TEXT,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        finished_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (id),
        FOREIGN KEY(thread_id) REFERENCES agentq.threads (id),
        CONSTRAINT runs_idempotency_key UNIQUE (agent, idempotency_key),
        CONSTRAINT runs_thread_position UNIQUE (thread_id, thread_position)
    )
    """,
    """
    CREATE INDEX runs_created_at ON agentq.runs (created_at)
    """,
    """
    CREATE INDEX runs_lease_until ON agentq.runs (lease_until) WHERE lease_until IS NOT NULL
    """,
    """
    CREATE INDEX runs_parent ON agentq.runs (parent_run_id) WHERE parent_run_id IS NOT NULL
    """,
    """
    CREATE INDEX runs_sweep_at ON agentq.runs (sweep_at) WHERE sweep_at IS NOT NULL
    """,
    """
    CREATE INDEX runs_tags ON agentq.runs USING gin (tags)
    """,
    """
    CREATE TABLE agentq.approvals (
        run_id TEXT NOT NULL,
        turn INTEGER NOT NULL,
        index INTEGER NOT NULL,
        call_id TEXT NOT NULL,
        tool TEXT NOT NULL,
        arguments TEXT NOT NULL,
        arguments_sha256 TEXT NOT NULL,
        status TEXT NOT NULL,
        requested_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        decided_at TIMESTAMP WITH TIME ZONE,
        decided_by TEXT,
        reason TEXT,
        PRIMARY KEY (run_id, turn, index),
        FOREIGN KEY(run_id) REFERENCES agentq.runs (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE INDEX approvals_pending ON agentq.approvals (requested_at) WHERE status = 'pending'
    """,
    """
    CREATE TABLE agentq.events (
        run_id TEXT NOT NULL,
        number INTEGER NOT NULL,
        type TEXT NOT NULL,
        data TEXT NOT NULL,
        at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        PRIMARY KEY (run_id, number),
        FOREIGN KEY(run_id) REFERENCES agentq.runs (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE agentq.messages (
        run_id TEXT NOT NULL,
        position INTEGER NOT NULL,
        payload TEXT NOT NULL,
        at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        PRIMARY KEY (run_id, position),
        FOREIGN KEY(run_id) REFERENCES agentq.runs (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE agentq.tool_calls (
        run_id TEXT NOT NULL,
        turn INTEGER NOT NULL,
        index INTEGER NOT NULL,
        position INTEGER NOT NULL,
        call_id TEXT NOT NULL,
        tool TEXT NOT NULL,
        kind TEXT NOT NULL,
        queue TEXT NOT NULL,
        timeout_secs FLOAT NOT NULL,
        idempotent BOOLEAN NOT NULL,
        needs_approval BOOLEAN NOT NULL,
        status TEXT NOT NULL,
        code TEXT,
        child_run_id TEXT,
        attempt INTEGER DEFAULT '0' NOT NULL,
        lease_token UUID,
        lease_until TIMESTAMP WITH TIME ZONE,
        claimed_at TIMESTAMP WITH TIME ZONE,
        worker TEXT,
        sweep_at TIMESTAMP WITH TIME ZONE,
        announced_at TIMESTAMP WITH TIME ZONE,
        finished_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (run_id, turn, index),
        FOREIGN KEY(run_id) REFERENCES agentq.runs (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE INDEX tool_calls_lease_until ON agentq.tool_calls (lease_until) WHERE lease_until IS NOT NULL
    """,
    """
    CREATE INDEX tool_calls_sweep_at ON agentq.tool_calls (sweep_at) WHERE sweep_at IS NOT NULL
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
