"""The search for the victims of one gang, in one region: a network domain, or all nodes.

Pods are placed one shape after the other, first on what is free or ending. Then the option of one
node (see ``row_search``) that costs least for each pod that it makes fit is chosen, until all pods
fit. Some sets are found only if the next pod alone counts, or if the victims must also ease the
limit of a queue, so the search is repeated for these. A gang with further rules (roles, subgroups)
may not fit in such a set; then the shortest sufficient prefix of all candidates is tried. Of each
set, gangs are spared one by one, the most expensive first, while the gang can still be placed in
any way. If several gangs are left, single large gangs are tried in their place. The cheapest set
wins.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.placement.gang import place_gang, placed_pods, placing_order
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.plugins.scores import Amounts
from gangline.scheduler.preemption.clearing import Clearing, end_pods
from gangline.scheduler.preemption.rights import EvictionRights, EvictionTally
from gangline.scheduler.preemption.row_options import RowOptions
from gangline.scheduler.preemption.row_search import RowSearch, Selection
from gangline.scheduler.preemption.victim_sets import EvictionCost, EvictionUnit, total_cost
from gangline.scheduler.queueing.gangs import PendingGang

MAX_SINGLE_GANGS = 16
"""Maximal number of gangs of which it is tried whether one alone is sufficient."""
MAX_SPARED = 32
"""Maximal number of placements that are tried to spare victims."""

Region = NDArray[np.bool_] | None
"""Mask of the rows that may be used; None: all rows."""


@dataclass(frozen=True, slots=True)
class VictimSet:
    """Units that are sufficient together, and the placements that they make possible."""

    units: tuple[EvictionUnit, ...]
    placements: tuple[Placement, ...]

    @property
    def order(self) -> tuple[EvictionCost, list[str]]:
        """Sort key: the cheapest first, then by name."""
        return total_cost(self.units), sorted(pod.key for unit in self.units for pod in unit.pods)


class GangSearch:
    """Searches victims for one gang among these candidates.

    Args:
        clearing: the free amounts after evictions.
        rights: what the gang may evict.
        gang: the gang.
        units: the candidates, the cheapest first.
        freeable: what all candidates free, by column and row.
    """

    def __init__(
        self,
        clearing: Clearing,
        rights: EvictionRights,
        gang: PendingGang,
        units: Sequence[EvictionUnit],
        freeable: Amounts,
    ) -> None:
        self._clearing, self._rights, self._gang, self._units = clearing, rights, gang, units
        self._rows = RowSearch(clearing, rights, units)
        self._options = RowOptions(clearing, self._rows, units, freeable)

    def place(self, units: Iterable[EvictionUnit], region: Region) -> list[Placement] | None:
        """Return where the gang can start once the units are evicted; None: nowhere."""
        cleared = self._clearing.after(units)
        return place_needed(cleared, self._gang, region)

    def best(self, region: Region) -> VictimSet | None:
        """Return the cheapest set of victims that was found; None: none is allowed."""
        found: list[VictimSet] = []
        ways = [(True, False), (False, False)]
        if self._rights.excess:
            ways += [(True, True)]
        for by_ratio, eases_limit in ways if len(self._gang.pending) > 1 else ways[1:]:
            chosen = self._collect(region, by_ratio, eases_limit)
            if chosen is not None and (reduced := self._spare(chosen, region)) is not None:
                found.append(reduced)
        if not found:
            prefix = self._shortest_prefix(region)
            if prefix is not None and (reduced := self._spare(prefix, region)) is not None:
                found.append(reduced)
        found += self._single_gangs(found, region)
        return min(found, key=lambda each: each.order, default=None)

    def _single_gangs(self, found: Sequence[VictimSet], region: Region) -> list[VictimSet]:
        """Return the first gang that is sufficient alone, if several were chosen: largest first."""
        if not found or min(total_cost(each.units).broken for each in found) < 2:
            return []
        best = min(total_cost(each.units) for each in found)
        cheaper = [unit for unit in self._units if unit.breaks_gang and unit.cost < best]
        cheaper.sort(key=lambda unit: (unit.cost.broken_tier, -len(unit.pods), unit.order))
        for unit in cheaper[:MAX_SINGLE_GANGS]:
            tally = self._rows.allowed(EvictionTally(), unit)
            if tally is not None and self._rights.covers_limits(tally):
                placements = self.place((unit,), region)
                if placements is not None:
                    return [VictimSet((unit,), tuple(placements))]
        return []

    def _collect(self, region: Region, by_ratio: bool, eases_limit: bool) -> Selection | None:
        """Choose units until all pods that the gang needs fit; None: the search found no way.

        Args:
            region: the rows that may be used.
            by_ratio: whether the number of pods that an option makes fit counts.
            eases_limit: whether the limits of queues are eased first, and by the same victims.
        """
        chosen = Selection([], set(), EvictionTally())
        work = self._clearing.base.fork(self._clearing.base.free.copy())
        work.within = region
        if eases_limit and not self._ease_limits(work, chosen):
            return None
        needed = self._gang.pending[: self._gang.needed]
        for shape, pods in placing_order(work.nodes, self._gang, needed):
            left = list(work.place(shape, pods))
            options = self._options.of(work, chosen, left[0]) if left else None
            while left and options is not None:
                option = options.best(len(left), by_ratio)
                if option is None:
                    return None
                self._choose(work, chosen, option.units)
                if work.has_inter_pod_rules(shape):
                    if not work.place_on_row(left[0], option.row):
                        return None
                    left = left[1:]
                left = list(work.place(shape, left))
                # After the placement: what it has used is lacking for the next pod.
                options.update(option)
        return chosen if self._ease_limits(work, chosen) else None

    def _choose(
        self, work: ScratchAllocation, chosen: Selection, units: Iterable[EvictionUnit]
    ) -> None:
        for unit in units:
            fresh = [each for each in self._clearing.pods(unit) if each[0].key not in chosen.pods]
            gone = [e for each in chosen.units for e in self._clearing.pods(each)]
            end_pods(self._clearing.state, work, fresh, [*self._clearing.ending, *gone])
            chosen.pods.update(pod.key for pod in unit.pods)
            kept = [each for each in chosen.units if each.gang is not unit.gang]
            if unit.breaks_gang and len(kept) < len(chosen.units):
                # The complete gang has the spare pods that were chosen before.
                chosen.tally = self._selection(kept).tally
                chosen.units = kept
            chosen.units.append(unit)
            self._rights.add(chosen.tally, unit)

    def _ease_limits(self, work: ScratchAllocation, chosen: Selection) -> bool:
        """Choose the cheapest units that the limits of queues lack; return whether they suffice."""
        if self._rights.covers_limits(chosen.tally):
            return True
        for unit in self._units:
            if chosen.covers(unit) or not self._rights.eases_limit(unit, chosen.tally):
                continue
            if self._rows.allowed(chosen.tally, unit) is not None:
                self._choose(work, chosen, (unit,))
            if self._rights.covers_limits(chosen.tally):
                return True
        return False

    def _shortest_prefix(self, region: Region) -> Selection | None:
        """Return the shortest sufficient prefix of the candidates that may be evicted together.

        The search doubles the length, then bisects.
        """
        chosen = Selection([], set(), EvictionTally())
        work = self._clearing.base.fork(self._clearing.base.free.copy())
        lengths: list[list[EvictionUnit]] = []
        for unit in self._units:
            if not chosen.covers(unit) and self._rows.allowed(chosen.tally, unit) is not None:
                self._choose(work, chosen, (unit,))
                lengths.append(list(chosen.units))
        low, high = 0, len(lengths)
        if not lengths or not self._suffices(lengths[-1], region):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self._suffices(lengths[middle - 1], region) else (middle, high)
            )
        return self._selection(lengths[high - 1])

    def _suffices(self, units: Sequence[EvictionUnit], region: Region) -> bool:
        return (
            self._rights.covers_limits(self._selection(units).tally)
            and self.place(units, region) is not None
        )

    def _selection(self, units: Sequence[EvictionUnit]) -> Selection:
        tally = EvictionTally()
        for unit in units:
            self._rights.add(tally, unit)
        return Selection(list(units), {pod.key for unit in units for pod in unit.pods}, tally)

    def _spare(self, chosen: Selection, region: Region) -> VictimSet | None:
        """Spare what the gang does not need, the most expensive first: gangs, then single pods."""
        units = list(chosen.units)
        placements = self.place(units, region)
        if placements is None:
            return None
        tries = MAX_SPARED
        listed = sorted(units, key=lambda unit: unit.order, reverse=True)
        gangs = [[u for u in listed if u.gang is gang] for gang in dict.fromkeys(
            unit.gang for unit in listed
        )]  # fmt: skip
        for group in [*gangs, *([unit] for each in gangs if len(each) > 1 for unit in each)]:
            rest = [unit for unit in units if unit not in group]
            if len(rest) == len(units) or not tries:
                continue
            if not self._rights.covers_limits(self._selection(rest).tally):
                continue
            tries -= 1
            without = self.place(rest, region)
            if without is not None:
                units, placements = rest, without
        return VictimSet(tuple(units), tuple(placements))


def place_needed(
    scratch: ScratchAllocation, gang: PendingGang, region: Region
) -> list[Placement] | None:
    """Place the pods that a gang cannot start without; None: they do not fit."""
    scratch.within = region
    mark = scratch.mark()
    place_gang(scratch, gang, gang.pending[: gang.needed])
    placements = scratch.since(mark)
    return placements if gang.satisfied_by(placed_pods(placements)) else None
