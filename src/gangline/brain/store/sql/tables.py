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


def _body() -> Column[str]:
    return Column("body", Leaf, nullable=False)


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

job = _table(
    "job",
    _id(),
    _text("cluster", CLUSTER),
    _text("uid", UID),
    _text("namespace", NAMESPACE),
    _text("name", NAME),
    _text("stem", NAME),
    _text("kind", WORD),
    _text("owner", NAME),
    _text("queue", NAME),
    _at("submitted_ms"),
    _number("finished_ms"),
    _text("outcome", WORD),
    Column("complete", Boolean(create_constraint=False), nullable=False),
    # Keyed hashes of what the levels of similarity compare: one index range for each level.
    _number("spec_key"),
    _number("family_key"),
    _number("base_key"),
    _number("image_key"),
    _number("model_key"),
    _body(),
    UniqueConstraint("cluster", "uid"),
    Index(None, "spec_key", "outcome", "complete", "finished_ms"),  # similar jobs, level 0
    Index(None, "family_key", "outcome", "complete", "finished_ms"),  # level 1
    Index(None, "base_key", "outcome", "complete", "finished_ms"),  # level 2
    Index(None, "image_key", "outcome", "complete", "finished_ms"),  # level 3
    Index(None, "model_key", "outcome", "complete", "finished_ms"),  # level 4
    Index(None, "cluster", "namespace", "owner", "finished_ms"),  # history of an owner
    Index(None, "cluster", "namespace", "name", "submitted_ms"),  # a job by its name
    Index(None, "cluster", "finished_ms"),  # history of a cluster, retention
)

segment = _table(
    "segment",
    _id(),
    _reference("job_id", "job"),
    _number("round", default=0),
    _at("since_ms"),
    _at("until_ms"),
    _body(),
    UniqueConstraint("job_id", "round", "since_ms"),
    Index(None, "job_id", "since_ms"),  # the last segments of a run
    Index(None, "until_ms"),  # retention
)

pod_run = _table(
    "pod_run",
    _id(),
    _reference("job_id", "job"),
    _text("role", WORD),
    _number("rank", default=0),
    _number("number", default=0),
    _number("ended_ms"),
    _body(),
    UniqueConstraint("job_id", "role", "rank", "number"),
    Index(None, "ended_ms"),  # retention
)
"""The unique constraint serves the pods of a run, by job, role and rank."""

node_speed = _table(
    "node_speed",
    Column("cluster", String(CLUSTER), primary_key=True),
    Column("node", String(NAME), primary_key=True),
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    _body(),
    Index(None, "day"),  # retention, and the last days of all nodes
)

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
    _body(),
    Index(None, "job_id", "state"),  # open advice of a job
    Index(None, "state", "expires_ms"),  # what has expired
    Index(None, "at_ms"),  # retention
)

action = _table(
    "action",
    _id(),
    _reference("advice_id", "advice", nullable=True),
    _reference("job_id", "job"),
    _text("what", WORD),
    _text("plan", NAME),
    _at("at_ms"),
    _body(),
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
