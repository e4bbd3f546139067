"""Alembic's entry: runs the revisions on the connection that ``migrate.py`` hands over, or prints their SQL."""

from typing import Any

from alembic import context
from sqlalchemy import text

from agentq.storage.schema import SCHEMA, metadata

options: dict[str, Any] = {"target_metadata": metadata, "version_table_schema": SCHEMA, "include_schemas": True}

if context.is_offline_mode():
    context.configure(dialect_name="postgresql", literal_binds=True, **options)
    with context.begin_transaction():
        context.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        context.run_migrations()
else:
    connection = context.config.attributes["connection"]
    context.configure(connection=connection, **options)
    with context.begin_transaction():
        # Two deployments that migrate at once do it one after the other.
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('agentq.migrate'))"))
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        context.run_migrations()
