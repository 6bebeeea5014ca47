"""The schema.

No release has another one, so this is what ``tables`` says; the first change after a release gives
this revision a copy of its own. MariaDB ends the transaction at each statement, so a migration that
was cut off is run again over what it left: every statement leaves alone what exists.
"""

from alembic import op

from gangline.brain.store.sql.tables import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    connection = op.get_bind()
    for table in metadata.sorted_tables:
        table.create(connection, checkfirst=True)
        # A table that exists already may lack some of its indices.
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            index.create(connection, checkfirst=True)
