"""The schema: tables and indices, the same on SQLite, PostgreSQL, MariaDB and MySQL.

Times are BIGINT milliseconds UTC: MySQL changes the first TIMESTAMP column at each update. Strings
compare by bytes on every server: ``Train`` and ``train`` are two jobs. Columns of type ``Leaf``
hold JSON that no query filters by; ``extra`` holds the fields of a record that have no column.
Foreign keys do not cascade: a cascade has no bound on its rows, deletions are made in batches.

Index comments name the query that an index serves. Revision 0001 makes these tables as long
as no release has them; a test compares the two.
"""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql

from gangline.brain.facts.belief import CLUSTER_LENGTH as CLUSTER
from gangline.brain.facts.belief import DIGEST_LENGTH as DIGEST
from gangline.brain.facts.belief import NAME_LENGTH as NAME
from gangline.brain.facts.belief import NAMESPACE_LENGTH as NAMESPACE
from gangline.brain.facts.belief import REPOSITORY_LENGTH as REPOSITORY
from gangline.brain.facts.belief import UID_LENGTH as UID
from gangline.brain.facts.belief import WORD_LENGTH as WORD

MYSQL: Final[dict[str, Any]] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Id = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite numbers rows only of an INTEGER PRIMARY KEY."""
Leaf = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
Blob = LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")


def _id() -> Column[int]:
    return Column("id", Id, primary_key=True, autoincrement=True)


def _text(name: str, length: int) -> Column[str]:
    return Column(name, String(length), nullable=False, server_default="")


def _number(name: str, *, default: int | None = None) -> Column[int]:
    if default is None:
        return Column(name, BigInteger, nullable=True)
    return Column(name, BigInteger, nullable=False, server_default=str(default))


def _at(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _real(name: str) -> Column[float]:
    return Column(name, Double, nullable=True)


def _reference(name: str, table: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, Id, ForeignKey(f"{table}.id"), nullable=nullable)


def _table(name: str, *parts: Any) -> Table:
    return Table(name, metadata, *parts, **MYSQL)


leader = _table(
    "leader",
    Column("cluster", String(CLUSTER), primary_key=True),
    Column("fence", BigInteger, nullable=False),
    _text("holder", NAME),
    _at("at_ms"),
)
"""One row for each cluster. Writers lock it, so that read-merge-write of two Brains cannot mix."""

setting = _table(
    "setting",
    Column("name", String(WORD), primary_key=True),
    Column("value", Blob, nullable=False),
)

image = _table(
    "image",
    _id(),
    _text("repository", REPOSITORY),
    _text("tag", DIGEST),
    _text("digest", DIGEST),
    Column("identity", BigInteger, nullable=False, unique=True),
)
"""``identity`` is a hash of the others, which together are too long for an index of MySQL."""

family = _table(
    "family",
    _id(),
    _text("cluster", CLUSTER),
    _text("namespace", NAMESPACE),
    _text("stem", NAME),
    _text("kind", WORD),
    _text("owner", NAME),
    _text("image_repository", REPOSITORY),
    Column("digest", String(DIGEST), nullable=False, unique=True),
    _number("jobs", default=0),
    _number("last_ms", default=0),
    # History of the families of a namespace.
    Index(None, "cluster", "namespace", "stem"),
)

job = _table(
    "job",
    _id(),
    _text("cluster", CLUSTER),
    _text("uid", UID),
    _text("namespace", NAMESPACE),
    _text("name", NAME),
    _text("stem", NAME),
    _reference("family_id", "family"),
    _text("kind", WORD),
    _text("strategy", WORD),
    _text("owner", NAME),
    _text("queue", NAME),
    _number("priority", default=0),
    _reference("image_id", "image"),
    _text("command_digest", DIGEST),
    _at("submitted_ms"),
    _number("started_ms"),
    _number("finished_ms"),
    _text("outcome", WORD),
    _text("cause", NAME),
    _number("workers_min"),
    _number("workers_max"),
    _number("workers_asked"),
    _number("unit", default=1),
    Column("wishes", Leaf, nullable=True),
    _text("spec_digest", DIGEST),
    _number("gpu_seconds"),
    _number("productive_ms"),
    _number("wall_ms"),
    _number("restarts", default=0),
    _number("records_total"),
    Column("complete", Boolean(create_constraint=False), nullable=False),
    _number("observed_ms", default=0),
    Column("extra", Leaf, nullable=True),
    # Keyed hashes of what the levels of similarity compare: one index range for each level.
    _number("spec_key"),
    _number("base_key"),
    _number("image_key"),
    _number("model_key"),
    UniqueConstraint("cluster", "uid"),
    Index(None, "family_id", "outcome", "complete", "finished_ms"),  # similar jobs, level 1
    Index(None, "spec_key", "outcome", "complete", "finished_ms"),  # level 0
    Index(None, "base_key", "outcome", "complete", "finished_ms"),  # level 2
    Index(None, "image_key", "outcome", "complete", "finished_ms"),  # level 3
    Index(None, "model_key", "outcome", "complete", "finished_ms"),  # level 4
    Index(None, "cluster", "namespace", "owner", "finished_ms"),  # history of an owner
    Index(None, "cluster", "namespace", "name", "submitted_ms"),  # a job by its name
    Index(None, "cluster", "finished_ms"),  # history of a cluster, retention
    Index(None, "image_id"),
)

model = _table(
    "model",
    Column("job_id", Id, ForeignKey("job.id"), primary_key=True, autoincrement=False),
    _number("parameters"),
    _number("layers"),
    _number("hidden"),
    _number("heads"),
    _number("kv_heads"),
    _number("ffn"),
    _number("vocab"),
    _number("sequence"),
    _number("experts"),
    _text("dtype", WORD),
    _text("optimizer", WORD),
    _text("source", WORD),
    Column("extra", Leaf, nullable=True),
)

role_size = _table(
    "role_size",
    Column("job_id", Id, ForeignKey("job.id"), primary_key=True, autoincrement=False),
    Column("role", String(WORD), primary_key=True),
    Column("since_ms", BigInteger, primary_key=True, autoincrement=False),
    _number("replicas", default=0),
    _number("cpu_millis"),
    _number("memory_bytes"),
    _number("gpus", default=0),
    _text("gpu_model", DIGEST),
    _text("source", WORD),
    Column("extra", Leaf, nullable=True),
)

segment = _table(
    "segment",
    _id(),
    _reference("job_id", "job"),
    _number("round", default=0),
    _at("since_ms"),
    _at("until_ms"),
    _number("nodes", default=0),
    _number("procs", default=0),
    _number("ps", default=0),
    _text("gpu_model", DIGEST),
    _number("micro_batch"),
    _number("accumulation"),
    _number("global_batch"),
    _number("steps", default=0),
    _number("step_first"),
    _number("step_last"),
    Column("step_mean_us", Double, nullable=False),
    Column("step_m2", Double, nullable=False),
    _real("compute_us"),
    _real("sync_us"),
    _real("data_us"),
    _real("grad_sqr"),
    _real("grad_var"),
    _text("quality", WORD),
    Column("extra", Leaf, nullable=True),
    UniqueConstraint("job_id", "round", "since_ms"),
    Index(None, "job_id", "since_ms"),  # the last segments of a run
    Index(None, "until_ms"),  # retention
)

node = _table(
    "node",
    _id(),
    _text("cluster", CLUSTER),
    _text("name", NAME),
    _text("device_model", DIGEST),
    UniqueConstraint("cluster", "name"),
)

node_speed = _table(
    "node_speed",
    Column("node_id", Id, ForeignKey("node.id"), primary_key=True, autoincrement=False),
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("score", Double, nullable=False),
    _number("jobs", default=0),
    _number("checks_failed", default=0),
    _number("failures", default=0),
    _number("observed_ms", default=0),
    Column("extra", Leaf, nullable=True),
    Index(None, "day"),  # retention, and the last days of all nodes
)

pod_run = _table(
    "pod_run",
    _id(),
    _reference("job_id", "job"),
    _text("role", WORD),
    _number("rank", default=0),
    _number("number", default=0),
    _reference("node_id", "node", nullable=True),
    _at("started_ms"),
    _number("ended_ms"),
    _text("cause", NAME),
    Column("oom", Boolean(create_constraint=False), nullable=False),
    _number("limit_memory_bytes"),
    _number("peak_memory_bytes"),
    _number("cpu_p50_millis"),
    _number("cpu_p95_millis"),
    _number("cpu_max_millis"),
    _number("peak_device_memory_bytes"),
    _number("samples", default=0),
    Column("extra", Leaf, nullable=True),
    UniqueConstraint("job_id", "role", "rank", "number"),
    Index(None, "node_id", "ended_ms"),  # failures of a node
    Index(None, "ended_ms"),  # retention
)
"""The unique constraint serves the pods of a run, by job, role and rank."""

advice = _table(
    "advice",
    _id(),
    _reference("job_id", "job"),
    _text("what", WORD),
    _at("at_ms"),
    _at("expires_ms"),
    _text("reason", DIGEST),
    _text("confidence", WORD),
    _text("mode", WORD),
    _text("state", WORD),
    Column("held_because", Leaf, nullable=True),
    Column("body", Leaf, nullable=False),
    Index(None, "job_id", "state"),  # open advice of a job
    Index(None, "state", "expires_ms"),  # what has expired
    Index(None, "at_ms"),  # retention
)
"""``body`` is the advice with its numbers, reason and evidence."""

action = _table(
    "action",
    _id(),
    _reference("advice_id", "advice", nullable=True),
    _reference("job_id", "job"),
    _text("what", WORD),
    _text("plan", NAME),
    _at("at_ms"),
    Column("body", Leaf, nullable=False),
    _text("verdict", WORD),
    _number("judged_ms"),
    _number("cost_ms"),
    _number("fence", default=0),
    Index(None, "job_id", "at_ms"),  # actions of a job
    Index(None, "verdict", "at_ms"),  # open actions: the verdict is pending
    Index(None, "advice_id"),
    Index(None, "at_ms"),  # the budget of the cluster, retention
)

forgotten = _table(
    "forgotten",
    Column("digest", String(DIGEST), primary_key=True),
    _at("at_ms"),
)
"""Salted digests of owners, namespaces and jobs; jobs submitted before ``at_ms`` do not return."""
