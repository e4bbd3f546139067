"""Fewer bytes of WAL: columns in the order in which steps change them, one index less, a short form of events."""

from alembic import op

revision = "0006"
down_revision = "0005"

_KEPT = """number, created_at, id, agent, depth, context, tags, idempotency_key, thread_id, thread_position,
    parent_run_id, parent_turn, parent_index, deadline_at, cancel_requested, finished_at, stop_reason,
    output, error, queue, lease_token, lease_until, worker, sweep_at, due_at, claimed_at, status, progress, attempt,
    turn, tool_calls, phase, on_unknown, timeout_secs, seq, message_count, event_count, reply,
    model_calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens,
    open_calls, asked_calls, lease_look_at, sweep_look_at"""

STATEMENTS = (
    # Those of other tables and the views are made again below.
    "CREATE TABLE agentq.runs_0005 AS SELECT * FROM agentq.runs",
    "DROP TABLE agentq.runs CASCADE",
    # Without updated_at: a run was changed when its journal was.
    """
    CREATE TABLE agentq.runs (
        number BIGINT GENERATED ALWAYS AS IDENTITY NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        id TEXT NOT NULL,
        agent TEXT NOT NULL,
        depth INTEGER NOT NULL,
        context TEXT NOT NULL,
        tags JSONB NOT NULL,
        idempotency_key TEXT,
        thread_id TEXT,
        thread_position INTEGER,
        parent_run_id TEXT,
        parent_turn INTEGER,
        parent_index INTEGER,
        deadline_at TIMESTAMP WITH TIME ZONE,
        cancel_requested BOOLEAN DEFAULT false NOT NULL,
        finished_at TIMESTAMP WITH TIME ZONE,
        stop_reason TEXT,
        output TEXT,
        error TEXT,
        queue TEXT NOT NULL,
        lease_token UUID,
        lease_until TIMESTAMP WITH TIME ZONE,
        worker TEXT,
        sweep_at TIMESTAMP WITH TIME ZONE,
        due_at TIMESTAMP WITH TIME ZONE,
        claimed_at TIMESTAMP WITH TIME ZONE,
        status TEXT NOT NULL,
        progress TEXT NOT NULL,
        attempt INTEGER DEFAULT '0' NOT NULL,
        turn INTEGER NOT NULL,
        tool_calls INTEGER DEFAULT '0' NOT NULL,
        phase TEXT NOT NULL,
        on_unknown TEXT,
        timeout_secs FLOAT,
        seq INTEGER NOT NULL,
        message_count INTEGER DEFAULT '0' NOT NULL,
        event_count INTEGER DEFAULT '0' NOT NULL,
        reply INTEGER,
        model_calls INTEGER DEFAULT '0' NOT NULL,
        input_tokens BIGINT,
        output_tokens BIGINT,
        cache_read_tokens BIGINT,
        cache_write_tokens BIGINT,
        reasoning_tokens BIGINT,
        open_calls INTEGER DEFAULT '0' NOT NULL,
        asked_calls INTEGER DEFAULT '0' NOT NULL,
        lease_look_at TIMESTAMP WITH TIME ZONE,
        sweep_look_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (id),
        FOREIGN KEY(thread_id) REFERENCES agentq.threads (id)
    ) WITH (fillfactor = 70)
    """,
    f"INSERT INTO agentq.runs ({_KEPT}) OVERRIDING SYSTEM VALUE SELECT {_KEPT} FROM agentq.runs_0005",
    """
    SELECT setval(pg_get_serial_sequence('agentq.runs', 'number'), coalesce(max(number), 0) + 1, false)
    FROM agentq.runs
    """,
    "DROP TABLE agentq.runs_0005",
    "CREATE INDEX runs_lease_look_at ON agentq.runs (lease_look_at) WHERE lease_look_at IS NOT NULL",
    "CREATE INDEX runs_sweep_look_at ON agentq.runs (sweep_look_at) WHERE sweep_look_at IS NOT NULL",
    "CREATE INDEX runs_deadline_at ON agentq.runs (deadline_at) WHERE deadline_at IS NOT NULL",
    "CREATE INDEX runs_parent ON agentq.runs (parent_run_id) WHERE parent_run_id IS NOT NULL",
    "CREATE INDEX runs_tags ON agentq.runs USING gin (tags) WHERE tags <> '{}'::jsonb",
    "CREATE UNIQUE INDEX runs_of_key ON agentq.runs (agent, idempotency_key) WHERE idempotency_key IS NOT NULL",
    "CREATE UNIQUE INDEX runs_of_thread ON agentq.runs (thread_id, thread_position) WHERE thread_id IS NOT NULL",
    "ALTER TABLE agentq.tool_calls ADD FOREIGN KEY(run_id) REFERENCES agentq.runs (id) ON DELETE CASCADE",
    "ALTER TABLE agentq.approvals ADD FOREIGN KEY(run_id) REFERENCES agentq.runs (id) ON DELETE CASCADE",
    """
    CREATE VIEW agentq.messages AS
    SELECT r.id AS run_id, CAST(m ->> 0 AS integer) AS position, CAST(m -> 1 AS text) AS payload, j.at
    FROM agentq.journal j JOIN agentq.runs r ON r.number = j.run
        CROSS JOIN json_array_elements(CAST(j.messages AS json)) m
    """,
    # The short form of a step's event: see agentq/storage/journal.py.
    """
    CREATE FUNCTION agentq.long_form(event json) RETURNS json LANGUAGE sql IMMUTABLE AS $$
        SELECT CASE WHEN json_typeof(event -> 0) <> 'number' THEN event
            WHEN event -> 2 IS NULL THEN json_build_array('step',
                json_build_object('seq', event -> 0, 'ms', event -> 1), 0)
            ELSE json_build_array('step', json_build_object(
                'seq', event -> 0, 'input_tokens', event -> 2, 'output_tokens', event -> 3, 'ms', event -> 1), 0) END
    $$
    """,
    """
    CREATE OR REPLACE FUNCTION agentq.events_of(entry agentq.journal)
    RETURNS TABLE (number integer, type text, data text) LANGUAGE sql STABLE AS $$
        SELECT CAST(entry.number - json_array_length(CAST(entry.events AS json)) + e.n AS integer), event ->> 0,
            CASE WHEN event -> 2 IS NULL THEN CAST(event -> 1 AS text)
            ELSE CAST(agentq.facts(event ->> 0, CAST(entry.messages AS json) -> CAST(event ->> 2 AS integer) -> 1)
                      || CAST(event -> 1 AS jsonb) AS text) END
        FROM json_array_elements(CAST(entry.events AS json)) WITH ORDINALITY e (given, n)
            CROSS JOIN agentq.long_form(e.given) event
    $$
    """,
    """
    CREATE VIEW agentq.events AS
    SELECT r.id AS run_id, e.number, e.type, e.data, j.at
    FROM agentq.journal j JOIN agentq.runs r ON r.number = j.run CROSS JOIN agentq.events_of(j) e
    """,
    # Long results: sooner done and smaller than with Postgres' own method. Not every server is built with it.
    """
    DO $$ BEGIN
        ALTER TABLE agentq.journal ALTER COLUMN messages SET COMPRESSION lz4;
        ALTER TABLE agentq.runs ALTER COLUMN context SET COMPRESSION lz4, ALTER COLUMN output SET COMPRESSION lz4;
        ALTER TABLE agentq.approvals ALTER COLUMN arguments SET COMPRESSION lz4;
    EXCEPTION WHEN feature_not_supported OR invalid_parameter_value THEN
        NULL;
    END $$
    """,
    """
    CREATE TRIGGER forget_journal AFTER DELETE ON agentq.runs REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION agentq.forget_journal()
    """,
    """
    CREATE TRIGGER forget_all_journal AFTER TRUNCATE ON agentq.runs
    FOR EACH STATEMENT EXECUTE FUNCTION agentq.forget_journal()
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
