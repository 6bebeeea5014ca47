"""The tables of the records of job runs, beside those of ``tables``, whose conventions they have.

A record is one row, which is replaced while its job runs; the tail of a failed replica is written
once. ``spec``, ``curves`` and ``lines`` are JSON, compressed by zlib. ``size_bytes`` counts what a
row holds, so that the sum over all rows is read from an index.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    String,
    Table,
    UniqueConstraint,
)

from gangline.brain.facts.belief import NAME_LENGTH as NAME
from gangline.brain.facts.belief import WORD_LENGTH as WORD
from gangline.brain.store.sql.tables import MYSQL, Blob, Id, Leaf, metadata

job_record = Table(
    "job_record",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("job_id", Id, ForeignKey("job.id"), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("gpu_seconds", BigInteger, nullable=False),
    Column("cpu_seconds", BigInteger, nullable=False),
    Column("productive_seconds", BigInteger, nullable=True),
    Column("body", Leaf, nullable=False),
    Column("spec", Blob, nullable=True),
    Column("curves", Blob, nullable=True),
    UniqueConstraint("job_id"),
    Index(None, "at_ms", "size_bytes"),  # retention by age and by size, usage of a month
    **MYSQL,
)
"""``at_ms``: when the job ended, or was observed last. ``gpu_seconds`` and ``cpu_seconds``: what
pods had reserved, times how long they ran. ``productive_seconds``: GPU seconds of productive steps;
NULL if the job does not account for its time."""

job_log = Table(
    "job_log",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("job_id", Id, ForeignKey("job.id"), nullable=False),
    Column("pod", String(NAME), nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("container", String(WORD), nullable=False),
    Column("replica", String(NAME), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("lines", Blob, nullable=False),
    UniqueConstraint("job_id", "pod", "attempt", "container"),
    Index(None, "at_ms", "size_bytes"),  # retention by age and by size
    **MYSQL,
)
"""``at_ms``: when the replica failed."""
