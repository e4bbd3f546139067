"""Images and files, stored once by their hash, and which runs and threads refer to them."""

from alembic import op

revision = "0011"
down_revision = "0010"

STATEMENTS = (
    # A foreign key locks the table it leads to. Who uses it is not made to wait behind us for those before us.
    """
    DO $$ BEGIN
        LOOP
            BEGIN
                PERFORM set_config('lock_timeout', '500', true);
                LOCK TABLE agentq.threads, agentq.runs IN SHARE ROW EXCLUSIVE MODE;
                PERFORM set_config('lock_timeout', '0', true);
                EXIT;
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
        END LOOP;
    END $$
    """,
    """
    CREATE TABLE agentq.blobs (
        sha256 TEXT PRIMARY KEY,
        media_type TEXT NOT NULL,
        size INTEGER NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        data BYTEA NOT NULL
    )
    """,
    # Images are compressed already.
    "ALTER TABLE agentq.blobs ALTER COLUMN data SET STORAGE EXTERNAL",
    """
    CREATE TABLE agentq.blob_refs (
        sha256 TEXT NOT NULL REFERENCES agentq.blobs (sha256),
        run_id TEXT REFERENCES agentq.runs (id) ON DELETE CASCADE,
        thread_id TEXT REFERENCES agentq.threads (id) ON DELETE CASCADE
    )
    """,
    "CREATE UNIQUE INDEX blob_refs_of_blob ON agentq.blob_refs (sha256, run_id, thread_id) NULLS NOT DISTINCT",
    "CREATE INDEX blob_refs_of_run ON agentq.blob_refs (run_id) WHERE run_id IS NOT NULL",
    "CREATE INDEX blob_refs_of_thread ON agentq.blob_refs (thread_id) WHERE thread_id IS NOT NULL",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
