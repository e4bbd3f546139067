"""Which version of its agent a run began with, and which code has left it to others since that changed."""

from alembic import op

revision = "0012"
down_revision = "0011"

STATEMENTS = (
    # They change nothing of a row. Who uses the tables is not made to wait behind us for those before us.
    """
    DO $$ BEGIN
        LOOP
            BEGIN
                PERFORM set_config('lock_timeout', '500', true);
                LOCK TABLE agentq.runs, agentq.workers IN ACCESS EXCLUSIVE MODE;
                PERFORM set_config('lock_timeout', '0', true);
                EXIT;
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
        END LOOP;
    END $$
    """,
    "ALTER TABLE agentq.runs ADD COLUMN agent_version TEXT, ADD COLUMN outdated_at TIMESTAMP WITH TIME ZONE,"
    " ADD COLUMN outdated_by TEXT",
    "CREATE INDEX runs_outdated ON agentq.runs (agent, id) WHERE outdated_at IS NOT NULL",
    "ALTER TABLE agentq.workers ADD COLUMN versions JSONB DEFAULT '{}' NOT NULL",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
