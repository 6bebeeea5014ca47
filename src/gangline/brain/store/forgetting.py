"""Forgets jobs of an owner, a namespace or a name: rows, what was learned of them, and mentions.

A salted mark remains, so that a re-list of the API server does not bring the same jobs back. Jobs
that are submitted later are stored again.

Histograms of usage from pod runs: the same from the same rows, whatever happened before.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, Connection, delete, select, update

from gangline.brain.advisers.advice import Advice
from gangline.brain.models.histogram import Histogram
from gangline.brain.store.batch import MAX_ROWS
from gangline.brain.store.context import Context
from gangline.brain.store.records import HISTOGRAM_KINDS, Scope, UsageHistogram
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.bulk import upsert
from gangline.brain.store.writing.models import (
    MAX_JOBS,
    delete_families_learned,
    histogram_row,
    remove_children,
    remove_jobs,
)

_MAX_SAMPLES = 20_000
"""Pod runs of a family, the latest ones."""


def rebuild_histograms(connection: Connection, families: Iterable[int]) -> None:
    """Make the histograms of families from their pod runs, in the place of those that exist."""
    for number in sorted(families):
        delete_families_learned(connection, [number])
        made = [
            histogram_row(family_histogram, Scope.FAMILY, number)
            for family_histogram in _family_histograms(connection, number)
        ]
        keys = ("scope_type", "scope_id", "role", "resource", "version")
        upsert(connection, tables.usage_histogram, made, keys)


def _family_histograms(connection: Connection, number: int) -> list[UsageHistogram]:
    """One sample for each pod run: the peak of its memory, and the p95 of its CPU."""
    pod, job = tables.pod_run.c, tables.job.c
    query = (
        select(pod.role, pod.ended_ms, pod.peak_memory_bytes, pod.cpu_p95_millis)
        .join_from(tables.pod_run, tables.job)
        .where(job.family_id == number, pod.ended_ms.is_not(None), pod.oom.is_(False))
        .order_by(job.id.desc())
        .limit(_MAX_SAMPLES)
    )
    found: dict[tuple[str, str], Histogram] = {}
    for row in connection.execute(query):
        for resource, value in (("memory", row.peak_memory_bytes), ("cpu", row.cpu_p95_millis)):
            if value:
                kind = HISTOGRAM_KINDS[resource]
                histogram = found.setdefault((row.role, resource), Histogram(kind))
                histogram.add(value, row.ended_ms)
    return [
        UsageHistogram(role=role, resource=resource, histogram=histogram)
        for (role, resource), histogram in sorted(found.items(), key=lambda item: item[0])
    ]


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
    families: int
    """Families of which other jobs are left; their histograms were made from those."""
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
        jobs, families, uids = 0, set[int](), set[str]()
        for page in self._pages(condition):
            uids.update(uid for _, _, uid in page)
            families.update(family for _, family, _ in page)
            marks = [self._context.mark("uid", asked.cluster, uid) for _, _, uid in page]
            self._context.write(partial(_mark, digests=marks, now_ms=now_ms))
            jobs += self._remove(asked.cluster, [number for number, _, _ in page])
        left = self._rebuild(sorted(families))
        return Forgotten(jobs=jobs, families=left, advice=self._remove_mentions(uids))

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

    def _pages(self, condition: ColumnElement[bool]) -> Iterator[list[tuple[int, int, str]]]:
        job = tables.job.c
        query = select(job.id, job.family_id, job.uid).where(condition).order_by(job.id)

        def page(connection: Connection) -> list[tuple[int, int, str]]:
            return [tuple(row) for row in connection.execute(query.limit(MAX_JOBS))]

        while found := self._context.read(page):
            yield found

    def _remove(self, cluster: str, ids: Sequence[int]) -> int:
        removed = 0
        while not removed:
            while self._context.write(lambda connection: remove_children(connection, ids)):
                pass
            removed = self._context.write(lambda connection: remove_jobs(connection, cluster, ids))
        return removed

    def _rebuild(self, families: Sequence[int]) -> int:
        family = tables.family.c
        left = 0
        for number in families:

            def transaction(connection: Connection, number: int = number) -> int:
                query = select(family.id).where(family.id == number)
                found = list(connection.execute(query).scalars())
                rebuild_histograms(connection, found)
                return len(found)

            left += self._context.write(transaction)
        return left

    def _remove_mentions(self, uids: set[str]) -> int:
        """Delete advice for other jobs whose evidence names a forgotten run."""
        advice = tables.advice
        last_id, removed = 0, 0
        while uids:

            def page(connection: Connection, last_id: int = last_id) -> list[tuple[int, str]]:
                query = select(advice.c.id, advice.c.body).where(advice.c.id > last_id)
                rows = connection.execute(query.order_by(advice.c.id).limit(MAX_ROWS))
                return [tuple(row) for row in rows]

            found = self._context.read(page)
            if not found:
                break
            last_id = found[-1][0]
            ids = [
                number
                for number, body in found
                if not uids.isdisjoint(msgspec.json.decode(body, type=Advice).evidence)
            ]
            if ids:
                self._context.write(partial(_delete_advice, ids=ids))
                removed += len(ids)
        return removed


_KEYS: Final = ("digest",)


def _mark(connection: Connection, digests: Sequence[str], now_ms: int) -> None:
    rows = [{"digest": digest, "at_ms": now_ms} for digest in sorted(set(digests))]
    upsert(connection, tables.forgotten, rows, _KEYS)


def _delete_advice(connection: Connection, ids: Sequence[int]) -> None:
    action, advice = tables.action, tables.advice
    connection.execute(update(action).where(action.c.advice_id.in_(ids)).values(advice_id=None))
    connection.execute(delete(advice).where(advice.c.id.in_(ids)))
