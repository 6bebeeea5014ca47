"""Deletes jobs with everything that refers to them: what is old, and what is to be forgotten.

Every transaction deletes at most 500 rows, with pauses between those of the retention, so readers
and other writers hardly wait. Retention: segments go first, then pod runs, and jobs last.
Forgetting is by owner, namespace or name. A salted mark remains, so that a re-list of the API
server does not bring the same jobs back; jobs submitted later are stored.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, delete, func, select

from gangline.brain.store.context import MAX_ROWS, Context
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.rows import any_of, lock_cluster, upsert
from gangline.brain.store.sql.tables import job_log, job_record

_RECORDS: Final = (job_log, job_record)
MAX_JOBS: Final = 20
"""Removed together."""

_CHILDREN: Final = (tables.segment, tables.pod_run, tables.action, job_log, job_record)


def remove_jobs(connection: Connection, cluster: str, jobs: Sequence[int]) -> int:
    """Delete at most 500 rows that refer to jobs or, if there are none, at most ``MAX_JOBS`` jobs.

    Returns how many rows; 0: nothing is left.
    """
    lock_cluster(connection, cluster)  # no fact of these jobs is written meanwhile
    for table in _CHILDREN:
        query = select(table.c.id).where(table.c.job_id.in_(jobs)).limit(MAX_ROWS)
        if ids := list(connection.execute(query).scalars()):
            return connection.execute(delete(table).where(table.c.id.in_(ids))).rowcount
    return connection.execute(delete(tables.job).where(tables.job.c.id.in_(jobs))).rowcount


_DAY_MS: Final = 86_400_000

Step = Callable[[Connection], int]
"""Deletes or checks at most 500 rows and returns how many; 0: nothing is left to do."""


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How many days what is kept."""

    segments_days: int = 90
    pods_days: int = 180
    jobs_days: int = 400
    """Also of actions, speeds of nodes, and marks of what was forgotten."""
    records_days: int = 90
    """Records of runs, with the last lines of failed replicas."""
    records_bytes: int = 10 * 2**30
    """All records together; the oldest are deleted first."""


