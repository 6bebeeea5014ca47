"""Deletes what is older than the settings allow: small transactions with pauses between them.

Segments go first, then pod runs, and jobs last; a family goes with its last job. The history that
remains says less about old jobs, and still how they ended.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

import msgspec
from sqlalchemy import Connection, Table, delete, exists, select

from gangline.brain.store.batch import MAX_ROWS
from gangline.brain.store.context import Context
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.bulk import any_of
from gangline.brain.store.writing.models import (
    MAX_JOBS,
    delete_rows,
    remove_children,
    remove_jobs,
)

_DAY_MS: Final = 86_400_000
_HOUR_MS: Final = 3_600_000

Step = Callable[[Connection], int]
"""Deletes or checks at most 500 rows and returns how many; 0: nothing is left to do."""


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How many days what is kept."""

    segments_days: int = 90
    pods_days: int = 180
    jobs_days: int = 400
    """Also of advice, actions, speeds of nodes, and marks of what was forgotten."""


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
        yield "segment", _OldRows(tables.segment, "until_ms", segments_before).step
        yield "pod_run", _OldRows(tables.pod_run, "ended_ms", pods_before).step
        yield "action", _OldRows(tables.action, "at_ms", jobs_before).step
        yield "advice", _OldRows(tables.advice, "at_ms", jobs_before).step
        yield "job", lambda connection: self._old_jobs(connection, jobs_before)
        yield "node_speed", self._old_speeds
        yield "forgotten", self._old_marks
        yield "checked_node", _UnusedNodes().step

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

    def _old_speeds(self, connection: Connection) -> int:
        speed = tables.node_speed
        before_day = self._before(self._settings.jobs_days) // _DAY_MS
        columns = (speed.c.node_id, speed.c.day)
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
        found = connection.execute(query.order_by(column).limit(MAX_ROWS)).all()
        if found:
            # Not the last one: if this transaction is repeated, it finds these rows again.
            self._from_ms = found[0][1]
            delete_rows(connection, self._table, [row[0] for row in found])
        return len(found)


class _UnusedNodes:
    """Deletes nodes without pod runs and speeds, page by page: no index knows them."""

    def __init__(self) -> None:
        self._last_id = 0

    def step(self, connection: Connection) -> int:
        node = tables.node
        page = select(node.c.id).where(node.c.id > self._last_id).order_by(node.c.id)
        ids = list(connection.execute(page.limit(MAX_ROWS)).scalars())
        if not ids:
            return 0
        used = [
            exists().where(child.c.node_id == node.c.id)
            for child in (tables.pod_run, tables.node_speed)
        ]
        unused = select(node.c.id).where(node.c.id.in_(ids), ~used[0], ~used[1])
        found = list(connection.execute(unused).scalars())
        if found:
            connection.execute(delete(node).where(node.c.id.in_(found)))
        self._last_id = ids[-1]
        return len(ids)
