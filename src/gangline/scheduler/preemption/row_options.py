"""The options of all nodes for pods of one shape, and which of them is the best one.

Nodes that lack something even if all candidates were evicted are left out. The options of the
others are searched in batches: half of a batch are the nodes with the cheapest candidates, the
others are those that lack least. A further batch follows only if no node of the earlier ones has an
option, so clusters of up to 128 such nodes are searched completely.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.plugins.scores import Amounts
from gangline.scheduler.preemption.clearing import Clearing
from gangline.scheduler.preemption.row_search import RowOption, RowSearch, Selection
from gangline.scheduler.preemption.victim_sets import EvictionUnit
from gangline.scheduler.types.types import PodInfo, PodShape

BATCH = 128
"""Number of nodes in a batch."""
MAX_BATCHES = 8
"""Maximal number of batches for each shape of a gang."""
MAX_ROWS = MAX_BATCHES * BATCH


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
    within: NDArray[np.bool_] | None
    found: Mapping[int, RankedOption | None]
    waiting: Sequence[int]
    """Rows of the later batches."""

    def holds_for(self, work: ScratchAllocation) -> bool:
        """Return whether the same rows may be used, with the same free amounts."""
        return work.within is self.within and np.array_equal(self.free, work.free)


class RowOptions:
    """What the candidates free on each row.

    Args:
        clearing: the free amounts after evictions.
        search: the search on single rows.
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
        self.index = search.order
        self.cheapest = np.full(len(clearing.state.nodes.infos), len(units))
        """Index of the cheapest unit on each row."""
        rows = [[row for _, row in clearing.pods(unit)] for unit in units]
        indexes = np.repeat(np.arange(len(units)), [len(each) for each in rows])
        np.minimum.at(self.cheapest, list(chain.from_iterable(rows)), indexes)
        self._first: dict[PodShape, _FirstBatch] = {}

    def of(self, work: ScratchAllocation, chosen: Selection, pod: PodInfo) -> "ShapeOptions":
        """Return the options of pods like this one."""
        options = ShapeOptions(self, work, chosen, pod)
        if chosen.units or work.has_inter_pod_rules(pod.shape):
            options.waiting = self.rows_for(work, pod)
            return options
        known = self._first.get(pod.shape)
        if known is None or not known.holds_for(work):
            options.waiting = self.rows_for(work, pod)
            options.next_batch()
            known = _FirstBatch(
                work.free.copy(), work.within, dict(options.found), tuple(options.waiting)
            )
            self._first[pod.shape] = known
        options.found, options.waiting = dict(known.found), list(known.waiting)
        options.batches = MAX_BATCHES - 1
        return options

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
        cheapest = rows[np.lexsort((rank, lack[rows], self.cheapest[rows]))][:MAX_ROWS].tolist()
        emptiest = rows[np.lexsort((rank, self.cheapest[rows], lack[rows]))][:MAX_ROWS].tolist()
        both = (row for pair in zip(cheapest, emptiest, strict=True) for row in pair)
        return list(dict.fromkeys(both))


class ShapeOptions:
    """The options for the next pod of one shape, while units are being chosen."""

    def __init__(
        self, options: RowOptions, work: ScratchAllocation, chosen: Selection, pod: PodInfo
    ) -> None:
        self._options, self._work, self._chosen, self._pod = options, work, chosen, pod
        self.waiting: list[int] = []
        """Rows that were not searched yet."""
        self.found: dict[int, RankedOption | None] = {}
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
            candidates = [(row, each) for row, each in self.found.items() if each is not None]
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
        for row in rows & self.found.keys():
            self._search(row)

    def _search(self, row: int) -> None:
        option = self._options.search.option(self._work, self._chosen, self._pod, row)
        if option is None or not option.units:
            self.found[row] = None
            return
        indexes = tuple(sorted(self._options.index[unit] for unit in option.units))
        gain = self._gains.get(option.units)
        if gain is None:
            # The pods of one gang are often on several of the rows.
            gain = self._gains[option.units] = self._gain(option)
        self.found[row] = RankedOption(option, gain, indexes)

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
                more = free + sum(each.get(column, 0) for each in freed)
                after = min(after, max(0, more // amount))
            gain += after - before
        return gain
