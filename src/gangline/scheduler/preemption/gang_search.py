"""The search for the victims of one gang, in one region: a network domain, or all nodes.

Pods are placed one shape after the other, first on what is free or ending. Then that option of one
node (``row_options``) is chosen that costs least for each pod it makes fit, until all pods fit.

Some sets are found only if the next pod alone counts, or if the victims must also ease the limit of
a queue, so the search is repeated for these. A gang with further rules (roles, subgroups) may not
fit in such a set; then the shortest sufficient prefix of all candidates is tried. Of each set,
gangs are spared one by one, the most expensive first, while the gang can still be placed in any
way. If several gangs are left, single large gangs are tried in their place. The cheapest set wins.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gangline.scheduler.placement.gang import place_gang, placed_pods, placing_order
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.plugins.scores import Amounts
from gangline.scheduler.preemption.fitting_pods import (
    Region,
    SurplusSlots,
    amounts_decide,
    may_fit,
)
from gangline.scheduler.preemption.rights import EvictionRights, EvictionTally
from gangline.scheduler.preemption.row_options import RowOptions, RowSearch, VictimSelection
from gangline.scheduler.preemption.victims import (
    Clearing,
    EvictionCost,
    EvictionUnit,
    RunningGang,
    end_pods,
    total_cost,
)
from gangline.scheduler.queueing.gangs import PendingGang

MAX_SINGLE_GANGS = 16
"""Maximal number of gangs of which it is tried whether one alone is sufficient."""
MAX_SPARED = 32
"""Maximal number of placements that are tried to spare victims."""


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
        sets: list[VictimSet] = []
        # By cost for each pod that fits, then by cost alone: the first way breaks one large gang
        # for many pods, the second one finds the single cheap gang. For one pod they are the same.
        ways = [(True, False), (False, False)]
        if self._rights.excess:
            ways += [(True, True)]
        for by_ratio, eases_limit in ways if len(self._gang.pending) > 1 else ways[1:]:
            chosen = self._collect(region, by_ratio, eases_limit)
            if chosen is not None and (reduced := self._spare(chosen, region)) is not None:
                sets.append(reduced)
        if not sets:
            prefix = self._shortest_prefix(region)
            if prefix is not None and (
                reduced := self._spare(self._on_usable_nodes(prefix, region), region)
            ):
                sets.append(reduced)
        sets += self._single_gangs(sets, region)
        return min(sets, key=lambda victims: victims.order, default=None)

    def _single_gangs(self, sets: Sequence[VictimSet], region: Region) -> list[VictimSet]:
        """Return the first gang that is sufficient alone, if several were chosen: largest first."""
        if not sets or min(total_cost(victims.units).broken for victims in sets) < 2:
            return []
        best = min(total_cost(victims.units) for victims in sets)
        cheaper = [unit for unit in self._units if unit.breaks_gang and unit.cost < best]
        cheaper.sort(key=lambda unit: (unit.cost.broken_tier, -len(unit.pods), unit.order))
        for unit in cheaper[:MAX_SINGLE_GANGS]:
            tally = self._rows.allowed(EvictionTally(), unit)
            if tally is not None and self._rights.covers_limits(tally):
                placements = self.place((unit,), region)
                if placements is not None:
                    return [VictimSet((unit,), tuple(placements))]
        return []

    def _collect(self, region: Region, by_ratio: bool, eases_limit: bool) -> VictimSelection | None:
        """Choose units until all pods that the gang needs fit; None: the search found no way.

        Args:
            by_ratio: whether the number of pods that an option makes fit counts.
            eases_limit: whether the limits of queues are eased first, and by the same victims.
        """
        chosen = VictimSelection([], set(), EvictionTally())
        work = self._clearing.base.fork(self._clearing.base.free.copy())
        work.within = region
        if eases_limit and not self._ease_limits(work, chosen):
            return None
        needed = self._gang.pending[: self._gang.needed]
        for shape, pods in placing_order(work.nodes, self._gang, needed):
            left = list(work.place(shape, pods))
            if len(left) == 1 and not work.depends_on_others(left[0]):
                option = self._options.cheapest(work, chosen, left[0])
                if option is None:
                    return None
                self._choose(work, chosen, option.units)
                left = list(work.place(shape, left))
            options = self._options.of(work, chosen, left[0]) if left else None
            while left and options is not None:
                option = options.best(len(left), by_ratio)
                if option is None:
                    return None
                self._choose(work, chosen, option.units)
                if work.depends_on_others(left[0]):
                    if not work.place_on_row(left[0], option.row):
                        return None
                    left = left[1:]
                left = list(work.place(shape, left))
                # After the placement: what it has used is lacking for the next pod.
                options.update(option)
        return chosen if self._ease_limits(work, chosen) else None

    def _choose(
        self, work: ScratchAllocation, chosen: VictimSelection, units: Iterable[EvictionUnit]
    ) -> None:
        attaches = bool(self._clearing.state.storage.limits)
        for unit in units:
            fresh = [
                placed for placed in self._clearing.pods(unit) if placed[0].key not in chosen.pods
            ]
            # Only the attachments that end depend on them, and there may be thousands.
            earlier = chosen.units if attaches else ()
            gone = [placed for victim in earlier for placed in self._clearing.pods(victim)]
            end_pods(self._clearing.state, work, fresh, [*self._clearing.ending, *gone])
            chosen.pods.update(pod.key for pod in unit.pods)
            if unit.breaks_gang and len(fresh) < len(unit.pods):
                # The complete gang has the spare pods that were chosen before.
                chosen.units = [other for other in chosen.units if other.gang is not unit.gang]
                chosen.tally = self._selection(chosen.units).tally
            chosen.units.append(unit)
            self._rights.add(chosen.tally, unit)

    def _ease_limits(self, work: ScratchAllocation, chosen: VictimSelection) -> bool:
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

    def _shortest_prefix(self, region: Region) -> VictimSelection | None:
        """Return the shortest sufficient prefix of the candidates that may be evicted together.

        The search doubles the length, then bisects.
        """
        chosen = VictimSelection([], set(), EvictionTally())
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

    def _on_usable_nodes(self, chosen: VictimSelection, region: Region) -> VictimSelection:
        """Leave out what ends only on nodes that do not accept the gang, if the rest suffices.

        A prefix has all of the cheapest units, which may be more than can be spared one by one.
        """
        eligible = self._clearing.state.nodes.eligible
        shapes = {pod.shape for pod in self._gang.pending}
        usable = np.logical_or.reduce([eligible(shape.constraints).accepted for shape in shapes])
        usable = usable if region is None else usable & region
        units = [
            unit for unit in chosen.units if usable[list(self._clearing.pods_by_row(unit))].any()
        ]
        return self._selection(units) if self._suffices(units, region) else chosen

    def _suffices(self, units: Sequence[EvictionUnit], region: Region) -> bool:
        return (
            self._rights.covers_limits(self._selection(units).tally)
            and self.place(units, region) is not None
        )

    def _selection(self, units: Sequence[EvictionUnit]) -> VictimSelection:
        tally = EvictionTally()
        for unit in units:
            self._rights.add(tally, unit)
        return VictimSelection(list(units), {pod.key for unit in units for pod in unit.pods}, tally)

    def _spare(self, chosen: VictimSelection, region: Region) -> VictimSet | None:
        """Spare what the gang does not need, the most expensive first: gangs, then single pods.

        Where the amounts alone refuse or decide (``fitting_pods``), nothing is placed. After this
        no gang can be left out, unless ``MAX_SPARED`` placements were not enough.
        """
        units = list(chosen.units)
        placements = self.place(units, region)
        if placements is None:
            return None
        slots = SurplusSlots(self._clearing, units, self._gang, region)
        is_decisive = amounts_decide(self._clearing.base, self._gang)
        tries = MAX_SPARED
        by_gang: dict[RunningGang, list[EvictionUnit]] = {}
        for unit in sorted(units, key=lambda unit: unit.order, reverse=True):
            by_gang.setdefault(unit.gang, []).append(unit)
        single = [[unit] for own in by_gang.values() if len(own) > 1 for unit in own]
        victims = set(units)
        for part in (*by_gang.values(), *single):
            if victims.isdisjoint(part) or not slots.can_spare(part):
                continue
            rest = [unit for unit in units if unit not in part]
            if self._rights.excess and not self._rights.covers_limits(self._selection(rest).tally):
                continue
            if not is_decisive:
                without = self.place(rest, region) if tries else None
                tries -= bool(tries)
                if without is None:
                    continue
                placements = without
            units = rest
            victims.difference_update(part)
            slots.spare(part)
        if is_decisive and len(units) < len(chosen.units):
            placements = self.place(units, region)
            assert placements is not None
        return VictimSet(tuple(units), tuple(placements))


def place_needed(
    scratch: ScratchAllocation, gang: PendingGang, region: Region
) -> list[Placement] | None:
    """Place the pods that a gang cannot start without; None: they do not fit."""
    scratch.within = region
    if not may_fit(scratch.nodes, scratch.free, gang, region):
        return None  # cheap, and most searches end here
    needed = gang.pending[: gang.needed]
    mark = scratch.mark()
    place_gang(scratch, gang, needed)
    placements = scratch.since(mark)
    return placements if gang.satisfied_by(placed_pods(placements)) else None
