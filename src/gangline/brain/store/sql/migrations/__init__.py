"""Revisions of the schema, applied by Alembic."""
