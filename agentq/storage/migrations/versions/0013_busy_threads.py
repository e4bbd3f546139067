"""Messages to a thread that is busy: runs that are held behind another one, and what is sent into a run at work."""

from alembic import op

revision = "0013"
down_revision = "0011"

STATEMENTS = (
    # It changes nothing of a row. Who uses the table is not made to wait behind us for those before us.
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
    """
    ALTER TABLE agentq.runs
        ADD COLUMN held BOOLEAN, ADD COLUMN followed BOOLEAN, ADD COLUMN steered INTEGER, ADD COLUMN heard INTEGER
    """,
    """
    CREATE INDEX runs_held ON agentq.runs (thread_id, thread_position) WHERE held AND finished_at IS NULL
    """,
    """
    CREATE TABLE agentq.inbox (
        run_id TEXT NOT NULL, number INTEGER NOT NULL, idempotency_key TEXT, message TEXT,
        PRIMARY KEY (run_id, number),
        FOREIGN KEY (run_id) REFERENCES agentq.runs (id) ON DELETE CASCADE
    )
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
