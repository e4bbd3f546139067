"""What becomes of a call whose outcome is unknown, questions about it, and a time limit of a whole run."""

from alembic import op

revision = "0002"
down_revision = "0001"

STATEMENTS = (
    "ALTER TABLE agentq.tool_calls ADD COLUMN on_unknown TEXT DEFAULT 'report' NOT NULL",
    "UPDATE agentq.tool_calls SET on_unknown = 'retry' WHERE idempotent AND status <> 'done'",
    "ALTER TABLE agentq.tool_calls ALTER COLUMN on_unknown DROP DEFAULT, DROP COLUMN idempotent",
    "ALTER TABLE agentq.approvals ADD COLUMN kind TEXT DEFAULT 'approval' NOT NULL",
    # The same call may be put before a person several times: may it run, and, each time its worker was lost, did it.
    "ALTER TABLE agentq.approvals ADD COLUMN number INTEGER DEFAULT 0 NOT NULL",
    "ALTER TABLE agentq.approvals DROP CONSTRAINT approvals_pkey, ADD PRIMARY KEY (run_id, turn, index, number)",
    "ALTER TABLE agentq.runs ADD COLUMN asked_calls INTEGER DEFAULT 0 NOT NULL",
    "ALTER TABLE agentq.runs ADD COLUMN deadline_at TIMESTAMP WITH TIME ZONE",
    "CREATE INDEX runs_deadline_at ON agentq.runs (deadline_at) WHERE deadline_at IS NOT NULL",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
