"""Writes what is derived from facts: histograms, fits, prices, predictions.

Removes jobs with everything that refers to them, in transactions of at most 500 rows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Table, delete, exists, select, update

from gangline.brain.store.batch import MAX_ROWS
from gangline.brain.store.context import Context
from gangline.brain.store.errors import UnknownJob
from gangline.brain.store.records import (
    HISTOGRAM_VERSION,
    FitRecord,
    PriceRecord,
    Scope,
    SizingRecord,
    UsageHistogram,
)
from gangline.brain.store.sql import rows, tables
from gangline.brain.store.sql.bulk import among, lock_cluster, upsert

MAX_JOBS: Final = 20
"""Removed together: with their sizes of roles they are fewer than 500 rows."""

_CHILDREN: Final = (tables.segment, tables.pod_run, tables.sizing, tables.action, tables.advice)
"""In the order in which they can be deleted: actions refer to advice."""
_DETAILS: Final = (tables.role_size, tables.model)


def delete_some(connection: Connection, table: Table, condition: ColumnElement[bool]) -> int:
    """Delete at most 500 rows of a table with an id; return how many."""
    query = select(table.c.id).where(condition).limit(MAX_ROWS)
    ids = list(connection.execute(query).scalars())
    delete_rows(connection, table, ids)
    return len(ids)


def delete_rows(connection: Connection, table: Table, ids: Sequence[int]) -> None:
    """Delete rows of a table with an id; their number must be bounded."""
    if not ids:
        return
    if table is tables.advice:
        # An action of another job never refers to it, one of the same job may be younger.
        action = tables.action
        connection.execute(
            update(action).where(among(connection, action.c.advice_id, ids)).values(advice_id=None)
        )
    connection.execute(delete(table).where(among(connection, table.c.id, ids)))


def remove_children(connection: Connection, jobs: Sequence[int]) -> int:
    """Delete at most 500 rows that refer to ``jobs``; 0 if there are none left."""
    for table in _CHILDREN:
        deleted = delete_some(connection, table, table.c.job_id.in_(jobs))
        if deleted:
            return deleted
    return 0


def remove_jobs(connection: Connection, cluster: str, jobs: Sequence[int]) -> int:
    """Delete at most ``MAX_JOBS`` jobs, and their families if these have no other job.

    Returns 0, and deletes nothing, if rows refer to them again: remove those first.
    """
    lock_cluster(connection, cluster)  # no fact of these jobs is written meanwhile
    job = tables.job
    for table in _CHILDREN:
        left = select(table.c.id).where(table.c.job_id.in_(jobs)).limit(1)
        if connection.execute(left).first() is not None:
            return 0
    query = select(job.c.family_id, job.c.image_id).where(job.c.id.in_(jobs))
    found = connection.execute(query).all()
    families = Counter(row.family_id for row in found)
    for table in _DETAILS:
        connection.execute(delete(table).where(table.c.job_id.in_(jobs)))
    _delete_learned(connection, Scope.JOB, jobs)
    deleted = connection.execute(delete(job).where(job.c.id.in_(jobs))).rowcount
    family = tables.family
    for count in sorted(set(families.values())):
        same = sorted(number for number, each in families.items() if each == count)
        connection.execute(
            update(family)
            .where(among(connection, family.c.id, same))
            .values(jobs=family.c.jobs - count)
        )
    empty = (family.c.id.in_(sorted(families))) & (family.c.jobs <= 0)
    gone = list(connection.execute(select(family.c.id).where(empty)).scalars())
    if gone:
        _delete_learned(connection, Scope.FAMILY, gone)
        connection.execute(delete(family).where(family.c.id.in_(gone)))
    _delete_unused_images(connection, {row.image_id for row in found})
    return int(deleted)


def _delete_unused_images(connection: Connection, images: set[int]) -> None:
    job, image = tables.job.c, tables.image
    used = exists().where(job.image_id == image.c.id)
    query = select(image.c.id).where(image.c.id.in_(sorted(images)), ~used)
    unused = list(connection.execute(query).scalars())
    if unused:
        connection.execute(delete(image).where(image.c.id.in_(unused)))


def delete_families_learned(connection: Connection, families: Sequence[int]) -> None:
    """Delete histograms and fits of families."""
    _delete_learned(connection, Scope.FAMILY, families)


def _delete_learned(connection: Connection, scope: Scope, numbers: Sequence[int]) -> None:
    for table in (tables.usage_histogram, tables.fit):
        connection.execute(
            delete(table).where(table.c.scope_type == scope.value, table.c.scope_id.in_(numbers))
        )


class ModelWriter:
    """Writes what the models have learned of a job or of its family."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def histograms(
        self, cluster: str, uid: str, histograms: Iterable[UsageHistogram], scope: Scope
    ) -> None:
        """Replace histograms of the job with this UID, or of its family.

        Raises:
            UnknownJob: the job is not stored.
        """
        found = list(histograms)
        self._write(
            tables.usage_histogram,
            ("scope_type", "scope_id", "role", "resource", "version"),
            lambda connection: [
                histogram_row(each, scope, scope_id(connection, cluster, uid, scope))
                for each in found
            ],
        )

    def fit(self, cluster: str, uid: str, fit: FitRecord, scope: Scope) -> None:
        """Replace the fit of one model of the job with this UID, or of its family.

        Raises:
            UnknownJob: the job is not stored.
        """

        def row(connection: Connection) -> dict[str, Any]:
            return {
                "scope_type": scope.value,
                "scope_id": scope_id(connection, cluster, uid, scope),
                "model": fit.model,
                "version": fit.version,
                "parameters": rows.leaf(fit.parameters),
                "covariance": None if fit.covariance is None else rows.leaf(fit.covariance),
                "points": fit.points,
                "error": fit.error,
                "at_ms": fit.at_ms,
                "validity": rows.leaf(fit.validity),
            }

        keys = ("scope_type", "scope_id", "model", "version")
        self._write(tables.fit, keys, lambda connection: [row(connection)])

    def prices(self, cluster: str, prices: Iterable[PriceRecord]) -> None:
        """Write prices of resources."""
        price_rows = [price_row(cluster, price, hourly=False) for price in prices]
        self._write(tables.price, ("cluster", "resource", "hourly", "at_ms"), lambda _: price_rows)

    def sizing(self, cluster: str, uid: str, sizing: SizingRecord) -> None:
        """Write a prediction for a job, or what was measured of it later.

        Raises:
            UnknownJob: the job is not stored.
        """

        def row(connection: Connection) -> dict[str, Any]:
            return {
                "job_id": scope_id(connection, cluster, uid, Scope.JOB),
                "at_ms": sizing.at_ms,
                "predicted": rows.leaf(sizing.predicted),
                "measured": None if sizing.measured is None else rows.leaf(sizing.measured),
            }

        self._write(tables.sizing, ("job_id", "at_ms"), lambda connection: [row(connection)])

    def _write(
        self,
        table: Table,
        keys: Sequence[str],
        make: Callable[[Connection], list[dict[str, Any]]],
    ) -> None:
        def transaction(connection: Connection) -> None:
            made = make(connection)
            for start in range(0, len(made), MAX_ROWS):
                upsert(connection, table, made[start : start + MAX_ROWS], keys)

        self._context.write(transaction)


