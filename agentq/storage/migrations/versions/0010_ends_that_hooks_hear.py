"""Ends of runs that hooks have not heard of yet, and which agents have hooks that want to hear of ends."""

from alembic import op

revision = "0010"
down_revision = "0009"

STATEMENTS = (
    # Both change nothing of a row. Who uses the table is not made to wait behind us for those before us.
    """
    DO $$ BEGIN
        LOOP
            BEGIN
                PERFORM set_config('lock_timeout', '500', true);
                LOCK TABLE agentq.runs, agentq.agents IN ACCESS EXCLUSIVE MODE;
                PERFORM set_config('lock_timeout', '0', true);
                EXIT;
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
        END LOOP;
    END $$
    """,
    "ALTER TABLE agentq.runs ADD COLUMN on_end_at TIMESTAMP WITH TIME ZONE",
    "ALTER TABLE agentq.agents ADD COLUMN hears_ends BOOLEAN DEFAULT false NOT NULL",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
