"""Writes what is derived from facts: histograms, fits, prices, predictions."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Table, select

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
from gangline.brain.store.sql.bulk import upsert


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
