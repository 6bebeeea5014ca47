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

from gangline.scheduler.bundles import may_be_evicted
from gangline.scheduler.model import PodFacts
from gangline.scheduler.place import place_unit, pods_of
from gangline.scheduler.state import ClusterState
from gangline.scheduler.trial import Placement, Trial
from gangline.scheduler.units import Unit


def ends_at(state: ClusterState, pod: PodFacts, now: float, *, likely: bool = False) -> float:
    """Return when a running pod will have ended at the latest; infinite: unknown.

    Args:
        state: the cache.
        pod: the pod.
        now: the time in seconds since the epoch.
        likely: True if learned run times count too.
    """
    if pod.terminating:
        return now
    group = state.groups.get(pod.group) if pod.group is not None else None
    limits = (pod.limit_s, group.run_time_s if group is not None else 0.0)
    limit = min((each for each in limits if each > 0), default=inf)
    # A pod that has not started yet has its full run time left.
    began = pod.started or now
    if likely and group is not None and (learned := state.run_times.estimate(group.family)):
        # Nothing is known of a gang that has run for longer than the estimate.
        limit = min(limit, learned if began + learned > now else inf)
    return began + limit


def opens_at(
    state: ClusterState,
    trial: Trial,
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
    latest = max((_row_opens(state, trial, row, now, likely) for row in rows), default=now)
    return latest if latest < inf else 0.0


def _row_opens(state: ClusterState, trial: Trial, row: int, now: float, likely: bool) -> float:
    lacking = {
        name: -int(trial.free[column, row])
        for name, column in state.nodes.columns.items()
        if trial.free[column, row] < 0
    }
    node = state.nodes.facts[row]
    if node is None or not lacking:
        return now
    ending = sorted(
        (
            (ends_at(state, pod, now, likely=likely), pod.key, pod)
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
class Window:
    """Reserved placements of the first pending gang, and when the reservation can start."""

    plan: tuple[Placement, ...] = ()
    opens: float = 0.0
    likely: float = 0.0
    """The same with learned run times; 0: no gang may backfill on an estimate."""
    host: str = ""
    """Name of the gang that owns the reservation."""

    def admits(self, unit: Unit, now: float) -> bool:
        """Return whether a gang certainly ends before the reservation can start."""
        return 0 < unit.limit_s <= self.opens - now

    def lodges(self, state: ClusterState, unit: Unit, now: float) -> bool:
        """Return whether a gang probably ends before that, and may be evicted if it does not."""
        if self.likely <= now or unit.group is None or unit.group in state.lodgers or unit.running:
            return False
        group = state.groups[unit.group]
        times = (unit.limit_s, state.run_times.estimate(group.family))
        lasts = min((each for each in times if each), default=inf)
        if now + lasts > self.likely or not group.preemptable:
            return False
        return all(
            pod.preemptable
            and may_be_evicted(pod)
            and not any(budget.covers(pod) for budget in state.budgets.values())
            for pod in unit.waiting
        )

    def place(self, trial: Trial, unit: Unit) -> list[Placement]:
        """Place a gang, also on the reserved nodes.

        Returns:
            The placements of its minimum; empty: it does not fit.
        """
        trial.release(self.plan)
        mark = trial.mark()
        place_unit(trial, unit, unit.waiting[: unit.needed])
        placed = trial.since(mark)
        if not unit.satisfied_by(pods_of(placed)):
            trial.rollback(mark)
            placed = []
        trial.hold(self.plan)
        return placed
