"""When planned room can be had, as far as run times are known, so that short gangs use it before.

A run time is known of pods with ``activeDeadlineSeconds``, which their kubelet ends, and of gangs
whose group states one. Whoever surely ends before the first in line could start delays nobody.

Else it may be learned, from those that were alike. That is no promise: who was let in on it is a
*lodger*, and has to go as soon as the first in line could start without him. So even estimates
that are all wrong put nobody off. A gang lodges once, and only one that may be evicted.
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
    """Return when a pod that runs will have ended; infinite where nobody knows.

    Args:
        state: what is observed.
        pod: the pod.
        now: the time, in seconds since the epoch.
        likely: what is only learned counts too.
    """
    if pod.terminating:
        return now
    group = state.groups.get(pod.group) if pod.group is not None else None
    limits = (pod.limit_s, group.run_time_s if group is not None else 0.0)
    limit = min((each for each in limits if each > 0), default=inf)
    # One that has not started yet has all of its time before it.
    began = pod.started or now
    if likely and group is not None and (learned := state.run_times.estimate(group.family)):
        # Of one that has run for longer than its like nothing is known.
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
    """Return the earliest time at which planned room can be free; nothing: nobody knows.

    Args:
        state: what is observed.
        trial: free amounts, from which the plan was taken already.
        plan: the planned room.
        now: the time, in seconds since the epoch.
        likely: what is only learned counts too.
    """
    rows = {placement.row for placement in plan}
    latest = max((_row_opens(state, trial, row, now, likely) for row in rows), default=now)
    return latest if latest < inf else 0.0


def _row_opens(state: ClusterState, trial: Trial, row: int, now: float, likely: bool) -> float:
    """When enough has ended on one row."""
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
    """Room that is planned for the first in line, and when it can be had at the earliest."""

    plan: tuple[Placement, ...] = ()
    opens: float = 0.0
    likely: float = 0.0
    """The same with what is only learned; nothing: nobody lodges here."""
    host: str = ""
    """Whose room it is."""

    def admits(self, unit: Unit, now: float) -> bool:
        """Say whether a unit surely ends before the planned room can be used."""
        return 0 < unit.limit_s <= self.opens - now

    def lodges(self, state: ClusterState, unit: Unit, now: float) -> bool:
        """Say whether a unit most likely ends before that, and may be told to go if it does not."""
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
        """Place a unit also in the planned room.

        Returns:
            Where its minimum goes; nothing: it does not fit.
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
