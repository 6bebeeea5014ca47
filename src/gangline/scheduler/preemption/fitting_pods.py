"""How many pods of each shape fit by their amounts alone: a bound for the search of victims.

A placement of 20,000 pods takes a second, and most of the tried ones do not fit. If the nodes
together have too few slots for the pods of one shape, no placement exists, whatever other rules
say. For pods of a single shape without such rules the number of slots decides completely.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.cache.node_table import NodeTable
from gangline.scheduler.placement.scratch import ScratchAllocation, may_hold
from gangline.scheduler.plugins.scores import Amounts
from gangline.scheduler.preemption.victims import Clearing, EvictionUnit
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.types import PodShape

Terms: TypeAlias = tuple[tuple[int, int, float], ...]
"""Column, amount and weight of each requested resource."""
Region: TypeAlias = NDArray[np.bool_] | None
"""Mask of the rows that may be used; None: all rows."""


def required_shapes(nodes: NodeTable, gang: PendingGang) -> Mapping[PodShape, int]:
    """Return the number of pods of each shape that a gang cannot start without; empty: unknown.

    Any of several subgroups may be enough, and pods that share a volume attach it once.
    """
    if gang.subgroups or nodes.attachment_columns:
        return {}
    return Counter(pod.shape for pod in gang.pending[: gang.needed])


def amounts_decide(scratch: ScratchAllocation, gang: PendingGang) -> bool:
    """Return whether the number of slots alone decides if a gang fits."""
    nodes, needed = scratch.nodes, gang.pending[: gang.needed]
    return (
        gang.network is None
        and len(required_shapes(nodes, gang)) == 1
        and not nodes.storage.limits
        and not any(map(scratch.depends_on_others, needed))
    )


def may_fit(nodes: NodeTable, free: Amounts, gang: PendingGang, region: Region) -> bool:
    """Return False if these amounts hold too few pods of one shape for the gang to start."""
    shapes = required_shapes(nodes, gang)
    if not shapes:
        needed = gang.pending[: gang.needed]
        return not needed or may_hold(nodes, free, needed, region)
    for shape, count in shapes.items():
        rows = nodes.eligible(shape.constraints).accepted
        rows = rows if region is None else rows & region
        terms = nodes.demand(shape.request).terms
        for column, amount, _ in terms:
            rows = rows & (free[column] >= amount)
        nonempty = np.count_nonzero(rows)
        if nonempty < count and not (nonempty and _slots(free[:, rows], terms) >= count):
            return False
    return True


def _slots(free: Amounts, terms: Terms) -> int:
    """Return the number of pods that fit on these rows."""
    slots = [free[column] // amount for column, amount, _ in terms]
    return int(np.maximum(np.minimum.reduce(slots), 0).sum()) if slots else sys.maxsize


class SurplusSlots:
    """The slots beyond those that a gang needs, while victims are spared one after the other.

    Args:
        units: the victims so far.
    """

    def __init__(
        self,
        clearing: Clearing,
        units: Iterable[EvictionUnit],
        gang: PendingGang,
        region: Region,
    ) -> None:
        self._clearing, self._free = clearing, clearing.free_after(units)
        nodes = clearing.state.nodes
        self._shapes: list[tuple[NDArray[np.bool_], Terms, int]] = []
        """Usable rows, demand and surplus of each shape."""
        # `free_after` does not know which attachments end.
        shapes = {} if nodes.storage.limits else required_shapes(nodes, gang)
        for shape, count in shapes.items():
            rows = nodes.eligible(shape.constraints).accepted
            rows = rows if region is None else rows & region
            terms = nodes.demand(shape.request).terms
            self._shapes.append((rows, terms, _slots(self._free[:, rows], terms) - count))

    def can_spare(self, units: Iterable[EvictionUnit]) -> bool:
        """Return whether there are enough slots without the eviction of these units."""
        return all(surplus >= 0 for _, _, surplus in self._after(units)[2])

    def spare(self, units: Iterable[EvictionUnit]) -> None:
        rows, free, self._shapes = self._after(units)
        self._free[:, rows] = free

    def _after(
        self, units: Iterable[EvictionUnit]
    ) -> tuple[list[int], Amounts, list[tuple[NDArray[np.bool_], Terms, int]]]:
        """Return the rows that change, what is free there, and the shapes afterwards."""
        taken = [
            (row, self._clearing.freed_by(unit, row))
            for unit in units
            for row in self._clearing.pods_by_row(unit)
        ]
        rows = sorted({row for row, _ in taken})
        index = {row: position for position, row in enumerate(rows)}
        before = self._free[:, rows]
        after = before.copy()
        for row, amounts in taken:
            for column, amount in amounts.items():
                after[column, index[row]] -= amount
        shapes = []
        for usable, terms, surplus in self._shapes:
            here = usable[rows]
            lost = _slots(before[:, here], terms) - _slots(after[:, here], terms)
            shapes.append((usable, terms, surplus - lost))
        return rows, after, shapes
