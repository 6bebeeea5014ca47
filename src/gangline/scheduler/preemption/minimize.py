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


def candidate_orders(bundles: list[EvictionUnit]) -> Iterator[list[EvictionUnit]]:
    """Yield orders of the candidates: by cost, and with the largest of the cheapest kind first."""
    if not bundles:
        return
    yield bundles
    safe = [bundle for bundle in bundles if not bundle.breaks_gang]
    breaking = [bundle for bundle in bundles if bundle.breaks_gang]
    largest = sorted(breaking, key=lambda unit: (unit.cost[:2], -len(unit.pods), unit.cost))
    yield [*safe, *largest]


def minimal_prefix(
    trial: ScratchAllocation, unit: PendingGang, bundles: Sequence[EvictionUnit]
) -> tuple[list[EvictionUnit], list[Placement]] | None:
    """Return the shortest sufficient prefix of the units; None: all of them are not sufficient.

    The search doubles the length, then bisects. Mostly a few of thousands are sufficient, and the
    others are never considered.
    """
    freeing = _FreedResources(trial, bundles)

    def attempt(count: int) -> list[Placement] | None:
        cleared = trial.fork(freeing.free_after(count))
        mark = cleared.mark()
        place_gang(cleared, unit, unit.pending[: unit.needed])
        placed = cleared.since(mark)
        return placed if unit.satisfied_by(placed_pods(placed)) else None

    low, high = 0, min(_FIRST_GUESS, len(bundles))
    while (found := attempt(high)) is None:
        if high == len(bundles):
            return None
        low, high = high, min(2 * high, len(bundles))
    while high - low > 1:
        middle = (low + high) // 2
        placed = attempt(middle)
        if placed is None:
            low = middle
        else:
            high, found = middle, placed
    return list(bundles[:high]), found


class _FreedResources:
    """The free amounts after the eviction of a prefix of the units."""

    def __init__(self, trial: ScratchAllocation, bundles: Sequence[EvictionUnit]) -> None:
        self._trial = trial
        self._bundles = bundles
        self._freed: list[list[tuple[int, int, int]]] = []
        """Column, row and amount of each unit that was considered so far."""

    def free_after(self, count: int) -> Amounts:
        for bundle in self._bundles[len(self._freed) : count]:
            self._freed.append(
                [
                    (column, placement.row, amount)
                    for placement in _placements_of(self._trial, bundle)
                    for column, amount, _ in placement.demand.terms
                ]
            )
        free = self._trial.free.copy()
        cells = [cell for freed in self._freed[:count] for cell in freed]
        if cells:
            columns, rows, amounts = np.array(cells).T
            np.add.at(free, (columns, rows), amounts)
        return free


def reprieve_victims(
    trial: ScratchAllocation, bundles: list[EvictionUnit], placements: Sequence[Placement]
) -> list[EvictionUnit]:
    """Reprieve victims, the most expensive first, whose resources the placements do not need."""
    short: dict[int, Counter[int]] = defaultdict(Counter)
    for placement in placements:
        for column, amount, _ in placement.demand.terms:
            short[placement.row][column] += amount * placement.count
    for row, amounts in short.items():
        for column in amounts:
            amounts[column] -= int(trial.free[column, row])
    freed = {id(bundle): list(_placements_of(trial, bundle)) for bundle in bundles}
    for bundle in bundles:
        _add(short, freed[id(bundle)], -1)
    needed: list[EvictionUnit] = []
    for bundle in reversed(bundles):
        _add(short, freed[id(bundle)], 1)
        if any(short[p.row][c] > 0 for p in freed[id(bundle)] for c in short[p.row]):
            _add(short, freed[id(bundle)], -1)
            needed.append(bundle)
    return needed[::-1]


def _add(short: dict[int, Counter[int]], freed: Iterable[Placement], sign: int) -> None:
    for placement in freed:
        if placement.row in short:
            for column, amount, _ in placement.demand.terms:
                if column in short[placement.row]:
                    short[placement.row][column] += sign * amount * placement.count


def _placements_of(trial: ScratchAllocation, bundle: EvictionUnit) -> Iterator[Placement]:
    for pod in bundle.pods:
        row = trial.nodes.rows.get(pod.node or NodeName(""))
        if row is not None:
            yield Placement((pod,), row, trial.nodes.demand(pod.shape.request))
