"""What the sweep looks for is indexed by columns that steps leave alone, so that a step's UPDATE writes no index."""

from alembic import op

revision = "0005"
down_revision = "0004"

STATEMENTS = (
    "ALTER TABLE agentq.runs ADD COLUMN lease_look_at TIMESTAMP WITH TIME ZONE,"
    " ADD COLUMN sweep_look_at TIMESTAMP WITH TIME ZONE",
    "UPDATE agentq.runs SET lease_look_at = lease_until, sweep_look_at = sweep_at"
    " WHERE lease_until IS NOT NULL OR sweep_at IS NOT NULL",
    "DROP INDEX agentq.runs_lease_until, agentq.runs_sweep_at",
    "CREATE INDEX runs_lease_look_at ON agentq.runs (lease_look_at) WHERE lease_look_at IS NOT NULL",
    "CREATE INDEX runs_sweep_look_at ON agentq.runs (sweep_look_at) WHERE sweep_look_at IS NOT NULL",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
