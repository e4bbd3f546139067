"""Which models of which accounts are to be left in peace for a while, and what the calls of a run have cost."""

from alembic import op

revision = "0015"
down_revision = "0014"

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
    "ALTER TABLE agentq.runs ADD COLUMN known_cost NUMERIC, ADD COLUMN unpriced BOOLEAN",
    # Few rows, which change often while they are there.
    """
    CREATE TABLE agentq.cooldowns (
        account TEXT NOT NULL, model TEXT NOT NULL, provider TEXT NOT NULL, code TEXT NOT NULL,
        epoch INTEGER NOT NULL, since TIMESTAMP WITH TIME ZONE NOT NULL, until TIMESTAMP WITH TIME ZONE NOT NULL,
        expires_at TIMESTAMP WITH TIME ZONE NOT NULL, pace DOUBLE PRECISION NOT NULL,
        doubling_secs DOUBLE PRECISION NOT NULL, streak INTEGER NOT NULL, taken DOUBLE PRECISION NOT NULL,
        refused INTEGER NOT NULL,
        PRIMARY KEY (account, model)
    ) WITH (fillfactor = 50)
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
