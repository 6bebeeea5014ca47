"""Histograms of usage from pod runs: the same from the same rows, whatever happened before."""

from collections.abc import Iterable

from sqlalchemy import Connection, select

from gangline.brain.models.histogram import Histogram
from gangline.brain.store.records import HISTOGRAM_KINDS, Scope, UsageHistogram
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.bulk import upsert
from gangline.brain.store.writing.models import histogram_row
from gangline.brain.store.writing.removal import delete_families_learned

_MAX_SAMPLES = 20_000
"""Pod runs of a family, the latest ones."""


def rebuild_histograms(connection: Connection, families: Iterable[int]) -> None:
    """Make the histograms of families from their pod runs, in the place of those that exist."""
    for number in sorted(families):
        delete_families_learned(connection, [number])
        made = [
            histogram_row(each, Scope.FAMILY, number)
            for each in _family_histograms(connection, number)
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
