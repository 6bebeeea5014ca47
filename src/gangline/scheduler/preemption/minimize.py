"""The minimal set of victims: how many eviction units free enough resources for a gang."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from gangline.scheduler.placement.gang import place_gang, placed_pods
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.plugins.scores import Amounts
from gangline.scheduler.preemption.victim_sets import EvictionUnit
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.types.types import NodeName

_FIRST_GUESS = 4
"""Number of units that is tried first."""


def candidate_orders(units: list[EvictionUnit]) -> Iterator[list[EvictionUnit]]:
    """Yield orders of the candidates: by cost, and with the largest of the cheapest kind first."""
    if not units:
        return
    yield units
    safe = [unit for unit in units if not unit.breaks_gang]
    breaking = [unit for unit in units if unit.breaks_gang]
    largest = sorted(breaking, key=lambda gang: (gang.cost[:2], -len(gang.pods), gang.cost))
    yield [*safe, *largest]


def minimal_prefix(
    scratch: ScratchAllocation, gang: PendingGang, units: Sequence[EvictionUnit]
) -> tuple[list[EvictionUnit], list[Placement]] | None:
    """Return the shortest sufficient prefix of the units; None: all of them are not sufficient.

    The search doubles the length, then bisects. Mostly a few of thousands are sufficient, and the
    others are never considered.
    """
    freeing = _FreedResources(scratch, units)

    def attempt(count: int) -> list[Placement] | None:
        cleared = scratch.fork(freeing.free_after(count))
        mark = cleared.mark()
        place_gang(cleared, gang, gang.pending[: gang.needed])
        placed = cleared.since(mark)
        return placed if gang.satisfied_by(placed_pods(placed)) else None

    low, high = 0, min(_FIRST_GUESS, len(units))
    while (found := attempt(high)) is None:
        if high == len(units):
            return None
        low, high = high, min(2 * high, len(units))
    while high - low > 1:
        middle = (low + high) // 2
        placed = attempt(middle)
        if placed is None:
            low = middle
        else:
            high, found = middle, placed
    return list(units[:high]), found


class _FreedResources:
    """The free amounts after the eviction of a prefix of the units."""

    def __init__(self, scratch: ScratchAllocation, units: Sequence[EvictionUnit]) -> None:
        self._scratch = scratch
        self._units = units
        self._freed: list[list[tuple[int, int, int]]] = []
        """Column, row and amount of each unit that was considered so far."""

    def free_after(self, count: int) -> Amounts:
        for unit in self._units[len(self._freed) : count]:
            self._freed.append(
                [
                    (column, placement.row, amount)
                    for placement in _placements_of(self._scratch, unit)
                    for column, amount, _ in placement.demand.terms
                ]
            )
        free = self._scratch.free.copy()
        cells = [cell for freed in self._freed[:count] for cell in freed]
        if cells:
            columns, rows, amounts = np.array(cells).T
            np.add.at(free, (columns, rows), amounts)
        return free


def reprieve_victims(
    scratch: ScratchAllocation, units: list[EvictionUnit], placements: Sequence[Placement]
) -> list[EvictionUnit]:
    """Reprieve victims, the most expensive first, whose resources the placements do not need."""
    short: dict[int, Counter[int]] = defaultdict(Counter)
    for placement in placements:
        for column, amount, _ in placement.demand.terms:
            short[placement.row][column] += amount * placement.count
    for row, amounts in short.items():
        for column in amounts:
            amounts[column] -= int(scratch.free[column, row])
    freed = {id(unit): list(_placements_of(scratch, unit)) for unit in units}
    for unit in units:
        _add(short, freed[id(unit)], -1)
    needed: list[EvictionUnit] = []
    for unit in reversed(units):
        _add(short, freed[id(unit)], 1)
        if any(short[p.row][c] > 0 for p in freed[id(unit)] for c in short[p.row]):
            _add(short, freed[id(unit)], -1)
            needed.append(unit)
    return needed[::-1]


def _add(short: dict[int, Counter[int]], freed: Iterable[Placement], sign: int) -> None:
    for placement in freed:
        if placement.row in short:
            for column, amount, _ in placement.demand.terms:
                if column in short[placement.row]:
                    short[placement.row][column] += sign * amount * placement.count


def _placements_of(scratch: ScratchAllocation, unit: EvictionUnit) -> Iterator[Placement]:
    for pod in unit.pods:
        row = scratch.nodes.rows.get(pod.node or NodeName(""))
        if row is not None:
            yield Placement((pod,), row, scratch.nodes.demand(pod.shape.request))
