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
from gangline.scheduler.preemption.victim_sets import is_evictable
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.types.types import PodInfo


def latest_end(state: SchedulerCache, pod: PodInfo, now: float, *, likely: bool = False) -> float:
    """Return when a running pod will have ended at the latest; infinite: unknown.

    Args:
        state: the cache.
        pod: the pod.
        now: the time in seconds since the epoch.
        likely: True if learned run times count too.
    """
    if pod.is_terminating:
        return now
    group = state.groups.get(pod.group) if pod.group is not None else None
    limits = (pod.max_run_time_s, group.max_run_time_s if group is not None else 0.0)
    limit = min((each for each in limits if each > 0), default=inf)
    # A pod that has not started yet has its full run time left.
    began = pod.started_at or now
    if likely and group is not None and (learned := state.run_times.estimate(group.family)):
        # Nothing is known of a gang that has run for longer than the estimate.
        limit = min(limit, learned if began + learned > now else inf)
    return began + limit


def earliest_start(
    state: SchedulerCache,
    trial: ScratchAllocation,
    plan: Iterable[Placement],
    now: float,
    *,
    likely: bool = False,
) -> float:
    """Return the time in seconds when the planned nodes can be free; 0: unknown.

    Args:
        state: the cache.
        trial: the scratch allocation, to which the plan was charged already.
        plan: the reserved placements.
        now: the time in seconds since the epoch.
        likely: True if learned run times count too.
    """
    rows = {placement.row for placement in plan}
    latest = max((_row_earliest_start(state, trial, row, now, likely) for row in rows), default=now)
    return latest if latest < inf else 0.0


def _row_earliest_start(
    state: SchedulerCache, trial: ScratchAllocation, row: int, now: float, likely: bool
) -> float:
    lacking = {
        name: -int(trial.free[column, row])
        for name, column in state.nodes.columns.items()
        if trial.free[column, row] < 0
    }
    node = state.nodes.infos[row]
    if node is None or not lacking:
        return now
    ending = sorted(
        (
            (latest_end(state, pod, now, likely=likely), pod.key, pod)
            for pod in state.pods_on(node.name)
        ),
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
    likely_start: float = 0.0
    """The same with learned run times; 0: no gang may backfill on an estimate."""
    owner: str = ""
    """Name of the gang that owns the reservation."""

    def fits_before_start(self, unit: PendingGang, now: float) -> bool:
        """Return whether a gang certainly ends before the reservation can start."""
        return 0 < unit.max_run_time_s <= self.earliest_start - now

    def may_backfill_on_estimate(
        self, state: SchedulerCache, unit: PendingGang, now: float
    ) -> bool:
        """Return whether a gang probably ends before that, and may be evicted if it does not."""
        if (
            self.likely_start <= now
            or unit.group is None
            or unit.group in state.backfilled
            or unit.running
        ):
            return False
        group = state.groups[unit.group]
        times = (unit.max_run_time_s, state.run_times.estimate(group.family))
        lasts = min((each for each in times if each), default=inf)
        if now + lasts > self.likely_start or not group.preemptable:
            return False
        return all(
            pod.preemptable
            and is_evictable(pod)
            and not any(budget.covers(pod) for budget in state.budgets.values())
            for pod in unit.pending
        )

    def place(self, trial: ScratchAllocation, unit: PendingGang) -> list[Placement]:
        """Place a gang, also on the reserved nodes.

        Returns:
            The placements of its minimum; empty: it does not fit.
        """
        trial.release(self.plan)
        mark = trial.mark()
        place_gang(trial, unit, unit.pending[: unit.needed])
        placed = trial.since(mark)
        if not unit.satisfied_by(placed_pods(placed)):
            trial.rollback(mark)
            placed = []
        trial.reserve(self.plan)
        return placed
