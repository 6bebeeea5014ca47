"""The options of a preemptor: which units to evict on which node, so that one more pod fits there.

- Option of a node: all subsets of the units that free something the pod lacks there are tried, the
  cheapest units first, within a bound. Pods that keep it off by anti-affinity, or that use its
  ReadWriteOncePod claims, have to go anyway.
- Choice of nodes: nodes that lack something even if all candidates were evicted are left out. The
  others are searched in batches, half of each the nodes with the cheapest candidates, half those
  that lack least. A further batch follows only if no node of the earlier ones has an option, so
  clusters of up to 128 such nodes are searched completely.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from gangline.scheduler.cache.inter_pod import blocking_pods
from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.plugins.scores import Amounts
from gangline.scheduler.plugins.volumes import CLAIM_IN_USE
from gangline.scheduler.preemption.fitting_pods import Region
from gangline.scheduler.preemption.rights import EvictionRights, EvictionTally
from gangline.scheduler.preemption.victims import (
    NO_COST,
    Clearing,
    EvictionCost,
    EvictionUnit,
    total_cost,
)
from gangline.scheduler.types import PodInfo, PodKey, PodShape

MAX_STEPS = 256
"""Maximal number of units that are added to a subset on one node. Without any bound a node with 16
different units would have 65,536 subsets.
"""
BATCH = 128
"""Number of nodes in a batch."""
MAX_BATCHES = 8
"""Maximal number of batches for each shape of a gang."""
MAX_ROWS = MAX_BATCHES * BATCH
Freed = Mapping[int, int]
"""Amount by column."""


@dataclass(frozen=True, slots=True)
class RowOption:
    """Units whose eviction makes one more pod fit on a row."""

    row: int
    units: tuple[EvictionUnit, ...]
    cost: EvictionCost


@dataclass(slots=True)
class VictimSelection:
    """The units that were chosen so far."""

    units: list[EvictionUnit]
    pods: set[PodKey]
    tally: EvictionTally

    def covers(self, unit: EvictionUnit) -> bool:
        """Return whether the unit, or another one of its gang that breaks it, was chosen."""
        return all(pod.key in self.pods for pod in unit.pods)


@dataclass(slots=True)
class RankedOption:
    """An option of one row, with what orders it."""

    option: RowOption
    gain: int
    """Number of pods that it makes fit."""
    indexes: tuple[int, ...]
    """Indexes of its units, to break ties."""

    def key(self, left: int, by_ratio: bool) -> tuple[object, ...]:
        gain = max(1, min(self.gain, left)) if by_ratio else 1
        cost = self.option.cost
        return (
            cost.broken_tier,
            cost.broken / gain,
            cost.shrunk_tier,
            cost.lost_work / gain,
            cost.pods / gain,
            -gain,
            self.indexes,
        )


@dataclass(frozen=True, slots=True)
class _FirstBatch:
    """The options of the first batch for a shape, while no unit is chosen."""

    free: Amounts
    within: Region
    by_row: Mapping[int, RankedOption | None]
    waiting: Sequence[int]
    """Rows of the later batches."""

    def holds_for(self, work: ScratchAllocation) -> bool:
        """Return whether the same rows may be used, with the same free amounts."""
        return work.within is self.within and np.array_equal(self.free, work.free)


class RowSearch:
    """Searches options on single rows.

    Args:
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
        on_row = self._on_row.get(row)
        if on_row is None:
            state = self._clearing.state
            pods = state.pods_on(state.nodes.name_of(row))
            units = {unit for pod in pods for unit in self.units_of(pod)}
            on_row = self._on_row[row] = sorted(units, key=self.order.__getitem__)
        return on_row

    def option(
        self, work: ScratchAllocation, chosen: VictimSelection, pod: PodInfo, row: int
    ) -> RowOption | None:
        """Return the cheapest units that make a pod fit on a row; None: none are allowed."""
        nodes = work.nodes
        demand = nodes.demand(pod.shape.request)
        lacking = {
            column: amount - int(work.free[column, row])
            for column, amount, _ in demand.terms
            if work.free[column, row] < amount
        }
        if work.volumes.refusal((pod,), row) not in ("", CLAIM_IN_USE):
            return None
        # The present user of a ReadWriteOncePod claim, on whatever node.
        blockers = work.volumes.holders(pod)
        if work.has_inter_pod_rules(pod.shape):
            blockers += blocking_pods(nodes, pod, row, chosen.pods)
            leaving = {ended.key for ended, _ in self._clearing.ending}
            blockers = [blocker for blocker in blockers if blocker.key not in leaving]
        victims = _Subsets(self, chosen, row).cheapest(lacking, blockers)
        return RowOption(row, victims, total_cost(victims)) if victims is not None else None

    def freed_on(self, unit: EvictionUnit, row: int, chosen: VictimSelection) -> Mapping[int, int]:
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


