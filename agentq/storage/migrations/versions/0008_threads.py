"""Threads that are cut or copied: how many messages of a run are left, and what was copied from another thread."""

from alembic import op

revision = "0008"
down_revision = "0007"

STATEMENTS = (
    "ALTER TABLE agentq.runs ADD COLUMN kept INTEGER",
    "ALTER TABLE agentq.threads ADD COLUMN prefix TEXT",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
