"""A message that was sent into a run at work is found by its idempotency key, whatever thread asks for it."""

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.execute("CREATE INDEX inbox_key ON agentq.inbox (idempotency_key) WHERE idempotency_key IS NOT NULL")