class RowOptions:
    """What the candidates free on each row.

    Args:
        units: the candidates, the cheapest first.
        freeable: what all candidates free, by column and row.
    """

    def __init__(
        self,
        clearing: Clearing,
        search: RowSearch,
        units: Sequence[EvictionUnit],
        freeable: Amounts,
    ) -> None:
        self.clearing, self.search, self.freeable = clearing, search, freeable
        self.index, self._units = search.order, units
        self._first_unit = np.full(len(clearing.state.nodes.infos), len(units))
        """Index of the cheapest unit on each row."""
        rows = [[row for _, row in clearing.pods(unit)] for unit in units]
        indexes = np.repeat(np.arange(len(units)), [len(unit_rows) for unit_rows in rows])
        np.minimum.at(self._first_unit, list(chain.from_iterable(rows)), indexes)
        self._first: dict[PodShape, _FirstBatch] = {}

    def of(self, work: ScratchAllocation, chosen: VictimSelection, pod: PodInfo) -> "ShapeOptions":
        options = ShapeOptions(self, work, chosen, pod)
        if chosen.units or work.depends_on_others(pod):
            options.waiting = self.rows_for(work, pod)
            return options
        first = self._first.get(pod.shape)
        if first is None or not first.holds_for(work):
            options.waiting = self.rows_for(work, pod)
            options.next_batch()
            first = _FirstBatch(
                work.free.copy(), work.within, dict(options.by_row), tuple(options.waiting)
            )
            self._first[pod.shape] = first
        options.by_row, options.waiting = dict(first.by_row), list(first.waiting)
        options.batches = MAX_BATCHES - 1
        return options

    def cheapest(
        self, work: ScratchAllocation, chosen: VictimSelection, pod: PodInfo
    ) -> RowOption | None:
        """Return what ``ShapeOptions`` finds for a single pod.

        No option of a row costs less than the cheapest unit there. So the rows of a batch are
        searched in the order of these, until the next one costs more than an option.
        """
        waiting = self.rows_for(work, pod)
        for start in range(0, min(len(waiting), MAX_ROWS), BATCH):
            ordered = sorted(
                (int(self._first_unit[row]), position, row)
                for position, row in enumerate(waiting[start : start + BATCH])
            )
            best: tuple[EvictionCost, tuple[int, ...], int, RowOption] | None = None
            for first, position, row in ordered:
                if best is not None and (self._units[first].cost, (first,)) > best[:2]:
                    break
                option = self.search.option(work, chosen, pod, row)
                if option is not None and option.units:
                    indexes = tuple(sorted(self.index[unit] for unit in option.units))
                    key = option.cost, indexes, position, option
                    best = key if best is None or key[:3] < best[:3] else best
            if best is not None:
                return best[3]
        return None

    def rows_for(self, work: ScratchAllocation, pod: PodInfo) -> list[int]:
        """Return the rows to search, in batches as the module describes."""
        nodes = work.nodes
        mask = nodes.eligible(pod.shape.constraints).accepted.copy()
        if work.within is not None:
            mask &= work.within
        lack = np.zeros(len(mask))
        for column, amount, _ in nodes.demand(pod.shape.request).terms:
            free = work.free[column]
            mask &= free + self.freeable[column] >= amount
            lack += np.clip(amount - free, 0, None) / amount
        rows = np.flatnonzero(mask)
        rank = nodes.rank()[rows]
        first = self._first_unit[rows]
        cheapest = rows[np.lexsort((rank, lack[rows], first))][:MAX_ROWS].tolist()
        emptiest = rows[np.lexsort((rank, first, lack[rows]))][:MAX_ROWS].tolist()
        both = (row for pair in zip(cheapest, emptiest, strict=True) for row in pair)
        return list(dict.fromkeys(both))


