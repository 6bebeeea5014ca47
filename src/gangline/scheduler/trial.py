"""The scratch allocation: tentative placement of pods on nodes, with rollback.

It works on its own copy of the free amounts. Pods of one shape are placed together: packing fills
the best node before it considers the next one. A used node only gets better, so one comparison with
all nodes serves all pods of the shape. Scores are cached for each shape, and only changed rows are
computed again, so a gang costs what it touches. Placements are recorded in a journal, so a gang
that does not fit is rolled back completely.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler import related
from gangline.scheduler.demand import Demand
from gangline.scheduler.model import PodFacts, Shape, shape_of
from gangline.scheduler.nodes import NodeTable
from gangline.scheduler.plugins.node_scores import Amounts, Scores
from gangline.scheduler.scoring import Ground, score_row, score_rows
from gangline.scheduler.shared_places import SharedPlaces

LIKING_WEIGHT = 10.0
FEW_ROWS = 8
"""Fewer rows than this are scored one by one: array operations would take longer."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Pods of one shape on one row, tentatively."""

    pods: tuple[PodFacts, ...]
    row: int
    demand: Demand
    absent: int = 0
    """Number of further pods that do not exist yet."""

    @property
    def count(self) -> int:
        """How many times the demand is charged."""
        return len(self.pods) + self.absent


@dataclass(slots=True)
class _View:
    """The score of each row for a shape, when ``seen`` changes of rows had been recorded."""

    score: Scores
    """Minus infinity where a pod does not fit."""
    seen: int
    ground: Ground


@dataclass(slots=True)
class _Filling:
    """The row of the last placement: the best row in ``within`` for this shape."""

    shape: Shape
    row: int
    within: NDArray[np.bool_] | None
    touched: int
    """Number of recorded changes of rows at that time."""


