"""Indices of similar jobs with what their ranges were filtered by: a job was watched completely.

Without it, the search for the few jobs that were not read all others of their range.
"""

from alembic import op

revision = "0002"
down_revision = "0001"

KEYS = ("family_id", "spec_key", "base_key", "image_key", "model_key")


def upgrade() -> None:
    """Replace the indices."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("SET LOCAL statement_timeout = 0")  # an index of many rows takes its time
    for key in KEYS:
        # The new one first: MySQL requires an index for each foreign key.
        columns = [key, "outcome", "complete", "finished_ms"]
        op.create_index(op.f(f"ix_job_{'_'.join(columns)}"), "job", columns, if_not_exists=True)
        op.drop_index(op.f(f"ix_job_{key}_outcome_finished_ms"), table_name="job", if_exists=True)
