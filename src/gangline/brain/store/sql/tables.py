"""The schema: tables and indices, the same on SQLite, PostgreSQL, MariaDB and MySQL.

Times are BIGINT milliseconds UTC: MySQL changes the first TIMESTAMP column at each update. Strings
compare by bytes on every server: ``Train`` and ``train`` are two jobs. ``body`` is the complete
record as JSON; columns repeat those of its fields by which rows are found, ordered or deleted.
Foreign keys do not cascade: a cascade has no bound on its rows, deletions are made in batches.

Index comments name the query that an index serves. Revision 0001 makes these tables as long
as no release has them; a test compares the two.
"""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
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


def id_column() -> Column[int]:
    return Column("id", Id, primary_key=True, autoincrement=True)


def text_column(name: str, length: int) -> Column[str]:
    return Column(name, String(length), nullable=False, server_default="")


def number_column(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=nullable)


def _body() -> Column[str]:
    return Column("body", Leaf, nullable=False)


def _job_id() -> Column[int]:
    return Column("job_id", Id, ForeignKey("job.id"), nullable=False)


def define_table(name: str, *parts: Any) -> Table:
    return Table(name, metadata, *parts, **MYSQL)


leader = define_table(
    "leader",
    Column("cluster", String(CLUSTER), primary_key=True),
    number_column("fence"),
    text_column("holder", NAME),
    number_column("at_ms"),
)
"""One row for each cluster. Writers lock it, so that read-merge-write of two Brains cannot mix."""

setting = define_table(
    "setting", Column("name", String(WORD), primary_key=True), Column("value", Blob, nullable=False)
)

LEVEL_COLUMNS: Final = ("spec_key", "family_key", "base_key", "image_key", "model_key")
"""Keyed hashes of what the levels of similarity compare, from level 0 on."""

job = define_table(
    "job",
    id_column(),
    text_column("cluster", CLUSTER),
    text_column("uid", UID),
    text_column("namespace", NAMESPACE),
    text_column("name", NAME),
    text_column("stem", NAME),
    text_column("kind", WORD),
    text_column("owner", NAME),
    text_column("queue", NAME),
    number_column("submitted_ms"),
    number_column("finished_ms", nullable=True),
    text_column("outcome", WORD),
    Column("complete", Boolean(create_constraint=False), nullable=False),
    # One index range for each level of similarity.
    *(number_column(key, nullable=True) for key in LEVEL_COLUMNS),
    _body(),
    UniqueConstraint("cluster", "uid"),
    *(Index(None, key, "outcome", "complete", "finished_ms") for key in LEVEL_COLUMNS),
    Index(None, "cluster", "namespace", "owner", "finished_ms"),  # history of an owner
    Index(None, "cluster", "namespace", "name", "submitted_ms"),  # a job by its name
    Index(None, "cluster", "finished_ms"),  # history of a cluster, retention
)

segment = define_table(
    "segment",
    id_column(),
    _job_id(),
    number_column("round"),
    number_column("since_ms"),
    number_column("until_ms"),
    _body(),
    UniqueConstraint("job_id", "round", "since_ms"),
    Index(None, "job_id", "since_ms"),  # the last segments of a run
    Index(None, "until_ms"),  # retention
)

pod_run = define_table(
    "pod_run",
    id_column(),
    _job_id(),
    text_column("role", WORD),
    number_column("rank"),
    number_column("number"),
    number_column("ended_ms", nullable=True),
    _body(),
    UniqueConstraint("job_id", "role", "rank", "number"),
    Index(None, "ended_ms"),  # retention
)
"""The unique constraint serves the pods of a run, by job, role and rank."""

node_speed = define_table(
    "node_speed",
    Column("cluster", String(CLUSTER), primary_key=True),
    Column("node", String(NAME), primary_key=True),
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    _body(),
    Index(None, "day"),  # retention, and the last days of all nodes
)

action = define_table(
    "action",
    id_column(),
    _job_id(),
    number_column("at_ms"),
    text_column("verdict", WORD),
    _body(),
    Index(None, "job_id", "at_ms"),  # actions of a job
    Index(None, "verdict", "at_ms"),  # open actions: the verdict is pending
    Index(None, "at_ms"),  # the budget of the cluster, retention
)

forgotten = define_table(
    "forgotten", Column("digest", String(DIGEST), primary_key=True), number_column("at_ms")
)
"""Salted digests of owners, namespaces and jobs; jobs submitted before ``at_ms`` do not return."""

job_record = define_table(
    "job_record",
    id_column(),
    _job_id(),
    number_column("at_ms"),
    number_column("size_bytes"),
    number_column("gpu_seconds"),
    number_column("cpu_seconds"),
    number_column("productive_seconds", nullable=True),
    _body(),
    Column("spec", Blob, nullable=True),
    Column("curves", Blob, nullable=True),
    UniqueConstraint("job_id"),
    Index(None, "at_ms", "size_bytes"),  # retention by age and by size, usage of a month
)
"""A record is replaced while its job runs. ``at_ms``: when the job ended, or was observed last.
``gpu_seconds`` and ``cpu_seconds``: what pods had reserved, times how long they ran.
``productive_seconds``: GPU seconds of productive steps; NULL if the job does not account for its
time. ``spec``, ``curves`` and ``lines`` are JSON, compressed by zlib. ``size_bytes`` counts what a
row holds, so that the sum over all rows is read from an index."""

job_log = define_table(
    "job_log",
    id_column(),
    _job_id(),
    Column("pod", String(NAME), nullable=False),
    number_column("attempt"),
    Column("container", String(WORD), nullable=False),
    Column("replica", String(NAME), nullable=False),
    number_column("at_ms"),
    number_column("size_bytes"),
    Column("lines", Blob, nullable=False),
    UniqueConstraint("job_id", "pod", "attempt", "container"),
    Index(None, "at_ms", "size_bytes"),  # retention by age and by size
)
"""``at_ms``: when the replica failed."""
