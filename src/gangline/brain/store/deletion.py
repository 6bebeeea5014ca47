"""Deletes jobs with everything that refers to them: what is old, and what is to be forgotten.

Every transaction deletes at most 500 rows, with pauses between those of the retention, so readers
and other writers hardly wait. Retention: segments go first, then pod runs, and jobs last.
Forgetting is by owner, namespace or name. A salted mark remains, so that a re-list of the API
server does not bring the same jobs back; jobs submitted later are stored.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, delete, func, select

from gangline.brain.store.batch import MAX_ROWS
from gangline.brain.store.context import Context
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.bulk import among, any_of, lock_cluster, upsert
from gangline.brain.store.sql.tables import job_log, job_record

_RECORDS: Final = (job_log, job_record)
MAX_JOBS: Final = 20
"""Removed together."""

_CHILDREN: Final = (tables.segment, tables.pod_run, tables.action, job_log, job_record)


def delete_some(connection: Connection, table: Table, condition: ColumnElement[bool]) -> int:
    """Delete at most 500 rows of a table with an id; return how many."""
    query = select(table.c.id).where(condition).limit(MAX_ROWS)
    ids = list(connection.execute(query).scalars())
    delete_rows(connection, table, ids)
    return len(ids)


def delete_rows(connection: Connection, table: Table, ids: Sequence[int]) -> None:
    """Delete rows of a table with an id; their number must be bounded."""
    if ids:
        connection.execute(delete(table).where(among(connection, table.c.id, ids)))


def remove_children(connection: Connection, jobs: Sequence[int]) -> int:
    """Delete at most 500 rows that refer to ``jobs``; 0 if there are none left."""
    for table in _CHILDREN:
        deleted = delete_some(connection, table, table.c.job_id.in_(jobs))
        if deleted:
            return deleted
    return 0


def remove_jobs(connection: Connection, cluster: str, jobs: Sequence[int]) -> int:
    """Delete at most ``MAX_JOBS`` jobs.

    Returns 0, and deletes nothing, if rows refer to them again: remove those first.
    """
    lock_cluster(connection, cluster)  # no fact of these jobs is written meanwhile
    job = tables.job
    for table in _CHILDREN:
        left = select(table.c.id).where(table.c.job_id.in_(jobs)).limit(1)
        if connection.execute(left).first() is not None:
            return 0
    return connection.execute(delete(job).where(job.c.id.in_(jobs))).rowcount


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


class Pruning:
    """One run of deletions. ``deleted`` counts rows by table."""

    def __init__(self, context: Context, settings: RetentionSettings, now_ms: int) -> None:
        self._context = context
        self._settings = settings
        self._now_ms = now_ms
        self.deleted: Counter[str] = Counter()

    async def run(
        self, in_writer: Callable[[Callable[[], int]], Awaitable[int]], pause_s: float
    ) -> None:
        """Make all steps, each by ``in_writer``, with ``pause_s`` seconds after each."""
        for name, step in self.steps():
            while deleted := await in_writer(partial(self._context.write, step)):
                self.deleted[name] += deleted
                await asyncio.sleep(pause_s)

    def steps(self) -> Iterator[tuple[str, Step]]:
        """Name and step, in the order in which they are repeated until nothing is left."""
        settings = self._settings
        segments_before = self._before(settings.segments_days)
        pods_before = self._before(settings.pods_days)
        jobs_before = self._before(settings.jobs_days)
        records_before = self._before(settings.records_days)
        yield "segment", _OldRows(tables.segment, "until_ms", segments_before).step
        yield "pod_run", _OldRows(tables.pod_run, "ended_ms", pods_before).step
        yield "action", _OldRows(tables.action, "at_ms", jobs_before).step
        yield "job_log", _OldRows(job_log, "at_ms", records_before).step
        yield "job_record", _OldRows(job_record, "at_ms", records_before).step
        yield "job_record", self._surplus_records
        yield "job", lambda connection: self._old_jobs(connection, jobs_before)
        yield "node_speed", self._old_speeds
        yield "forgotten", self._old_marks

    def _before(self, days: int) -> int:
        return self._now_ms - days * _DAY_MS

    def _old_jobs(self, connection: Connection, before_ms: int) -> int:
        job = tables.job.c
        # Each cluster has a row in this table, and the index of jobs begins with the cluster.
        for cluster in list(connection.execute(select(tables.leader.c.cluster)).scalars()):
            finished = select(job.id).where(job.cluster == cluster, job.finished_ms < before_ms)
            lost = select(job.id).where(
                job.cluster == cluster, job.finished_ms.is_(None), job.submitted_ms < before_ms
            )
            for query in (finished, lost):
                ids = list(connection.execute(query.limit(MAX_JOBS)).scalars())
                if ids:
                    return remove_children(connection, ids) or remove_jobs(connection, cluster, ids)
        return 0

    def _surplus_records(self, connection: Connection) -> int:
        """Delete the oldest records while all of them are larger than allowed."""
        sizes = [select(func.coalesce(func.sum(table.c.size_bytes), 0)) for table in _RECORDS]
        surplus = sum(connection.execute(size).scalar_one() for size in sizes)
        surplus -= self._settings.records_bytes
        record = job_record.c
        oldest = select(record.job_id, record.size_bytes).order_by(record.at_ms).limit(MAX_JOBS)
        jobs: list[int] = []
        for job_id, size in connection.execute(oldest):
            if surplus <= 0:
                break
            logs = select(func.coalesce(func.sum(job_log.c.size_bytes), 0))
            surplus -= (
                size + connection.execute(logs.where(job_log.c.job_id == job_id)).scalar_one()
            )
            jobs.append(job_id)
        for table in _RECORDS if jobs else ():
            connection.execute(delete(table).where(table.c.job_id.in_(jobs)))
        return len(jobs)

    def _old_speeds(self, connection: Connection) -> int:
        speed = tables.node_speed
        before_day = self._before(self._settings.jobs_days) // _DAY_MS
        columns = (speed.c.cluster, speed.c.node, speed.c.day)
        query = select(*columns).where(speed.c.day < before_day)
        keys = [tuple(row) for row in connection.execute(query.limit(MAX_ROWS))]
        if keys:
            connection.execute(delete(speed).where(any_of(connection, columns, keys)))
        return len(keys)

    def _old_marks(self, connection: Connection) -> int:
        forgotten = tables.forgotten
        query = select(forgotten.c.digest).where(
            forgotten.c.at_ms < self._before(self._settings.jobs_days)
        )
        digests = list(connection.execute(query.limit(MAX_ROWS)).scalars())
        if digests:
            connection.execute(delete(forgotten).where(forgotten.c.digest.in_(digests)))
        return len(digests)


class _OldRows:
    """Deletes the rows of a table before some time, the oldest first.

    Entries of deleted rows stay in an index until the server cleans it. So that a batch does not
    read those of all batches before it again, it starts where the last one did.
    """

    def __init__(self, table: Table, column: str, before_ms: int) -> None:
        self._table, self._column, self._before_ms = table, table.c[column], before_ms
        self._from_ms: int | None = None

    def step(self, connection: Connection) -> int:
        column = self._column
        query = select(self._table.c.id, column).where(column < self._before_ms)
        if self._from_ms is not None:
            query = query.where(column >= self._from_ms)
        rows = connection.execute(query.order_by(column).limit(MAX_ROWS)).all()
        if rows:
            # Not the last one: if this transaction is repeated, it finds these rows again.
            self._from_ms = rows[0][1]
            delete_rows(connection, self._table, [row[0] for row in rows])
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
    while page := context.read(
        lambda connection: [tuple(row) for row in connection.execute(query)]
    ):
        marks = [context.mark("uid", asked.cluster, uid) for _, uid in page]
        context.write(partial(_mark, digests=marks, now_ms=now_ms))
        jobs += _remove(context, asked.cluster, [number for number, _ in page])
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


def _remove(context: Context, cluster: str, ids: Sequence[int]) -> int:
    removed = 0
    while not removed:
        while context.write(lambda connection: remove_children(connection, ids)):
            pass
        removed = context.write(lambda connection: remove_jobs(connection, cluster, ids))
    return removed


def _mark(connection: Connection, digests: Sequence[str], now_ms: int) -> None:
    rows = [{"digest": digest, "at_ms": now_ms} for digest in sorted(set(digests))]
    upsert(connection, tables.forgotten, rows, ("digest",))
