"""Runs revisions on the connection that the caller gives; Alembic executes this file."""

from alembic import context

from gangline.brain.store.sql.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    transactional_ddl=connection.dialect.name != "mysql",
)
context.run_migrations()