def pruning_steps(settings: RetentionSettings, now_ms: int) -> Iterator[tuple[str, Step]]:
    """Name and step, in the order in which they are repeated until nothing is left."""

    def old(table: Table, column: str, days: int, unit: int = 1) -> tuple[str, Step]:
        return table.name, _OldRows(table, column, (now_ms - days * _DAY_MS) // unit).step

    yield old(tables.segment, "until_ms", settings.segments_days)
    yield old(tables.pod_run, "ended_ms", settings.pods_days)
    yield old(tables.action, "at_ms", settings.jobs_days)
    yield old(job_log, "at_ms", settings.records_days)
    yield old(job_record, "at_ms", settings.records_days)
    yield "job_record", partial(_surplus_records, most_bytes=settings.records_bytes)
    yield "job", partial(_old_jobs, before_ms=now_ms - settings.jobs_days * _DAY_MS)
    yield old(tables.node_speed, "day", settings.jobs_days, _DAY_MS)
    yield old(tables.forgotten, "at_ms", settings.jobs_days)


def _old_jobs(connection: Connection, before_ms: int) -> int:
    job = tables.job.c
    lost = job.finished_ms.is_(None) & (job.submitted_ms < before_ms)
    # Each cluster has a row in this table, and the index of jobs begins with the cluster.
    for cluster in list(connection.execute(select(tables.leader.c.cluster)).scalars()):
        of_cluster = select(job.id).where(job.cluster == cluster).limit(MAX_JOBS)
        for is_old in (job.finished_ms < before_ms, lost):
            if ids := list(connection.execute(of_cluster.where(is_old)).scalars()):
                return remove_jobs(connection, cluster, ids)
    return 0


def _surplus_records(connection: Connection, most_bytes: int) -> int:
    """Delete the oldest records while all of them are larger than allowed."""
    sizes = [select(func.coalesce(func.sum(table.c.size_bytes), 0)) for table in _RECORDS]
    surplus = sum(connection.execute(size).scalar_one() for size in sizes) - most_bytes
    record = job_record.c
    oldest = select(record.job_id, record.size_bytes).order_by(record.at_ms).limit(MAX_JOBS)
    jobs: list[int] = []
    for job_id, size in connection.execute(oldest):
        if surplus <= 0:
            break
        logs = sizes[0].where(job_log.c.job_id == job_id)
        surplus -= size + connection.execute(logs).scalar_one()
        jobs.append(job_id)
    for table in _RECORDS if jobs else ():
        connection.execute(delete(table).where(table.c.job_id.in_(jobs)))
    return len(jobs)


class _OldRows:
    """Deletes the rows of a table whose ``column`` is below a number, the least first.

    Entries of deleted rows stay in an index until the server cleans it. So that a batch does not
    read those of all batches before it again, it starts where the last one did.
    """

    def __init__(self, table: Table, column: str, before: int) -> None:
        self._table, self._column, self._before = table, table.c[column], before
        self._from: int | None = None

    def step(self, connection: Connection) -> int:
        column, key = self._column, list(self._table.primary_key.columns)
        query = select(column, *key).where(column < self._before)
        if self._from is not None:
            query = query.where(column >= self._from)
        rows = connection.execute(query.order_by(column).limit(MAX_ROWS)).all()
        if rows:
            # Not the last one: if this transaction is repeated, it finds these rows again.
            self._from = rows[0][0]
            keys = [tuple(row[1:]) for row in rows]
            connection.execute(delete(self._table).where(any_of(connection, key, keys)))
        return len(rows)


class Forget(msgspec.Struct, frozen=True, kw_only=True):
    """What to forget in one cluster: one of owner, namespace, or namespace with name."""

    cluster: str
    owner: str = ""
    namespace: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        by_owner = bool(self.owner) and not (self.namespace or self.name)
        by_namespace = bool(self.namespace) and not self.owner
        if not self.cluster or not (by_owner or by_namespace):
            raise ValueError("give a cluster, and an owner, a namespace, or a namespace and a name")


def forget(context: Context, asked: Forget) -> int:
    """Forget, in transactions of at most 500 rows, and return the number of jobs.

    The marks are written first, so that it can be repeated if it was interrupted.
    """
    condition, named = _meaning(context, asked)
    now_ms = context.clock_ms()
    context.write(partial(_mark, digests=named, now_ms=now_ms))
    job = tables.job.c
    query = select(job.id, job.uid).where(condition).order_by(job.id).limit(MAX_JOBS)
    jobs = 0
    while page := context.read(lambda connection: list(connection.execute(query))):
        marks = [context.mark("uid", asked.cluster, uid) for _, uid in page]
        context.write(partial(_mark, digests=marks, now_ms=now_ms))
        ids = [number for number, _ in page]
        while context.write(partial(remove_jobs, cluster=asked.cluster, jobs=ids)):
            pass
        jobs += len(page)
    return jobs


def _meaning(context: Context, asked: Forget) -> tuple[ColumnElement[bool], list[str]]:
    """Condition for the jobs, and marks; of names both as they are and as digests."""
    job, mark = tables.job.c, context.mark
    cluster = job.cluster == asked.cluster
    if asked.owner:
        owners = context.possible_names(asked.owner)
        return cluster & job.owner.in_(owners), [mark("owner", asked.cluster, o) for o in owners]
    namespace = cluster & (job.namespace == asked.namespace)
    if not asked.name:
        return namespace, [mark("namespace", asked.cluster, asked.namespace)]
    names = context.possible_names(asked.name)
    marks = [mark("job", asked.cluster, asked.namespace, name) for name in names]
    return namespace & job.name.in_(names), marks


def _mark(connection: Connection, digests: Sequence[str], now_ms: int) -> None:
    rows = [{"digest": digest, "at_ms": now_ms} for digest in sorted(set(digests))]
    upsert(connection, tables.forgotten, rows, ("digest",))
