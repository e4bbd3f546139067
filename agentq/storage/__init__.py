"""Postgres: the schema, its migrations and every query. The truth about runs lives here and nowhere else."""
