"""Fewer bytes of WAL: columns in the order in which steps change them, one index less, a short form of events."""

from alembic import op

revision = "0006"
down_revision = "0005"

# What changes with a step, in the order of schema.py: columns that are made again stand at the end. The table stays, so
# that all that others have attached to it does.
_MOVED = {
    "turn": "INTEGER",
    "tool_calls": "INTEGER DEFAULT '0'",
    "phase": "TEXT",
    "on_unknown": "TEXT",
    "timeout_secs": "FLOAT",
    "seq": "INTEGER",
    "message_count": "INTEGER DEFAULT '0'",
    "event_count": "INTEGER DEFAULT '0'",
    "reply": "INTEGER",
    "model_calls": "INTEGER DEFAULT '0'",
    "input_tokens": "BIGINT",
    "output_tokens": "BIGINT",
    "cache_read_tokens": "BIGINT",
    "cache_write_tokens": "BIGINT",
    "reasoning_tokens": "BIGINT",
}
_NEEDED = ("turn", "tool_calls", "phase", "seq", "message_count", "event_count", "model_calls")

STATEMENTS = (
    # Nobody else writes from here on. Who writes locks these in one order or another, so this waits for no deadlock.
    """
    DO $$ BEGIN
        LOOP
            BEGIN
                PERFORM set_config('lock_timeout', '500', true);
                LOCK TABLE agentq.runs, agentq.journal, agentq.approvals IN ACCESS EXCLUSIVE MODE;
                PERFORM set_config('lock_timeout', '0', true);
                EXIT;
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
        END LOOP;
    END $$
    """,
    f"ALTER TABLE agentq.runs {', '.join(f'ADD COLUMN new_{name} {kind}' for name, kind in _MOVED.items())}",
    f"UPDATE agentq.runs SET {', '.join(f'new_{name} = {name}' for name in _MOVED)}",
    # Without updated_at: a run was changed when its journal was. Ids are in the order of time.
    f"ALTER TABLE agentq.runs DROP COLUMN updated_at, {', '.join(f'DROP COLUMN {name}' for name in _MOVED)}",
    *(f"ALTER TABLE agentq.runs RENAME COLUMN new_{name} TO {name}" for name in _MOVED),
    f"ALTER TABLE agentq.runs {', '.join(f'ALTER COLUMN {name} SET NOT NULL' for name in _NEEDED)}",
    "DROP INDEX agentq.runs_created_at",
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
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
