"""What a decision may be: changed arguments, for the rest of the run, until a deadline; and why a tool asked."""

from alembic import op

revision = "0007"
down_revision = "0006"

_COLUMNS = {
    "question": "TEXT NOT NULL DEFAULT ''",
    "edited": "TEXT",
    "sticky": "BOOLEAN NOT NULL DEFAULT false",
    "expires_at": "TIMESTAMP WITH TIME ZONE",
    "on_expiry": "TEXT NOT NULL DEFAULT 'report'",
}

STATEMENTS = (
    f"ALTER TABLE agentq.approvals {', '.join(f'ADD COLUMN {name} {kind}' for name, kind in _COLUMNS.items())}",
    """
    CREATE INDEX approvals_expires_at ON agentq.approvals (expires_at)
    WHERE status = 'pending' AND expires_at IS NOT NULL
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
