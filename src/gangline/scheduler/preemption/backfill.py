"""Backfill: start short gangs on nodes that are reserved for a larger gang.

The first pending gang of a cycle gets a reservation. Its nodes stay usable until the reservation
can start: the latest known end of the pods that have to end there. A gang may backfill if

1. its run time is bounded (``activeDeadlineSeconds``, or the run-time annotation of its group), and
2. it ends before the reservation can start.

Invariant: a backfilled gang never delays the reservation.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.placement.gang import place_gang, placed_pods
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.types.types import PodInfo


def latest_end(state: SchedulerCache, pod: PodInfo, now: float) -> float:
    """Return when a running pod will have ended at the latest; infinite: unknown."""
    if pod.is_terminating:
        return now
    group = state.groups.get(pod.group) if pod.group is not None else None
    limits = (pod.max_run_time_s, group.max_run_time_s if group is not None else 0.0)
    limit = min((each for each in limits if each > 0), default=inf)
    # A pod that has not started yet has its full run time left.
    return (pod.started_at or now) + limit


def earliest_start(
    state: SchedulerCache, scratch: ScratchAllocation, plan: Iterable[Placement], now: float
) -> float:
    """Return the time in seconds when the planned nodes can be free; 0: unknown.

    Args:
        state: the cache.
        scratch: the scratch allocation, to which the plan was charged already.
        plan: the reserved placements.
        now: the time in seconds since the epoch.
    """
    rows = {placement.row for placement in plan}
    latest = max((_row_earliest_start(state, scratch, row, now) for row in rows), default=now)
    return latest if latest < inf else 0.0


def _row_earliest_start(
    state: SchedulerCache, scratch: ScratchAllocation, row: int, now: float
) -> float:
    lacking = {
        name: -int(scratch.free[column, row])
        for name, column in state.nodes.columns.items()
        if scratch.free[column, row] < 0
    }
    node = state.nodes.infos[row]
    if node is None or not lacking:
        return now
    ending = sorted(
        ((latest_end(state, pod, now), pod.key, pod) for pod in state.pods_on(node.name)),
        key=lambda entry: entry[:2],
    )
    for when, _, pod in ending:
        for name, amount in pod.shape.request:
            if name in lacking:
                lacking[name] -= amount
        if all(amount <= 0 for amount in lacking.values()):
            return when
    return inf


@dataclass(frozen=True, slots=True)
class BackfillWindow:
    """Reserved placements of the first pending gang, and when the reservation can start."""

    plan: tuple[Placement, ...] = ()
    earliest_start: float = 0.0

    def fits_before_start(self, gang: PendingGang, now: float) -> bool:
        """Return whether a gang certainly ends before the reservation can start."""
        return 0 < gang.max_run_time_s <= self.earliest_start - now

    def place(self, scratch: ScratchAllocation, gang: PendingGang) -> list[Placement]:
        """Place a gang, also on the reserved nodes.

        Returns:
            The placements of its minimum; empty: it does not fit.
        """
        scratch.release(self.plan)
        mark = scratch.mark()
        place_gang(scratch, gang, gang.pending[: gang.needed])
        placed = scratch.since(mark)
        if not gang.satisfied_by(placed_pods(placed)):
            scratch.rollback(mark)
            placed = []
        scratch.reserve(self.plan)
        return placed
