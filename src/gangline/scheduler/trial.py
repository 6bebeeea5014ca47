"""Trial placement: pods are put on real nodes on paper, and taken back when the gang fails.

A trial works on its own copy of the free amounts. Pods that are alike are placed together: packing
fills the best node before it looks at the next, since a node only gets better by being used, so
that one comparison with all nodes serves all of them. Placements go through a journal, so that a
gang that does not fit leaves no trace.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.model import PodFacts, Shape
from gangline.scheduler.nodes import Demand, NodeTable
from gangline.scheduler.plugins.node_scores import (
    AFFINITY_WEIGHT,
    SPARE_DEVICES_WEIGHT,
    Amounts,
    Scores,
)

LIKING_WEIGHT = 10.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Pods that are alike on one row, on paper."""

    pods: tuple[PodFacts, ...]
    row: int
    demand: Demand
    absent: int = 0
    """Further pods that nobody has seen yet."""

    @property
    def count(self) -> int:
        """How many times the demand is spent."""
        return len(self.pods) + self.absent


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
        self.release(self._journal[mark:])
        del self._journal[mark:]

    def since(self, mark: int) -> list[Placement]:
        """Return the placements since ``mark``."""
        return self._journal[mark:]

    def place(self, shape: Shape, pods: Sequence[PodFacts]) -> Sequence[PodFacts]:
        """Put pods, all of this shape, on the nodes that suit best; return those left over."""
        demand = self.nodes.demand(shape.request)
        rows = np.flatnonzero(self._fits(shape, demand))
        if not len(rows):
            return pods
        score = self._score(shape, demand, rows)
        rank = self.nodes.rank()[rows]
        while pods:
            best = score.max()
            if best == -np.inf:
                return pods
            # Equal nodes are told apart by name, never by the order in which they were seen.
            candidates = np.flatnonzero(score == best)
            chosen = candidates[rank[candidates].argmin()]
            row = int(rows[chosen])
            count = min(self._room(demand, row), len(pods))
            placement = Placement(tuple(pods[:count]), row, demand)
            self.hold([placement])
            self._journal.append(placement)
            pods = pods[count:]
            score[chosen] = -np.inf
        return pods

    def put(self, pod: PodFacts, row: int) -> bool:
        """Put a pod on this row, if it may run there and there is room."""
        demand = self.nodes.demand(pod.shape.request)
        accepts = self.nodes.eligible(pod.shape.constraints).accepts[row]
        if not accepts or not self._room(demand, row):
            return False
        placement = Placement((pod,), row, demand)
        self.hold([placement])
        self._journal.append(placement)
        return True

    def shortages(self, shape: Shape) -> dict[str, int]:
        """Count, by resource, the eligible nodes that have too little of it left."""
        demand = self.nodes.demand(shape.request)
        accepts = self.nodes.eligible(shape.constraints).accepts
        names = {column: name for name, column in self.nodes.columns.items()}
        short = {
            names[column]: int(np.count_nonzero(accepts & (self.free[column] < amount)))
            for column, amount, _ in demand.parts
        }
        return {name: count for name, count in short.items() if count}

    def hold(self, placements: Iterable[Placement]) -> None:
        """Spend room; what is set aside for others may take free amounts below nothing."""
        for placement in placements:
            for column, amount, _ in placement.demand.parts:
                self.free[column, placement.row] -= amount * placement.count

    def release(self, placements: Iterable[Placement]) -> None:
        """Give room back that was spent with ``hold``."""
        for placement in placements:
            for column, amount, _ in placement.demand.parts:
                self.free[column, placement.row] += amount * placement.count

    def _fits(self, shape: Shape, demand: Demand) -> NDArray[np.bool_]:
        fits = self.nodes.eligible(shape.constraints).accepts.copy()
        for column, amount, _ in demand.parts:
            fits &= self.free[column] >= amount
        return fits

    def _room(self, demand: Demand, row: int) -> int:
        """How many such pods a row takes."""
        return min(
            (int(self.free[column, row]) // amount for column, amount, _ in demand.parts),
            default=sys.maxsize,
        )

    def _score(self, shape: Shape, demand: Demand, rows: NDArray[np.intp]) -> Scores:
        """Prefer the row that is fullest afterwards, over what the pod asks for."""
        score: Scores = np.zeros(len(rows))
        weights = 0.0
        for column, amount, weight in demand.parts:
            if weight:
                total = np.maximum(self.nodes.allocatable[column, rows], 1)
                score += weight * (1.0 - (self.free[column, rows] - amount) / total)
                weights += weight
        score /= max(weights, 1e-9)
        eligible = self.nodes.eligible(shape.constraints)
        if not demand.wants_device:
            score -= SPARE_DEVICES_WEIGHT * self._spares[rows]
        if eligible.prefers:
            score += AFFINITY_WEIGHT * eligible.preference[rows]
        if self._liking is not None:
            score += LIKING_WEIGHT * self._liking[rows]
        return score
