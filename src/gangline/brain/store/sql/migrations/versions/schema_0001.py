"""The schema.

MariaDB ends the transaction at each statement, so a migration that was cut off is run again over
what it left: every statement leaves alone what exists.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
LEAF = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
BLOB = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")
OPTIONS: dict[str, Any] = {
    "if_not_exists": True,
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "family",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("cluster", sa.String(length=128), server_default="", nullable=False),
        sa.Column("namespace", sa.String(length=63), server_default="", nullable=False),
        sa.Column("stem", sa.String(length=253), server_default="", nullable=False),
        sa.Column("kind", sa.String(length=64), server_default="", nullable=False),
        sa.Column("owner", sa.String(length=253), server_default="", nullable=False),
        sa.Column("image_repository", sa.String(length=512), server_default="", nullable=False),
        sa.Column("digest", sa.String(length=128), nullable=False),
        sa.Column("jobs", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_family"),
        sa.UniqueConstraint("digest", name="uq_family_digest"),
        **OPTIONS,
    )
    op.create_index(
        "ix_family_cluster_namespace_stem",
        "family",
        ["cluster", "namespace", "stem"],
        if_not_exists=True,
    )
    op.create_table(
        "forgotten",
        sa.Column("digest", sa.String(length=128), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_forgotten"),
        **OPTIONS,
    )
    op.create_table(
        "image",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("repository", sa.String(length=512), server_default="", nullable=False),
        sa.Column("tag", sa.String(length=128), server_default="", nullable=False),
        sa.Column("digest", sa.String(length=128), server_default="", nullable=False),
        sa.Column("identity", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_image"),
        sa.UniqueConstraint("identity", name="uq_image_identity"),
        **OPTIONS,
    )
    op.create_table(
        "leader",
        sa.Column("cluster", sa.String(length=128), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(length=253), server_default="", nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name="pk_leader"),
        **OPTIONS,
    )
    op.create_table(
        "node",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("cluster", sa.String(length=128), server_default="", nullable=False),
        sa.Column("name", sa.String(length=253), server_default="", nullable=False),
        sa.Column("device_model", sa.String(length=128), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_node"),
        sa.UniqueConstraint("cluster", "name", name="uq_node_cluster_name"),
        **OPTIONS,
    )
    op.create_table(
        "setting",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", BLOB, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_setting"),
        **OPTIONS,
    )
    op.create_table(
        "job",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("cluster", sa.String(length=128), server_default="", nullable=False),
        sa.Column("uid", sa.String(length=64), server_default="", nullable=False),
        sa.Column("namespace", sa.String(length=63), server_default="", nullable=False),
        sa.Column("name", sa.String(length=253), server_default="", nullable=False),
        sa.Column("stem", sa.String(length=253), server_default="", nullable=False),
        sa.Column("family_id", ID, nullable=False),
        sa.Column("kind", sa.String(length=64), server_default="", nullable=False),
        sa.Column("strategy", sa.String(length=64), server_default="", nullable=False),
        sa.Column("owner", sa.String(length=253), server_default="", nullable=False),
        sa.Column("queue", sa.String(length=253), server_default="", nullable=False),
        sa.Column("priority", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("image_id", ID, nullable=False),
        sa.Column("command_digest", sa.String(length=128), server_default="", nullable=False),
        sa.Column("submitted_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=True),
        sa.Column("finished_ms", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.String(length=64), server_default="", nullable=False),
        sa.Column("cause", sa.String(length=253), server_default="", nullable=False),
        sa.Column("workers_min", sa.BigInteger(), nullable=True),
        sa.Column("workers_max", sa.BigInteger(), nullable=True),
        sa.Column("workers_asked", sa.BigInteger(), nullable=True),
        sa.Column("unit", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("wishes", LEAF, nullable=True),
        sa.Column("spec_digest", sa.String(length=128), server_default="", nullable=False),
        sa.Column("gpu_seconds", sa.BigInteger(), nullable=True),
        sa.Column("productive_ms", sa.BigInteger(), nullable=True),
        sa.Column("wall_ms", sa.BigInteger(), nullable=True),
        sa.Column("restarts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("records_total", sa.BigInteger(), nullable=True),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("observed_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("extra", LEAF, nullable=True),
        sa.Column("spec_key", sa.BigInteger(), nullable=True),
        sa.Column("base_key", sa.BigInteger(), nullable=True),
        sa.Column("image_key", sa.BigInteger(), nullable=True),
        sa.Column("model_key", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["family_id"], ["family.id"], name="fk_job_family_id"),
        sa.ForeignKeyConstraint(["image_id"], ["image.id"], name="fk_job_image_id"),
        sa.PrimaryKeyConstraint("id", name="pk_job"),
        sa.UniqueConstraint("cluster", "uid", name="uq_job_cluster_uid"),
        **OPTIONS,
    )
    op.create_index(
        "ix_job_base_key_outcome_complete_finished_ms",
        "job",
        ["base_key", "outcome", "complete", "finished_ms"],
        if_not_exists=True,
    )
    op.create_index(
        "ix_job_cluster_finished_ms", "job", ["cluster", "finished_ms"], if_not_exists=True
    )
    op.create_index(
        "ix_job_cluster_namespace_name_submitted_ms",
        "job",
        ["cluster", "namespace", "name", "submitted_ms"],
        if_not_exists=True,
    )
    op.create_index(
        "ix_job_cluster_namespace_owner_finished_ms",
        "job",
        ["cluster", "namespace", "owner", "finished_ms"],
        if_not_exists=True,
    )
    op.create_index(
        "ix_job_family_id_outcome_complete_finished_ms",
        "job",
        ["family_id", "outcome", "complete", "finished_ms"],
        if_not_exists=True,
    )
    op.create_index("ix_job_image_id", "job", ["image_id"], if_not_exists=True)
    op.create_index(
        "ix_job_image_key_outcome_complete_finished_ms",
        "job",
        ["image_key", "outcome", "complete", "finished_ms"],
        if_not_exists=True,
    )
    op.create_index(
        "ix_job_model_key_outcome_complete_finished_ms",
        "job",
        ["model_key", "outcome", "complete", "finished_ms"],
        if_not_exists=True,
    )
    op.create_index(
        "ix_job_spec_key_outcome_complete_finished_ms",
        "job",
        ["spec_key", "outcome", "complete", "finished_ms"],
        if_not_exists=True,
    )
    op.create_table(
        "node_speed",
        sa.Column("node_id", ID, autoincrement=False, nullable=False),
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("checks_failed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("failures", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("observed_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("extra", LEAF, nullable=True),
        sa.ForeignKeyConstraint(["node_id"], ["node.id"], name="fk_node_speed_node_id"),
        sa.PrimaryKeyConstraint("node_id", "day", name="pk_node_speed"),
        **OPTIONS,
    )
    op.create_index("ix_node_speed_day", "node_speed", ["day"], if_not_exists=True)
    op.create_table(
        "advice",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("what", sa.String(length=64), server_default="", nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(length=128), server_default="", nullable=False),
        sa.Column("confidence", sa.String(length=64), server_default="", nullable=False),
        sa.Column("mode", sa.String(length=64), server_default="", nullable=False),
        sa.Column("state", sa.String(length=64), server_default="", nullable=False),
        sa.Column("held_because", LEAF, nullable=True),
        sa.Column("body", LEAF, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_advice_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_advice"),
        **OPTIONS,
    )
    op.create_index("ix_advice_at_ms", "advice", ["at_ms"], if_not_exists=True)
    op.create_index("ix_advice_job_id_state", "advice", ["job_id", "state"], if_not_exists=True)
    op.create_index(
        "ix_advice_state_expires_ms", "advice", ["state", "expires_ms"], if_not_exists=True
    )
    op.create_table(
        "model",
        sa.Column("job_id", ID, autoincrement=False, nullable=False),
        sa.Column("parameters", sa.BigInteger(), nullable=True),
        sa.Column("layers", sa.BigInteger(), nullable=True),
        sa.Column("hidden", sa.BigInteger(), nullable=True),
        sa.Column("heads", sa.BigInteger(), nullable=True),
        sa.Column("kv_heads", sa.BigInteger(), nullable=True),
        sa.Column("ffn", sa.BigInteger(), nullable=True),
        sa.Column("vocab", sa.BigInteger(), nullable=True),
        sa.Column("sequence", sa.BigInteger(), nullable=True),
        sa.Column("experts", sa.BigInteger(), nullable=True),
        sa.Column("dtype", sa.String(length=64), server_default="", nullable=False),
        sa.Column("optimizer", sa.String(length=64), server_default="", nullable=False),
        sa.Column("source", sa.String(length=64), server_default="", nullable=False),
        sa.Column("extra", LEAF, nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_model_job_id"),
        sa.PrimaryKeyConstraint("job_id", name="pk_model"),
        **OPTIONS,
    )
    op.create_table(
        "pod_run",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("role", sa.String(length=64), server_default="", nullable=False),
        sa.Column("rank", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("number", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("node_id", ID, nullable=True),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("cause", sa.String(length=253), server_default="", nullable=False),
        sa.Column("oom", sa.Boolean(), nullable=False),
        sa.Column("limit_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("cpu_p50_millis", sa.BigInteger(), nullable=True),
        sa.Column("cpu_p95_millis", sa.BigInteger(), nullable=True),
        sa.Column("cpu_max_millis", sa.BigInteger(), nullable=True),
        sa.Column("peak_device_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("samples", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("extra", LEAF, nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_pod_run_job_id"),
        sa.ForeignKeyConstraint(["node_id"], ["node.id"], name="fk_pod_run_node_id"),
        sa.PrimaryKeyConstraint("id", name="pk_pod_run"),
        sa.UniqueConstraint(
            "job_id", "role", "rank", "number", name="uq_pod_run_job_id_role_rank_number"
        ),
        **OPTIONS,
    )
    op.create_index("ix_pod_run_ended_ms", "pod_run", ["ended_ms"], if_not_exists=True)
    op.create_index(
        "ix_pod_run_node_id_ended_ms", "pod_run", ["node_id", "ended_ms"], if_not_exists=True
    )
    op.create_table(
        "role_size",
        sa.Column("job_id", ID, autoincrement=False, nullable=False),
        sa.Column("role", sa.String(length=64), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("replicas", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cpu_millis", sa.BigInteger(), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("gpus", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("gpu_model", sa.String(length=128), server_default="", nullable=False),
        sa.Column("source", sa.String(length=64), server_default="", nullable=False),
        sa.Column("extra", LEAF, nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_role_size_job_id"),
        sa.PrimaryKeyConstraint("job_id", "role", "since_ms", name="pk_role_size"),
        **OPTIONS,
    )
    op.create_table(
        "segment",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("round", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.Column("nodes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("procs", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("ps", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("gpu_model", sa.String(length=128), server_default="", nullable=False),
        sa.Column("micro_batch", sa.BigInteger(), nullable=True),
        sa.Column("accumulation", sa.BigInteger(), nullable=True),
        sa.Column("global_batch", sa.BigInteger(), nullable=True),
        sa.Column("steps", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("step_first", sa.BigInteger(), nullable=True),
        sa.Column("step_last", sa.BigInteger(), nullable=True),
        sa.Column("step_mean_us", sa.Double(), nullable=False),
        sa.Column("step_m2", sa.Double(), nullable=False),
        sa.Column("compute_us", sa.Double(), nullable=True),
        sa.Column("sync_us", sa.Double(), nullable=True),
        sa.Column("data_us", sa.Double(), nullable=True),
        sa.Column("grad_sqr", sa.Double(), nullable=True),
        sa.Column("grad_var", sa.Double(), nullable=True),
        sa.Column("quality", sa.String(length=64), server_default="", nullable=False),
        sa.Column("extra", LEAF, nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_segment_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_segment"),
        sa.UniqueConstraint("job_id", "round", "since_ms", name="uq_segment_job_id_round_since_ms"),
        **OPTIONS,
    )
    op.create_index(
        "ix_segment_job_id_since_ms", "segment", ["job_id", "since_ms"], if_not_exists=True
    )
    op.create_index("ix_segment_until_ms", "segment", ["until_ms"], if_not_exists=True)
    op.create_table(
        "action",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("advice_id", ID, nullable=True),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("what", sa.String(length=64), server_default="", nullable=False),
        sa.Column("plan", sa.String(length=253), server_default="", nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("body", LEAF, nullable=False),
        sa.Column("verdict", sa.String(length=64), server_default="", nullable=False),
        sa.Column("judged_ms", sa.BigInteger(), nullable=True),
        sa.Column("cost_ms", sa.BigInteger(), nullable=True),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["advice_id"], ["advice.id"], name="fk_action_advice_id"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_action_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_action"),
        **OPTIONS,
    )
    op.create_index("ix_action_advice_id", "action", ["advice_id"], if_not_exists=True)
    op.create_index("ix_action_at_ms", "action", ["at_ms"], if_not_exists=True)
    op.create_index("ix_action_job_id_at_ms", "action", ["job_id", "at_ms"], if_not_exists=True)
    op.create_index("ix_action_verdict_at_ms", "action", ["verdict", "at_ms"], if_not_exists=True)