class ShapeOptions:
    """The options for the next pod of one shape, while units are being chosen."""

    def __init__(
        self, options: RowOptions, work: ScratchAllocation, chosen: VictimSelection, pod: PodInfo
    ) -> None:
        self._options, self._work, self._chosen, self._pod = options, work, chosen, pod
        self.waiting: list[int] = []
        """Rows that were not searched yet."""
        self.by_row: dict[int, RankedOption | None] = {}
        """The options of searched rows."""
        self.batches = MAX_BATCHES
        """Number of batches that may still be searched."""
        self._gains: dict[tuple[EvictionUnit, ...], int] = {}
        """What the units of options found so far gain; empty after a change of free amounts."""

    def next_batch(self) -> None:
        """Search the next rows."""
        self.batches -= 1
        batch, self.waiting = self.waiting[:BATCH], self.waiting[BATCH:]
        for row in batch:
            self._search(row)

    def best(self, left: int, by_ratio: bool) -> RowOption | None:
        """Return the option that costs least; None: none is allowed.

        Args:
            left: the number of pods that still lack a node.
            by_ratio: whether the cost is divided by the number of pods that the option makes fit.
        """
        while True:
            candidates = [
                (row, option) for row, option in self.by_row.items() if option is not None
            ]
            if not candidates:
                if not self.waiting or not self.batches:
                    return None
                self.next_batch()
                continue
            row, best = min(candidates, key=lambda entry: entry[1].key(left, by_ratio))
            if self._is_allowed(best.option):
                return best.option
            self._search(row)

    def update(self, option: RowOption) -> None:
        """Search again where an option that was chosen has changed the free amounts."""
        self._gains.clear()
        rows = {option.row}
        for unit in option.units:
            rows.update(self._options.clearing.pods_by_row(unit))
        for row in rows & self.by_row.keys():
            self._search(row)

    def _search(self, row: int) -> None:
        option = self._options.search.option(self._work, self._chosen, self._pod, row)
        if option is None or not option.units:
            self.by_row[row] = None
            return
        indexes = tuple(sorted(self._options.index[unit] for unit in option.units))
        gain = self._gains.get(option.units)
        if gain is None:
            # The pods of one gang are often on several of the rows.
            gain = self._gains[option.units] = self._gain(option)
        self.by_row[row] = RankedOption(option, gain, indexes)

    def _is_allowed(self, option: RowOption) -> bool:
        tally = self._chosen.tally
        for unit in option.units:
            if self._chosen.covers(unit):
                return False
            extended = self._options.search.allowed(tally, unit)
            if extended is None:
                return False
            tally = extended
        return True

    def _gain(self, option: RowOption) -> int:
        """Return how many more pods fit on the rows that the units free."""
        nodes, search = self._work.nodes, self._options.search
        terms = nodes.demand(self._pod.shape.request).terms
        accepted = nodes.eligible(self._pod.shape.constraints).accepted
        gain = 0
        rows = {row for unit in option.units for row in self._options.clearing.pods_by_row(unit)}
        for row in rows:
            if not accepted[row] or (self._work.within is not None and not self._work.within[row]):
                continue
            freed = [search.freed_on(unit, row, self._chosen) for unit in option.units]
            before = after = 2**31
            for column, amount, _ in terms:
                free = int(self._work.free[column, row])
                before = min(before, max(0, free // amount))
                more = free + sum(amounts.get(column, 0) for amounts in freed)
                after = min(after, max(0, more // amount))
            gain += after - before
        return gain


class _Subsets:
    """Enumerates subsets of the units on one row, within a bound."""

    def __init__(self, search: RowSearch, chosen: VictimSelection, row: int) -> None:
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
            equal_key = (unit.gang, unit.cost, roles, tuple(sorted(freed.items())))
            # Subgroups differ: each may be of another rule, and has pods on other nodes.
            if len(unit.pods) == 1 and equal_key in tried and not self._search.has_budgets:
                continue  # an equal unit was tried
            tried.append(equal_key)
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
