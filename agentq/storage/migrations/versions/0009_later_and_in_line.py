"""Runs for later, runs before others, and no more runs of a key at work than it allows."""

from alembic import op

revision = "0009"
down_revision = "0008"

STATEMENTS = (
    # Waits for nobody for long: others would wait behind it.
    """
    DO $$ BEGIN
        LOOP
            BEGIN
                PERFORM set_config('lock_timeout', '500', true);
                LOCK TABLE agentq.runs IN ACCESS EXCLUSIVE MODE;
                PERFORM set_config('lock_timeout', '0', true);
                EXIT;
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
        END LOOP;
    END $$
    """,
    # No row is written: of those that are there Postgres knows the default.
    "ALTER TABLE agentq.runs ADD COLUMN start_at TIMESTAMP WITH TIME ZONE,"
    " ADD COLUMN priority SMALLINT DEFAULT '0' NOT NULL, ADD COLUMN concurrency_key TEXT,"
    " ADD COLUMN concurrency_limit INTEGER, ADD COLUMN has_place BOOLEAN",
    "CREATE INDEX runs_at_work ON agentq.runs (concurrency_key) WHERE has_place",
    "CREATE INDEX runs_in_line ON agentq.runs (concurrency_key, priority, number) WHERE NOT has_place",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
