"""Who used how much: devices and cores times hours, by queue, owner, kind, namespace or month."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gangline.dashboard.views.base import View

GROUPS = ("queue", "owner", "kind", "namespace", "month")
MONTHS = 12


class UsageLine(View, frozen=True):
    key: str
    jobs: int
    gpu_hours: float
    core_hours: float
    productive: float | None = None
    """Share of the GPU hours in productive steps, of jobs that account for their time; None if no
    job does."""
    share: float = 0.0
    """Of all rows: of the GPU hours, or of the core hours if no job had GPUs."""


class UsageView(View, frozen=True):
    by: str
    month: str
    """Such as ``2026-11``; empty: all of the time."""
    months: tuple[str, ...]
    """Months that can be chosen, the last first."""
    rows: tuple[UsageLine, ...] = ()
    problem: str = ""
    """Why there is no account; empty if there is one."""


def usage_view(
    rows: Sequence[Mapping[str, Any]], by: str, month: str, months: Sequence[str]
) -> UsageView:
    unit = "gpu_seconds" if any(row["gpu_seconds"] for row in rows) else "cpu_seconds"
    total = sum(row[unit] for row in rows)
    shown = (
        UsageLine(
            key=row["key"],
            jobs=row["jobs"],
            gpu_hours=row["gpu_seconds"] / 3600,
            core_hours=row["cpu_seconds"] / 3600,
            productive=row["productive_seconds"] / row["accounted_seconds"]
            if row["accounted_seconds"]
            else None,
            share=row[unit] / total if total else 0.0,
        )
        for row in rows
    )
    return UsageView(by, month, tuple(months), tuple(shown))


def to_csv(view: UsageView) -> str:
    """Return the rows as CSV; no cell is a formula of a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((view.by, "jobs", "gpu_hours", "core_hours", "productive_share"))
    for row in view.rows:
        productive = "" if row.productive is None else f"{row.productive:.4f}"
        key = f"'{row.key}" if row.key.startswith(("=", "+", "-", "@")) else row.key
        hours = (f"{row.gpu_hours:.3f}", f"{row.core_hours:.3f}")
        writer.writerow((key, row.jobs, *hours, productive))
    return text.getvalue()


def months_before(now: datetime) -> Iterable[str]:
    """Yield the names of this month and of those before it."""
    year, month = now.year, now.month
    for _ in range(MONTHS):
        yield f"{year}-{month:02}"
        year, month = (year, month - 1) if month > 1 else (year - 1, 12)


def month_bounds(month: str) -> tuple[int, int] | None:
    """Return the first time of a month and the first after it, in milliseconds (UTC); None if the
    text is not a month.
    """
    try:
        first = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        return None
    after = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return round(first.timestamp() * 1000), round(after.timestamp() * 1000)
