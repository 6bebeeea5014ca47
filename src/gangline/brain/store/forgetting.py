"""Forgets jobs of an owner, a namespace or a name: rows, what was learned of them, and mentions.

A salted mark remains, so that a re-list of the API server does not bring the same jobs back. Jobs
that are submitted later are stored again.

Histograms of usage from pod runs: the same from the same rows, whatever happened before.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, select

from gangline.brain.advisers.advice import Advice
from gangline.brain.store.batch import MAX_ROWS
from gangline.brain.store.context import Context
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.bulk import upsert
from gangline.brain.store.writing.models import (
    MAX_JOBS,
    delete_rows,
    remove_children,
    remove_jobs,
)


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


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """What was forgotten."""

    jobs: int
    advice: int
    """Advice for other jobs that rested on forgotten ones."""


class Forgetting:
    """Forgets, in transactions of at most 500 rows; it can be repeated if it was interrupted."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def run(self, asked: Forget) -> Forgotten:
        """Forget, and return what was found.

        Raises:
            StoreError: the database failed. The marks are written first: repeat it.
        """
        condition, named = self._meaning(asked)
        now_ms = self._context.clock_ms()
        self._context.write(partial(_mark, digests=named, now_ms=now_ms))
        jobs, uids = 0, set[str]()
        for page in self._pages(condition):
            uids.update(uid for _, uid in page)
            marks = [self._context.mark("uid", asked.cluster, uid) for _, uid in page]
            self._context.write(partial(_mark, digests=marks, now_ms=now_ms))
            jobs += self._remove(asked.cluster, [number for number, _ in page])
        return Forgotten(jobs=jobs, advice=self._remove_mentions(uids))

    def _meaning(self, asked: Forget) -> tuple[ColumnElement[bool], list[str]]:
        """Condition for the jobs, and marks; of names both as they are and as digests."""
        job, mark = tables.job.c, self._context.mark
        cluster = job.cluster == asked.cluster
        if asked.owner:
            owners = self._context.possible_names(asked.owner)
            marks = [mark("owner", asked.cluster, owner) for owner in owners]
            return cluster & job.owner.in_(owners), marks
        namespace = cluster & (job.namespace == asked.namespace)
        if not asked.name:
            return namespace, [mark("namespace", asked.cluster, asked.namespace)]
        names = self._context.possible_names(asked.name)
        marks = [mark("job", asked.cluster, asked.namespace, name) for name in names]
        return namespace & job.name.in_(names), marks

    def _pages(self, condition: ColumnElement[bool]) -> Iterator[list[tuple[int, str]]]:
        """Numbers and UIDs of the jobs; each page must be removed before the next is read."""
        job = tables.job.c
        query = select(job.id, job.uid).where(condition).order_by(job.id).limit(MAX_JOBS)
        while jobs := self._context.read(
            lambda connection: [tuple(row) for row in connection.execute(query)]
        ):
            yield jobs

    def _remove(self, cluster: str, ids: Sequence[int]) -> int:
        removed = 0
        while not removed:
            while self._context.write(lambda connection: remove_children(connection, ids)):
                pass
            removed = self._context.write(lambda connection: remove_jobs(connection, cluster, ids))
        return removed

    def _remove_mentions(self, uids: set[str]) -> int:
        """Delete advice for other jobs whose evidence names a forgotten run."""
        last_id, removed = 0, 0
        while uids:
            rows = self._context.read(partial(_advice_after, last_id=last_id))
            if not rows:
                break
            last_id = rows[-1].id
            ids = [
                row.id
                for row in rows
                if not uids.isdisjoint(msgspec.json.decode(row.body, type=Advice).evidence)
            ]
            if ids:
                self._context.write(partial(delete_rows, table=tables.advice, ids=ids))
                removed += len(ids)
        return removed


def _advice_after(connection: Connection, last_id: int) -> Sequence[Row[tuple[int, str]]]:
    advice = tables.advice.c
    query = select(advice.id, advice.body).where(advice.id > last_id)
    return connection.execute(query.order_by(advice.id).limit(MAX_ROWS)).all()


def _mark(connection: Connection, digests: Sequence[str], now_ms: int) -> None:
    rows = [{"digest": digest, "at_ms": now_ms} for digest in sorted(set(digests))]
    upsert(connection, tables.forgotten, rows, ("digest",))
