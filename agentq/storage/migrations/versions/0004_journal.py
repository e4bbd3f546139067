"""One row a commit for its messages and events, and what changes with every step at the end of a run's row."""

from alembic import op

revision = "0004"
down_revision = "0003"

_KEPT = """created_at, id, agent, depth, context, tags, idempotency_key, thread_id, thread_position, parent_run_id,
    parent_turn, parent_index, deadline_at, cancel_requested, finished_at, stop_reason, output, error, queue,
    lease_token, lease_until, worker, sweep_at, status, progress, phase, timeout_secs, due_at, claimed_at, updated_at,
    attempt, seq, turn, message_count, event_count, open_calls, asked_calls"""

_USAGE = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")

STATEMENTS = (
    # What is written meanwhile would not be copied.
    "LOCK TABLE agentq.runs, agentq.messages, agentq.events IN ACCESS EXCLUSIVE MODE",
    "CREATE TABLE agentq.runs_0003 AS SELECT * FROM agentq.runs",
    # With the foreign keys to it.
    "DROP TABLE agentq.runs CASCADE",
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
        status TEXT NOT NULL,
        progress TEXT NOT NULL,
        attempt INTEGER DEFAULT '0' NOT NULL,
        phase TEXT NOT NULL,
        on_unknown TEXT,
        timeout_secs FLOAT,
        due_at TIMESTAMP WITH TIME ZONE,
        claimed_at TIMESTAMP WITH TIME ZONE,
        updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        seq INTEGER NOT NULL,
        turn INTEGER NOT NULL,
        message_count INTEGER DEFAULT '0' NOT NULL,
        event_count INTEGER DEFAULT '0' NOT NULL,
        reply INTEGER,
        model_calls INTEGER DEFAULT '0' NOT NULL,
        tool_calls INTEGER DEFAULT '0' NOT NULL,
        input_tokens BIGINT,
        output_tokens BIGINT,
        cache_read_tokens BIGINT,
        cache_write_tokens BIGINT,
        reasoning_tokens BIGINT,
        open_calls INTEGER DEFAULT '0' NOT NULL,
        asked_calls INTEGER DEFAULT '0' NOT NULL,
        PRIMARY KEY (id),
        FOREIGN KEY(thread_id) REFERENCES agentq.threads (id)
    ) WITH (fillfactor = 70)
    """,
    # The transcripts so far go to the row of a run's first event.
    f"""
    INSERT INTO agentq.runs ({_KEPT}, reply, model_calls, tool_calls, {", ".join(_USAGE)})
    SELECT {_KEPT}, 1,
        coalesce(CAST(p ->> 'model_calls' AS integer), 0), coalesce(CAST(p ->> 'tool_calls' AS integer), 0),
        {", ".join(f"CAST(p #>> '{{usage,{name}}}' AS bigint)" for name in _USAGE)}
    FROM (SELECT *, CAST(progress AS json) AS p FROM agentq.runs_0003) old
    """,
    "DROP TABLE agentq.runs_0003",
    "CREATE INDEX runs_created_at ON agentq.runs (created_at)",
    "CREATE INDEX runs_lease_until ON agentq.runs (lease_until) WHERE lease_until IS NOT NULL",
    "CREATE INDEX runs_sweep_at ON agentq.runs (sweep_at) WHERE sweep_at IS NOT NULL",
    "CREATE INDEX runs_deadline_at ON agentq.runs (deadline_at) WHERE deadline_at IS NOT NULL",
    "CREATE INDEX runs_parent ON agentq.runs (parent_run_id) WHERE parent_run_id IS NOT NULL",
    "CREATE INDEX runs_tags ON agentq.runs USING gin (tags) WHERE tags <> '{}'::jsonb",
    "CREATE UNIQUE INDEX runs_of_key ON agentq.runs (agent, idempotency_key) WHERE idempotency_key IS NOT NULL",
    "CREATE UNIQUE INDEX runs_of_thread ON agentq.runs (thread_id, thread_position) WHERE thread_id IS NOT NULL",
    "ALTER TABLE agentq.tool_calls ADD FOREIGN KEY(run_id) REFERENCES agentq.runs (id) ON DELETE CASCADE",
    "ALTER TABLE agentq.approvals ADD FOREIGN KEY(run_id) REFERENCES agentq.runs (id) ON DELETE CASCADE",
    """
    CREATE TABLE agentq.journal (
        run BIGINT NOT NULL,
        at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        number INTEGER NOT NULL,
        events TEXT NOT NULL,
        messages TEXT,
        PRIMARY KEY (run, number)
    )
    """,
    """
    INSERT INTO agentq.journal (run, at, number, events, messages)
    SELECT r.number, e.at, e.number, '[[' || to_json(e.type) || ',' || e.data || ']]',
        CASE WHEN e.number = 1 THEN (
            SELECT '[' || string_agg('[' || m.position || ',' || m.payload || ']', ',' ORDER BY m.position) || ']'
            FROM agentq.messages m WHERE m.run_id = r.id) END
    FROM agentq.events e JOIN agentq.runs r ON r.id = e.run_id
    """,
    "DROP TABLE agentq.messages, agentq.events",
    """
    CREATE VIEW agentq.messages AS
    SELECT r.id AS run_id, CAST(m ->> 0 AS integer) AS position, CAST(m -> 1 AS text) AS payload, j.at
    FROM agentq.journal j JOIN agentq.runs r ON r.number = j.run
        CROSS JOIN json_array_elements(CAST(j.messages AS json)) m
    """,
    # What an event says of the message beside it: see agentq/storage/journal.py.
    """
    CREATE FUNCTION agentq.facts(type text, message json) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
        SELECT CASE message ->> 'role'
            WHEN 'tool' THEN jsonb_strip_nulls(jsonb_build_object(
                'tool', message #>> '{result,name}',
                'status', coalesce(message #>> '{result,status}', 'success'),
                'code', message #>> '{result,code}'))
            WHEN 'assistant' THEN jsonb_build_object(
                'provider', coalesce(message ->> 'provider', ''),
                'model', coalesce(message ->> 'model', ''),
                'calls', (SELECT coalesce(jsonb_agg(call -> 'name'), '[]')
                          FROM json_array_elements(message -> 'calls') call))
            ELSE CAST('{}' AS jsonb) END
            || CASE WHEN type = 'step' THEN jsonb_build_object(
                'phase', CASE message ->> 'role' WHEN 'tool' THEN 'tools' ELSE 'model' END)
            ELSE CAST('{}' AS jsonb) END
    $$
    """,
    """
    CREATE FUNCTION agentq.events_of(entry agentq.journal) RETURNS TABLE (number integer, type text, data text)
    LANGUAGE sql STABLE AS $$
        SELECT CAST(entry.number - json_array_length(CAST(entry.events AS json)) + e.n AS integer), event ->> 0,
            CASE WHEN event -> 2 IS NULL THEN CAST(event -> 1 AS text)
            ELSE CAST(agentq.facts(event ->> 0, CAST(entry.messages AS json) -> CAST(event ->> 2 AS integer) -> 1)
                      || CAST(event -> 1 AS jsonb) AS text) END
        FROM json_array_elements(CAST(entry.events AS json)) WITH ORDINALITY e (event, n)
    $$
    """,
    """
    CREATE VIEW agentq.events AS
    SELECT r.id AS run_id, e.number, e.type, e.data, j.at
    FROM agentq.journal j JOIN agentq.runs r ON r.number = j.run CROSS JOIN agentq.events_of(j) e
    """,
    """
    CREATE FUNCTION agentq.forget_journal() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'TRUNCATE' THEN
            DELETE FROM agentq.journal;
        ELSE
            DELETE FROM agentq.journal j USING gone WHERE j.run = gone.number;
        END IF;
        RETURN NULL;
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