class Trial:
    """Free amounts that are charged tentatively."""

    def __init__(
        self,
        nodes: NodeTable,
        free: Amounts | None = None,
        liking: NDArray[np.float64] | None = None,
    ) -> None:
        self.nodes = nodes
        self._standing: Amounts | None = None
        """The free amounts of the cache, if the allocation starts with them."""
        if free is None:
            self._standing = nodes.allocatable - nodes.used
            free = self._standing.copy()
        self.free: Amounts = free
        self._shared = SharedPlaces(free, nodes.takings) if nodes.takings else None
        self._liking = liking
        """Added to each row's score, for plans that consider more than packing."""
        self.within: NDArray[np.bool_] | None = None
        """Mask of the rows that may be used now; None: all rows."""
        self._relations_on_paper = False
        """True if a tentatively placed pod has inter-pod rules."""
        self._journal: list[Placement] = []
        self._views: dict[Shape, _View] = {}
        self._touched: list[int] = []
        self._filling: _Filling | None = None

    def mark(self) -> int:
        """Return a point for ``rollback``."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        for placement in self._journal[mark:]:
            self._take(placement, -placement.count)
        del self._journal[mark:]

    def since(self, mark: int) -> list[Placement]:
        return self._journal[mark:]

    def place(self, shape: Shape, pods: Sequence[PodFacts]) -> Sequence[PodFacts]:
        """Place pods, all of this shape, on the best nodes; return those that found no node."""
        demand = self.nodes.demand(shape.request)
        if self.relates(shape):
            return [pod for pod in pods if not self._place_related(pod, demand)]
        pods = self._fill_further(shape, demand, pods)
        if not pods:
            return pods
        view = self._view(shape, demand)
        score = view.score if self.within is None else np.where(self.within, view.score, -np.inf)
        weights = self.nodes.weights
        while pods:
            row = self._best(score)
            if row is None:
                return pods
            count = 1 if weights.one_by_one else min(self._room(demand, row), len(pods))
            self._spend(Placement(tuple(pods[:count]), row, demand))
            pods = pods[count:]
            one = weights.one_by_one
            score[row] = score_row(view.ground, demand, row, LIKING_WEIGHT) if one else -np.inf
            if weights.stays_best and self._shared is None:
                self._filling = _Filling(shape, row, self.within, len(self._touched))
        return pods

    def _fill_further(
        self, shape: Shape, demand: Demand, pods: Sequence[PodFacts]
    ) -> Sequence[PodFacts]:
        """Place pods on the row of the last placement of their shape, if nothing has changed since.

        It was the best row then, and its score has only grown. Pods without a gang come one by one,
        and finding the best row for each of them took most of a cycle.
        """
        last = self._filling
        if last is None or last.shape is not shape or last.within is not self.within:
            return pods
        if last.touched != len(self._touched) or not (fitting := self._room(demand, last.row)):
            return pods
        self._spend(Placement(tuple(pods[:fitting]), last.row, demand))
        last.touched = len(self._touched)
        return pods[fitting:]

    def relates(self, shape: Shape) -> bool:
        """Return whether inter-pod rules may apply to pods of this shape."""
        return (
            shape.constraints.relations is not None
            or bool(self.nodes.repelling)
            or self._relations_on_paper
        )

    def rows_for(self, shape: Shape) -> list[int]:
        """Return the rows where a pod of this shape fits now, the best first."""
        score = self._view(shape, self.nodes.demand(shape.request)).score
        rows = np.flatnonzero((score > -np.inf) & (True if self.within is None else self.within))
        found: list[int] = rows[np.lexsort((self.nodes.rank()[rows], -score[rows]))].tolist()
        return found

    def on_paper(self) -> list[tuple[PodFacts, int]]:
        """Return all tentatively placed pods, with their rows."""
        return [(pod, placement.row) for placement in self._journal for pod in placement.pods]

    def _place_related(self, pod: PodFacts, demand: Demand) -> bool:
        """Place one pod on the best row that inter-pod rules allow."""
        placed = self.on_paper()
        standing = self._view(pod.shape, demand).score
        score = np.where(related.allowed(self.nodes, pod, placed), standing, -np.inf)
        score += related.liking(self.nodes, pod, placed)
        if self.within is not None:
            score[~self.within] = -np.inf
        row = self._best(score)
        if row is not None:
            self._spend(Placement((pod,), row, demand))
        return row is not None

    def _best(self, score: Scores) -> int | None:
        """Return the best row; of equal rows the first by rank, independent of the row order."""
        if not len(score):
            return None
        row = int(score.argmax())
        best = score[row]
        if best == -np.inf:
            return None
        if self.nodes.in_tie_order:
            return row
        # Equal rows come after it: argmax returns the first.
        equal = np.flatnonzero(score[row:] == best)
        if len(equal) > 1:
            equal += row
            row = int(equal[self.nodes.rank()[equal].argmin()])
        return row

    def place_together(self, pods: Sequence[PodFacts], avoid: Set[int]) -> int | None:
        """Place all of these pods on the one best row; return it, or None if no row holds them.

        Args:
            pods: the pods.
            avoid: rows that must not be used.
        """
        if any(self.relates(pod.shape) for pod in pods):
            return None
        total: Counter[str] = Counter()
        for pod in pods:
            total.update(dict(pod.shape.request))
        request = tuple(sorted(total.items()))
        images = sorted(image for pod in pods for image in pod.shape.images)
        combined = shape_of(request, pods[0].shape.constraints, *images)
        score = score_rows(self._ground(combined), self.nodes.demand(request), None, LIKING_WEIGHT)
        for constraints in {pod.shape.constraints for pod in pods}:
            score[~self.nodes.eligible(constraints).accepts] = -np.inf
        if self.within is not None:
            score[~self.within] = -np.inf
        score[list(avoid)] = -np.inf
        row = self._best(score)
        if row is not None:
            for pod in pods:
                self.put(pod, row)
        return row

    def put(self, pod: PodFacts, row: int) -> bool:
        """Place a pod on this row if it is accepted there and fits; return whether it is placed."""
        if self.within is not None and not self.within[row]:
            return False
        demand = self.nodes.demand(pod.shape.request)
        accepts = self.nodes.eligible(pod.shape.constraints).accepts[row]
        if not accepts or self._room(demand, row) < 1:
            return False
        if self.relates(pod.shape) and not related.allowed(self.nodes, pod, self.on_paper())[row]:
            return False
        self._spend(Placement((pod,), row, demand))
        return True

    def has_room(self, placement: Placement) -> bool:
        """Return whether a placement fits, apart from constraints."""
        return self._room(placement.demand, placement.row) >= placement.count

    def shortages(self, shape: Shape) -> dict[str, int]:
        """Return, by resource, the number of eligible nodes with too little of it."""
        demand = self.nodes.demand(shape.request)
        accepts = self.nodes.eligible(shape.constraints).accepts
        names = {column: name for name, column in self.nodes.columns.items()}
        short = {
            names[column]: int(np.count_nonzero(accepts & (self.free[column] < amount)))
            for column, amount, _ in demand.parts
        }
        return {name: count for name, count in short.items() if count}

    def lacking(self, shape: Shape, row: int) -> list[str]:
        """Return the resources of which one row has too little for a pod of this shape."""
        names = {column: name for name, column in self.nodes.columns.items()}
        demand = self.nodes.demand(shape.request)
        return sorted(names[c] for c, amount, _ in demand.parts if self.free[c, row] < amount)

    def spend(self, pod: PodFacts, row: int) -> None:
        """Charge a pod to a row, whether it is accepted there or not."""
        self.hold([Placement((pod,), row, self.nodes.demand(pod.shape.request))])

    def hold(self, placements: Iterable[Placement]) -> None:
        """Charge reservations. Free amounts may become negative: reserved resources may still be in
        use.
        """
        for placement in placements:
            self._take(placement, placement.count, planned=True)

    def release(self, placements: Iterable[Placement]) -> None:
        """Release what ``hold`` charged."""
        for placement in placements:
            self._take(placement, -placement.count, planned=True)

    def _take(self, placement: Placement, count: int, planned: bool = False) -> None:
        """Charge the demand ``count`` times; negative: release it."""
        row, parts = placement.row, placement.demand.parts
        self._touched.append(row)
        for column, amount, _ in parts:
            self.free[column, row] -= amount * count
        if self._shared is not None:
            self._shared.settle(row, [column for column, _, _ in parts], count, planned)

    def _spend(self, placement: Placement) -> None:
        self._take(placement, placement.count)
        self._journal.append(placement)
        if placement.pods and placement.pods[0].shape.constraints.relations is not None:
            self._relations_on_paper = True

    def fork(self, free: Amounts) -> "Trial":
        """Return an allocation with the same tentative placements and these free amounts."""
        other = Trial(self.nodes, free)
        other._journal = list(self._journal)
        other._relations_on_paper = self._relations_on_paper
        return other

    def _view(self, shape: Shape, demand: Demand) -> _View:
        """Return the current score of each row."""
        view = self._views.get(shape)
        if view is None:
            ground = self._ground(shape)
            if self._standing is None:
                score, seen = score_rows(ground, demand, None, LIKING_WEIGHT), len(self._touched)
            else:
                score, seen = self.nodes.scores(shape, self._standing).copy(), 0
            view = self._views[shape] = _View(score, seen, ground)
        if view.seen < len(self._touched):
            rows = set(self._touched[view.seen :])
            if len(rows) < FEW_ROWS:
                for row in rows:
                    view.score[row] = score_row(view.ground, demand, row, LIKING_WEIGHT)
            else:
                many = np.array(sorted(rows), dtype=np.intp)
                view.score[many] = score_rows(view.ground, demand, many, LIKING_WEIGHT)
            view.seen = len(self._touched)
        return view

    def _room(self, demand: Demand, row: int) -> int:
        """Return how many pods of this demand fit on a row."""
        free = self.free
        return min(
            [free.item(column, row) // amount for column, amount, _ in demand.parts],
            default=sys.maxsize,
        )

    def _ground(self, shape: Shape) -> Ground:
        ground = self.nodes.ground(shape, self.free)
        return ground if self._liking is None else replace(ground, liking=self._liking)
