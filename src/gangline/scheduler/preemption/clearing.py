"""Free amounts after pods have ended: those that are ending already, and those to be evicted."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.shared_volumes import ATTACHABLE
from gangline.scheduler.cache.volume_limits import detached_volumes
from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.plugins.scores import Amounts
from gangline.scheduler.preemption.running_gangs import (
    PlacedPod,
    known_gang,
    known_gangs,
    placed_on_rows,
    rows_by_shape,
)
from gangline.scheduler.preemption.victim_sets import EvictionUnit
from gangline.scheduler.types.types import PodInfo, PodKey, PodShape

_NOTHING: Mapping[int, int] = {}

Cell = tuple[int, int, int]
"""Column, row and amount."""


def freed_cells(state: SchedulerCache, pods: Iterable[PlacedPod]) -> list[Cell]:
    """Return what the requests of these pods free."""
    demand = state.nodes.demand
    return [
        (column, row, amount)
        for pod, row in pods
        for column, amount, _ in demand(pod.shape.request).terms
    ]


def end_pods(
    state: SchedulerCache,
    scratch: ScratchAllocation,
    pods: Sequence[PlacedPod],
    earlier: Iterable[PlacedPod] = (),
) -> None:
    """Count running pods as ended in a scratch allocation.

    Args:
        state: the cache.
        scratch: the allocation.
        pods: the pods, with their rows.
        earlier: pods that count as ended already.
    """
    scratch.end_pods(pods, freed_cells(state, pods))
    detach_volumes(state, scratch, pods, earlier)


def detach_volumes(
    state: SchedulerCache,
    scratch: ScratchAllocation,
    pods: Iterable[PlacedPod],
    earlier: Iterable[PlacedPod] = (),
) -> None:
    """Free the attachments that no other pod on the node uses."""
    if not state.storage.limits:
        return
    before: dict[int, list[PodInfo]] = defaultdict(list)
    for pod, row in earlier:
        if pod.claims:
            before[row].append(pod)
    there: dict[int, list[PodInfo]] = defaultdict(list)
    for pod, row in pods:
        if pod.claims:
            there[row].append(pod)
    columns: Mapping[str, int] = state.nodes.columns
    for row, ended in there.items():
        node = state.nodes.name_of(row)
        known = {each.resource: each for each in detached_volumes(state.storage, node, before[row])}
        for each in detached_volumes(state.storage, node, [*before[row], *ended]):
            column = columns.get(each.resource)
            if column is not None:
                former = known.get(each.resource)
                count = each.count - (former.count if former is not None else 0)
                claims = {columns[name] for name in each.claim_resources if name in columns}
                scratch.detach_volumes(row, column, count, claims)


class Clearing:
    """Free amounts of a scratch allocation after evictions.

    Args:
        state: the cache.
        scratch: the allocation; it is left as it is.
        ending: pods that are ending already.
    """

    def __init__(
        self, state: SchedulerCache, scratch: ScratchAllocation, ending: Sequence[PlacedPod]
    ) -> None:
        self.state, self.ending = state, ending
        self._pods: dict[EvictionUnit, list[PlacedPod]] = {}
        self._by_row: dict[EvictionUnit, dict[int, list[PodInfo]]] = {}
        self._freed: dict[EvictionUnit, dict[int, dict[int, int]]] = {}
        self.base = scratch.fork(scratch.free.copy())
        if ending:
            end_pods(state, self.base, ending)

    def pods(self, unit: EvictionUnit) -> list[PlacedPod]:
        """Return the pods of a unit with their rows."""
        found = self._pods.get(unit)
        if found is None:
            known = known_gang(self.state, unit.gang) if unit.breaks_gang else None
            found = known.placed if known else placed_on_rows(self.state, unit.pods)
            self._pods[unit] = found
        return found

    def pods_by_row(self, unit: EvictionUnit) -> Mapping[int, list[PodInfo]]:
        found = self._by_row.get(unit)
        if found is None:
            found = self._by_row[unit] = {}
            for pod, row in self.pods(unit):
                found.setdefault(row, []).append(pod)
        return found

    def freed_by(self, unit: EvictionUnit, row: int) -> Mapping[int, int]:
        """Return by column what a unit frees on a row."""
        rows = self._freed.get(unit)
        if rows is None:
            rows = self._freed[unit] = {}
            demand = self.state.nodes.demand
            for each, pods in self.pods_by_row(unit).items():
                freed: dict[int, int] = dict(self.detached_by(unit, each))
                for pod in pods:
                    for column, amount, _ in demand(pod.shape.request).terms:
                        freed[column] = freed.get(column, 0) + amount
                rows[each] = freed
        return rows.get(row, _NOTHING)

    def detached_by(self, unit: EvictionUnit, row: int) -> dict[int, int]:
        """Return by column how many attachments on a row no pod outside of the unit uses."""
        storage, nodes = self.state.storage, self.state.nodes
        pods = self.pods_by_row(unit).get(row, ()) if storage.limits else ()
        freed: dict[int, int] = {}
        for each in detached_volumes(storage, nodes.name_of(row), pods) if pods else ():
            column = nodes.columns.get(each.resource)
            if column is not None:
                freed[column] = each.count
                # Claims of several pods have columns of their own, which depend on this one.
                for other, taking in nodes.attachment_columns.items():
                    if taking.limit_column == column:
                        freed[other] = ATTACHABLE
        return freed

    def after(self, units: Iterable[EvictionUnit]) -> ScratchAllocation:
        """Return the allocation after the eviction of these units, which share no pod."""
        listed = list(units)
        free = self.base.free.copy()
        self.add_freed(free, listed)
        cleared = self.base.fork(free)
        gone = list(chain.from_iterable(map(self.pods, listed)))
        cleared.end_pods(gone, ())
        detach_volumes(self.state, cleared, gone, self.ending)
        return cleared

    def add_freed(self, free: Amounts, units: Iterable[EvictionUnit]) -> None:
        """Add what the requests of these units free; pods of one shape are added together."""
        rows: dict[PodShape, list[int]] = defaultdict(list)
        for unit in units:
            known = known_gang(self.state, unit.gang) if unit.breaks_gang else None
            by_shape = known.rows if known else rows_by_shape(self.pods(unit))
            for shape, listed in by_shape.items():
                rows[shape] += listed
        for shape, listed in rows.items():
            counts = np.bincount(listed, minlength=free.shape[1])
            for column, amount, _ in self.state.nodes.demand(shape.request).terms:
                free[column] += amount * counts


def ending_pods(state: SchedulerCache) -> list[PodInfo]:
    """Return the terminating pods whose resources others may use once they have ended.

    A gang that runs and misses a terminating member gets its node back (see ``reservations``).
    """
    found: list[PodInfo] = []
    for gang, known in known_gangs(state):
        leaving = known.leaving
        if not leaving or leaving[0].group in state.restarting_groups:
            continue
        group = state.groups.get(leaving[0].group) if leaving[0].group is not None else None
        staying = len(state.placed_members[gang]) - len(leaving)
        if group is None or not staying or staying >= group.min_member:
            found += sorted(leaving, key=_key)
    return found


def _key(pod: PodInfo) -> PodKey:
    return pod.key
