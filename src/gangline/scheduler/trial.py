"""Trial placement: pods are put on real nodes on paper, and taken back when the gang fails.

A trial works on its own copy of the free amounts. Pods that are alike are placed together: packing
fills the best node before it looks at the next, since a node only gets better by being used, so
that one comparison with all nodes serves all of them. Scores are kept for each shape and only
touched rows are worked out again, so that a gang costs what it touches, not what the cluster has.
Placements go through a journal, so that a gang that does not fit leaves no trace.
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
"""Fewer than these are scored one by one: there the arrays would take longer."""


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


@dataclass(slots=True)
class _View:
    """How well each row suits a shape, as things stood when ``seen`` rows had been touched."""

    score: Scores
    """Minus infinity where it does not fit."""
    seen: int
    ground: Ground


@dataclass(slots=True)
class _Filling:
    """Where pods were put last: the best row of those ``within`` for this shape."""

    shape: Shape
    row: int
    within: NDArray[np.bool_] | None
    touched: int
    """How many rows had been touched then."""


class Trial:
    """Free amounts that are spent on paper."""

    def __init__(
        self,
        nodes: NodeTable,
        free: Amounts | None = None,
        liking: NDArray[np.float64] | None = None,
    ) -> None:
        self.nodes = nodes
        self._standing: Amounts | None = None
        """The free amounts as things stand, where the trial begins with them."""
        if free is None:
            self._standing = nodes.allocatable - nodes.used
            free = self._standing.copy()
        self.free: Amounts = free
        self._shared = SharedPlaces(free, nodes.takings) if nodes.takings else None
        self._liking = liking
        """What is added to each row's score, for plans that look at more than packing."""
        self.within: NDArray[np.bool_] | None = None
        """Rows that may be used at the moment; None: all."""
        self._relations_on_paper = False
        """Some pod that is placed on paper wants something of others."""
        self._journal: list[Placement] = []
        self._views: dict[Shape, _View] = {}
        self._touched: list[int] = []
        self._filling: _Filling | None = None

    def mark(self) -> int:
        """Return a point to go back to."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Take back every placement since ``mark``."""
        for placement in self._journal[mark:]:
            self._take(placement, -placement.count)
        del self._journal[mark:]

    def since(self, mark: int) -> list[Placement]:
        """Return the placements since ``mark``."""
        return self._journal[mark:]

    def place(self, shape: Shape, pods: Sequence[PodFacts]) -> Sequence[PodFacts]:
        """Put pods, all of this shape, on the nodes that suit best; return those left over."""
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
        """Put pods on the row where the last of their shape went, if nothing has happened since.

        It was the best then, and has only become better. Pods without a gang come one by one: to
        work out for each which row is the best took most of a decision.
        """
        last = self._filling
        if last is None or last.shape is not shape or last.within is not self.within:
            return pods
        if last.touched != len(self._touched) or not (room := self._room(demand, last.row)):
            return pods
        self._spend(Placement(tuple(pods[:room]), last.row, demand))
        last.touched = len(self._touched)
        return pods[room:]

    def relates(self, shape: Shape) -> bool:
        """Say whether it may make a difference to such pods where others are."""
        return (
            shape.constraints.relations is not None
            or bool(self.nodes.repelling)
            or self._relations_on_paper
        )

    def rows_for(self, shape: Shape) -> list[int]:
        """Return the rows where such a pod has room now, the best first."""
        score = self._view(shape, self.nodes.demand(shape.request)).score
        rows = np.flatnonzero((score > -np.inf) & (True if self.within is None else self.within))
        found: list[int] = rows[np.lexsort((self.nodes.rank()[rows], -score[rows]))].tolist()
        return found

    def on_paper(self) -> list[tuple[PodFacts, int]]:
        """Return all pods that are placed on paper, with their rows."""
        return [(pod, placement.row) for placement in self._journal for pod in placement.pods]

    def _place_related(self, pod: PodFacts, demand: Demand) -> bool:
        """Put one pod on the row that suits best, with regard to the pods that are there."""
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
        """Return the best row; of equal ones the first by rank, never the first that was seen."""
        if not len(score):
            return None
        row = int(score.argmax())
        best = score[row]
        if best == -np.inf:
            return None
        if self.nodes.in_tie_order:
            return row
        # What is equally good comes after it, for argmax finds the first.
        equal = np.flatnonzero(score[row:] == best)
        if len(equal) > 1:
            equal += row
            row = int(equal[self.nodes.rank()[equal].argmin()])
        return row

    def place_together(self, pods: Sequence[PodFacts], avoid: Set[int]) -> int | None:
        """Put all of these pods on the one row that suits best; return it, or None: none will do.

        Args:
            pods: the pods.
            avoid: rows that are not to be used.
        """
        if any(self.relates(pod.shape) for pod in pods):
            return None
        total: Counter[str] = Counter()
        for pod in pods:
            total.update(dict(pod.shape.request))
        request = tuple(sorted(total.items()))
        images = sorted(image for pod in pods for image in pod.shape.images)
        whole = shape_of(request, pods[0].shape.constraints, *images)
        score = score_rows(self._ground(whole), self.nodes.demand(request), None, LIKING_WEIGHT)
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
        """Put a pod on this row, if it may run there and there is room."""
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
        """Say whether there is room for a placement, apart from who may run there."""
        return self._room(placement.demand, placement.row) >= placement.count

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

    def lacking(self, shape: Shape, row: int) -> list[str]:
        """Return what one row has too little of for a pod of this shape."""
        names = {column: name for name, column in self.nodes.columns.items()}
        demand = self.nodes.demand(shape.request)
        return sorted(names[c] for c, amount, _ in demand.parts if self.free[c, row] < amount)

    def spend(self, pod: PodFacts, row: int) -> None:
        """Give a pod room on a row, whether it may run there or not."""
        self.hold([Placement((pod,), row, self.nodes.demand(pod.shape.request))])

    def hold(self, placements: Iterable[Placement]) -> None:
        """Spend room; what is set aside for others may take free amounts below nothing."""
        for placement in placements:
            self._take(placement, placement.count, planned=True)

    def release(self, placements: Iterable[Placement]) -> None:
        """Give room back that was spent with ``hold``."""
        for placement in placements:
            self._take(placement, -placement.count, planned=True)

    def _take(self, placement: Placement, count: int, planned: bool = False) -> None:
        """Spend what so many pods ask for; below nothing: give it back."""
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
        """Return a trial with what is on paper here, but these free amounts."""
        other = Trial(self.nodes, free)
        other._journal = list(self._journal)
        other._relations_on_paper = self._relations_on_paper
        return other

    def _view(self, shape: Shape, demand: Demand) -> _View:
        """Return how well each row suits, brought up to date."""
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
        """How many such pods a row takes."""
        free = self.free
        return min(
            [free.item(column, row) // amount for column, amount, _ in demand.parts],
            default=sys.maxsize,
        )

    def _ground(self, shape: Shape) -> Ground:
        ground = self.nodes.ground(shape, self.free)
        return ground if self._liking is None else replace(ground, liking=self._liking)