def scope_id(connection: Connection, cluster: str, uid: str, scope: Scope) -> int:
    """Return the number of the job with this UID, or of its family.

    Raises:
        UnknownJob: the job is not stored.
    """
    job = tables.job.c
    column = job.id if scope is Scope.JOB else job.family_id
    query = select(column).where(job.cluster == cluster, job.uid == uid)
    found = connection.execute(query).scalar()
    if found is None:
        raise UnknownJob(cluster, uid)
    return int(found)


def histogram_row(each: UsageHistogram, scope: Scope, number: int) -> dict[str, Any]:
    """Columns of a histogram."""
    histogram = each.histogram
    return {
        "scope_type": scope.value,
        "scope_id": number,
        "role": each.role,
        "resource": each.resource,
        "version": HISTOGRAM_VERSION,
        "buckets": histogram.encode(),
        "peak": histogram.peak,
        "first_ms": histogram.first_ms,
        "last_ms": histogram.last_ms,
        "count": histogram.count,
    }


def price_row(cluster: str, price: PriceRecord, *, hourly: bool) -> dict[str, Any]:
    """Columns of a price."""
    return {
        "cluster": cluster,
        "resource": price.resource,
        "hourly": hourly,
        "at_ms": price.at_ms,
        "price": price.price,
        "free": price.free,
        "waiting": price.waiting,
    }
