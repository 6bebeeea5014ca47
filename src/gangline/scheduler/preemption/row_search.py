"""The cheapest way to make one pod fit on one node.

All subsets of the eviction units that free something the pod lacks there are tried, the cheapest
units first, within a bound. Pods that keep it off by anti-affinity have to go in any case.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gangline.scheduler.cache.inter_pod import blocking_pods
from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.preemption.clearing import Clearing
from gangline.scheduler.preemption.rights import EvictionRights, EvictionTally
from gangline.scheduler.preemption.victim_sets import (
    NO_COST,
    EvictionCost,
    EvictionUnit,
    total_cost,
)
from gangline.scheduler.types.types import PodInfo, PodKey

MAX_STEPS = 256
"""Maximal number of units that are added to a subset on one node. Without any bound a node with 16
different units would have 65,536 subsets.
"""

Freed = Mapping[int, int]
"""Amount by column."""


@dataclass(frozen=True, slots=True)
class RowOption:
    """Units whose eviction makes one more pod fit on a row."""

    row: int
    units: tuple[EvictionUnit, ...]
    cost: EvictionCost


@dataclass(slots=True)
class Selection:
    """The units that were chosen so far."""

    units: list[EvictionUnit]
    pods: set[PodKey]
    tally: EvictionTally

    def covers(self, unit: EvictionUnit) -> bool:
        """Return whether the unit, or another one of its gang that breaks it, was chosen."""
        return all(pod.key in self.pods for pod in unit.pods)


class RowSearch:
    """Searches options on single rows.

    Args:
        clearing: the free amounts after evictions.
        rights: what the gang may evict.
        units: the candidates, the cheapest first.
    """

    def __init__(
        self,
        clearing: Clearing,
        rights: EvictionRights,
        units: Sequence[EvictionUnit],
    ) -> None:
        self._clearing, self._rights = clearing, rights
        self.order = {unit: index for index, unit in enumerate(units)}
        """Index of each candidate."""
        self._of_gang: dict[str, list[EvictionUnit]] = {}
        for unit in units:
            self._of_gang.setdefault(unit.gang.id, []).append(unit)
        self._on_row: dict[int, list[EvictionUnit]] = {}
        self.has_budgets = bool(clearing.state.budgets)
        """True if pods of one gang are not interchangeable."""

    def units_on(self, row: int) -> list[EvictionUnit]:
        """Return the candidates with pods on a row, the cheapest first."""
        found = self._on_row.get(row)
        if found is None:
            state = self._clearing.state
            pods = state.pods_on(state.nodes.name_of(row))
            units = {unit for pod in pods for unit in self.units_of(pod)}
            found = self._on_row[row] = sorted(units, key=self.order.__getitem__)
        return found

    def option(
        self, work: ScratchAllocation, chosen: Selection, pod: PodInfo, row: int
    ) -> RowOption | None:
        """Return the cheapest units that make a pod fit on a row; None: none are allowed."""
        nodes = work.nodes
        demand = nodes.demand(pod.shape.request)
        lacking = {
            column: amount - int(work.free[column, row])
            for column, amount, _ in demand.terms
            if work.free[column, row] < amount
        }
        blockers: list[PodInfo] = []
        if work.has_inter_pod_rules(pod.shape):
            blockers = blocking_pods(nodes, pod, row, chosen.pods)
            leaving = {ended.key for ended, _ in self._clearing.ending}
            blockers = [each for each in blockers if each.key not in leaving]
        found = _Subsets(self, chosen, row).cheapest(lacking, blockers)
        return RowOption(row, found, total_cost(found)) if found is not None else None

    def freed_on(self, unit: EvictionUnit, row: int, chosen: Selection) -> Mapping[int, int]:
        """Return what a unit frees on a row besides the chosen units."""
        pods = self._clearing.pods_by_row(unit).get(row, ())
        if chosen.pods.isdisjoint([pod.key for pod in pods]):
            return self._clearing.freed_by(unit, row)
        freed = Counter(self._clearing.detached_by(unit, row))
        demand = self._clearing.state.nodes.demand
        for pod in pods:
            if pod.key not in chosen.pods:
                for column, amount, _ in demand(pod.shape.request).terms:
                    freed[column] += amount
        return freed

    def units_of(self, pod: PodInfo) -> list[EvictionUnit]:
        """Return the candidates that evict a pod, the cheapest first."""
        units = self._of_gang.get(pod.gang_id, ())
        return [unit for unit in units if pod in unit.pods]

    def allowed(self, tally: EvictionTally, unit: EvictionUnit) -> EvictionTally | None:
        """Return the tally with a unit; None: the gang may not evict it as well."""
        extended = tally.copy()
        return extended if self._rights.add(extended, unit) else None


class _Subsets:
    """Enumerates subsets of the units on one row, within a bound."""

    def __init__(self, search: RowSearch, chosen: Selection, row: int) -> None:
        self._search, self._chosen, self._row = search, chosen, row
        self._steps = MAX_STEPS
        self._best: tuple[EvictionCost, tuple[EvictionUnit, ...]] | None = None

    def cheapest(
        self, lacking: Mapping[int, int], blockers: Sequence[PodInfo]
    ) -> tuple[EvictionUnit, ...] | None:
        tally: EvictionTally | None = self._chosen.tally
        required: list[EvictionUnit] = []
        for pod in blockers:
            if any(pod in unit.pods for unit in required):
                continue
            unit = next(iter(self._search.units_of(pod)), None)
            tally = (
                self._search.allowed(tally, unit)
                if unit is not None and tally is not None
                else None
            )
            if unit is None or tally is None:
                return None
            required.append(unit)
        assert tally is not None
        left = dict(lacking)
        for unit in required:
            left = _minus(left, self._search.freed_on(unit, self._row, self._chosen))
        if not left:
            return tuple(required)
        useful: list[tuple[EvictionUnit, Freed]] = []
        for unit in self._search.units_on(self._row):
            if unit in required or self._chosen.covers(unit):
                continue
            freed = self._search.freed_on(unit, self._row, self._chosen)
            if any(column in freed for column in left):
                useful.append((unit, freed))
        self._extend(useful, 0, left, tuple(required), tally)
        return self._best[1] if self._best is not None else None

    def _extend(
        self,
        useful: Sequence[tuple[EvictionUnit, Freed]],
        start: int,
        left: Mapping[int, int],
        chosen: tuple[EvictionUnit, ...],
        tally: EvictionTally,
    ) -> None:
        """Add units from ``start`` on until nothing is lacking."""
        if not _reachable(useful[start:], left):
            return
        cost = total_cost(chosen) if chosen else NO_COST
        tried: list[tuple[object, ...]] = []
        for index in range(start, len(useful)):
            unit, freed = useful[index]
            if not self._steps:
                return
            if not any(column in freed for column in left):
                continue
            if any(unit.gang is other.gang for other in chosen) and unit.breaks_gang:
                # The complete gang frees its spare pods too: both together would count them twice.
                continue
            roles = tuple(pod.role for pod in unit.pods)
            alike = (unit.gang, unit.cost, roles, tuple(sorted(freed.items())))
            # Subgroups differ: each may be of another rule, and has pods on other nodes.
            if len(unit.pods) == 1 and alike in tried and not self._search.has_budgets:
                continue  # an equal unit was tried
            tried.append(alike)
            with_unit = cost.plus(unit.cost)
            if self._best is not None and with_unit >= self._best[0]:
                continue
            self._steps -= 1
            extended = self._search.allowed(tally, unit)
            if extended is None:
                continue
            rest = _minus(left, freed)
            if rest:
                self._extend(useful, index + 1, rest, (*chosen, unit), extended)
            else:
                self._best = with_unit, (*chosen, unit)


def _reachable(useful: Sequence[tuple[EvictionUnit, Freed]], left: Mapping[int, int]) -> bool:
    return all(
        sum(freed.get(column, 0) for _, freed in useful) >= amount
        for column, amount in left.items()
    )


def _minus(left: Mapping[int, int], freed: Mapping[int, int]) -> dict[int, int]:
    return {
        column: amount - freed.get(column, 0)
        for column, amount in left.items()
        if amount > freed.get(column, 0)
    }
