"""Trial placement: pods are put on real nodes on paper, and taken back when the gang fails.

A trial works on its own copy of the free amounts. Placements go through a journal, so that a
gang that does not fit leaves no trace.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.model import PodFacts
from gangline.scheduler.nodes import Demand, NodeTable
from gangline.scheduler.plugins.node_scores import (
    AFFINITY_WEIGHT,
    SPARE_DEVICES_WEIGHT,
    Amounts,
    packing,
)

LIKING_WEIGHT = 10.0


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod on a row, on paper."""

    pod: PodFacts
    row: int
    demand: Demand


class Trial:
    """Free amounts that are spent on paper."""

    def __init__(
        self,
        nodes: NodeTable,
        free: Amounts | None = None,
        liking: NDArray[np.float64] | None = None,
    ) -> None:
        self.nodes = nodes
        self.free: Amounts = nodes.allocatable - nodes.used if free is None else free
        self._liking = liking
        """What is added to each row's score, for plans that look at more than packing."""
        self._spares = nodes.has_devices()
        self._journal: list[Placement] = []

    def mark(self) -> int:
        """Return a point to go back to."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Take back every placement since ``mark``."""
        while len(self._journal) > mark:
            placement = self._journal.pop()
            self.free[placement.row, placement.demand.columns] += placement.demand.amounts

    def since(self, mark: int) -> list[Placement]:
        """Return the placements since ``mark``."""
        return self._journal[mark:]

    def place(self, pod: PodFacts) -> bool:
        """Put ``pod`` on the best node that will do; False: there is none."""
        demand = self._demand(pod)
        eligible = self.nodes.eligible(pod.constraints)
        free = self.free[:, demand.columns]
        rows = np.flatnonzero(eligible.accepts & (free >= demand.amounts).all(axis=1))
        if not len(rows):
            return False
        allocatable = self.nodes.allocatable[np.ix_(rows, demand.columns)]
        score = packing(free[rows] - demand.amounts, allocatable, demand.weights)
        if not demand.wants_device:
            score = score - SPARE_DEVICES_WEIGHT * self._spares[rows]
        if eligible.prefers:
            score = score + AFFINITY_WEIGHT * eligible.preference[rows]
        if self._liking is not None:
            score = score + LIKING_WEIGHT * self._liking[rows]
        best = rows[score == score.max()]
        # Equal nodes are told apart by name, never by the order in which they were seen.
        row = int(best[self.nodes.rank()[best].argmin()])
        self.free[row, demand.columns] -= demand.amounts
        self._journal.append(Placement(pod, row, demand))
        return True

    def shortages(self, pod: PodFacts) -> dict[str, int]:
        """Count, by resource, the eligible nodes that have too little of it left for ``pod``."""
        demand = self._demand(pod)
        accepts = self.nodes.eligible(pod.constraints).accepts
        short = self.free[accepts][:, demand.columns] < demand.amounts
        names = {column: name for name, column in self.nodes.columns.items()}
        return {
            names[int(column)]: int(count)
            for column, count in zip(demand.columns, short.sum(axis=0), strict=True)
            if count
        }

    def hold(self, placements: list[Placement]) -> None:
        """Set room aside for whom it was planned; free amounts may go below nothing."""
        for placement in placements:
            self.free[placement.row, placement.demand.columns] -= placement.demand.amounts

    def release(self, placements: list[Placement]) -> None:
        """Give room back that was set aside with ``hold``."""
        for placement in placements:
            self.free[placement.row, placement.demand.columns] += placement.demand.amounts

    def _demand(self, pod: PodFacts) -> Demand:
        demand = self.nodes.demand(pod.request)
        if self.free.shape[1] < self.nodes.allocatable.shape[1]:
            missing = self.nodes.allocatable.shape[1] - self.free.shape[1]
            self.free = np.pad(self.free, ((0, 0), (0, missing)))
        return demand
