"""Queues as rows and blocks: the columns of vcctl first, then amounts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gangline.cli.output import format_table

if TYPE_CHECKING:
    from gangline.api.describe import ResourceList
    from gangline.api.scheduling import Queue
    from gangline.scheduler.explain import QueueUsage

HEAD = (
    "NAME",
    "WEIGHT",
    "STATE",
    "PARENT",
    "INQUEUE",
    "PENDING",
    "RUNNING",
    "UNKNOWN",
    "COMPLETED",
)
WIDE = ("PRIORITY", "ALLOCATED", "DESERVED", "CAPABILITY", "GUARANTEE", "RECLAIMABLE", "DEQUEUE")


def queue_table(queues: "Sequence[Queue]", *, wide: bool) -> str:
    rows = [[*_row(queue), *(_wide_cells(queue) if wide else ())] for queue in queues]
    return format_table([*HEAD, *(WIDE if wide else ())], rows)


def format_queue(queue: "Queue", uses: "Sequence[QueueUsage]") -> str:
    """Return one queue: its fields, then the figures of the queue and of its parents."""
    facts = dict(zip((*HEAD, *WIDE), (*_row(queue), *_wide_cells(queue)), strict=True))
    lines = [
        f"{name.capitalize() + ':':13}{value if value != '' else 'N/A'}"
        for name, value in facts.items()
    ]
    for use in uses:
        most = f", at most {use.most}" if use.most else ""
        lines += [
            "",
            f"{use.name} uses {use.used}: {use.share:.0%} of its fair share",
            f"  fair share {use.entitled}{most}",
            f"  with pending pods {use.requested}",
        ]
    return "\n".join(lines)


def _row(queue: "Queue") -> list[object]:
    spec, status = queue.spec, queue.status
    counts = (status.inqueue, status.pending, status.running, status.unknown, status.completed)
    weight = 1 if spec.weight is None else spec.weight
    return [queue.metadata.name, weight, status.state or "Open", spec.parent or "root", *counts]


def _wide_cells(queue: "Queue") -> list[object]:
    spec = queue.spec
    return [
        spec.priority,
        _amounts(queue.status.allocated),
        _amounts(spec.deserved),
        _amounts(spec.capability),
        _amounts(spec.guarantee.resource if spec.guarantee else {}),
        "no" if spec.reclaimable is False else "yes",
        spec.dequeue_strategy or "traverse",
    ]


def _amounts(amounts: "ResourceList") -> str:
    return ",".join(f"{name}={amount}" for name, amount in sorted(amounts.items()))
