"""The scratch allocation: tentative placement of pods on nodes, with rollback.

It works on its own copy of the free amounts. Pods of one shape are placed together: packing fills
the best node before it considers the next one. A used node gets better, unless the next pod would
strand devices, so one comparison with all nodes serves several pods of the shape. Scores are cached
for each shape, and only changed rows are computed again, so a gang costs what it touches.
Placements are recorded in a journal, so a gang that does not fit is rolled back completely. Pods
that depend on the places of others (inter-pod rules, claims that compete for volumes) are placed
one by one.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.cache import inter_pod
from gangline.scheduler.cache.node_stats import ResourceDemand, ScoringInputs, score_row, score_rows
from gangline.scheduler.cache.node_table import NodeTable
from gangline.scheduler.cache.volume_limits import SharedAttachments
from gangline.scheduler.placement.device_matching import DeviceMatching
from gangline.scheduler.placement.volume_matching import VolumeMatching
from gangline.scheduler.plugins.inter_pod import Mask
from gangline.scheduler.plugins.scores import Amounts, Scores
from gangline.scheduler.types import PodInfo, PodShape, shape_of

EXTRA_SCORE_WEIGHT = 10.0
FEW_ROWS = 32
"""Fewer rows than this are scored one by one: array operations would take longer."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Pods of one shape on one row, tentatively."""

    pods: tuple[PodInfo, ...]
    row: int
    demand: ResourceDemand
    unseen_pods: int = 0
    """Number of further pods that do not exist yet."""

    @property
    def count(self) -> int:
        """How many times the demand is charged."""
        return len(self.pods) + self.unseen_pods


@dataclass(slots=True)
class _ShapeScores:
    """The score of each row for a shape, when ``seen`` changes of rows had been recorded."""

    score: Scores
    """Minus infinity where a pod does not fit."""
    seen: int
    inputs: ScoringInputs


@dataclass(slots=True)
class _LastPlacement:
    """The row of the last placement: the best row in ``within`` for this shape."""

    shape: PodShape
    row: int
    within: NDArray[np.bool_] | None
    touched: int
    """Number of recorded changes of rows at that time."""
    best: float
    """The score of the row when it was chosen: no other row had a higher one."""
    inputs: ScoringInputs


class ScratchAllocation:
    """Free amounts that are charged tentatively."""

    def __init__(
        self,
        nodes: NodeTable,
        free: Amounts | None = None,
        extra_score: NDArray[np.float64] | None = None,
    ) -> None:
        self.nodes = nodes
        self._initial_free: Amounts | None = None
        """The free amounts of the cache, if the allocation starts with them."""
        if free is None:
            self._initial_free = nodes.allocatable - nodes.used
            free = self._initial_free.copy()
        self.free: Amounts = free
        self._reserved: Amounts | None = None
        """What ``reserve`` has charged and ``release`` has not released; None: nothing."""
        self._shared = (
            SharedAttachments(free, nodes.attachment_columns) if nodes.attachment_columns else None
        )
        self.volumes = VolumeMatching(nodes)
        self.devices = DeviceMatching(nodes)
        self._has_claims = bool(nodes.storage.waiting_pods) or nodes.devices.pending_users > 0
        """False if no pending pod has a claim: then none costs time."""
        self._extra_score = extra_score
        """Added to each row's score, for plans that consider more than packing."""
        self.within: NDArray[np.bool_] | None = None
        """Mask of the rows that may be used now; None: all rows."""
        self._has_tentative_rules = False
        """True if a tentatively placed pod has inter-pod rules."""
        self._gone: list[tuple[PodInfo, int]] = []
        """Running pods that count as ended, with their rows."""
        self._staying: inter_pod.StayingPods | None = None
        """The running pods that do not count as ended; None: all but ``_gone``."""
        self._journal: list[Placement] = []
        self._shape_scores: dict[tuple[PodShape, int], _ShapeScores] = {}
        """By shape, and number of pods that are placed together."""
        self._touched: list[int] = []
        self._last_placement: _LastPlacement | None = None

    def mark(self) -> int:
        """Return a point for ``rollback``."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        # `_has_tentative_rules` stays set: that costs time, and no placement is wrong.
        for placement in self._journal[mark:]:
            self._charge(placement, -placement.count)
        del self._journal[mark:]

    def take_back(self, pod: PodInfo) -> None:
        """Undo the tentative placement of one pod that was placed by itself, the last such one."""
        index = max(i for i, placement in enumerate(self._journal) if placement.pods == (pod,))
        placement = self._journal.pop(index)
        self._charge(placement, -placement.count)

    def since(self, mark: int) -> list[Placement]:
        return self._journal[mark:]

    def place(self, shape: PodShape, pods: Sequence[PodInfo]) -> Sequence[PodInfo]:
        """Place pods, all of this shape, on the best nodes; return those that found no node."""
        demand = self.nodes.demand(shape.request)
        if self.has_inter_pod_rules(shape):
            return [pod for pod in pods if not self._place_one(pod, demand)]
        if self._has_claims and any(map(self.matches_claims, pods)):
            matched = [pod for pod in pods if self.matches_claims(pod)]
            others = [pod for pod in pods if not self.matches_claims(pod)]
            unplaced = [pod for pod in matched if not self._place_one(pod, demand)]
            return [*unplaced, *self._place_equal(shape, demand, others)]
        return self._place_equal(shape, demand, pods)

    def _place_equal(
        self, shape: PodShape, demand: ResourceDemand, pods: Sequence[PodInfo]
    ) -> Sequence[PodInfo]:
        """Place pods of which only the shape matters."""
        pods = self._continue_on_last_row(shape, demand, pods)
        one_by_one = self.nodes.weights.scores_each_pod
        view: _ShapeScores | None = None
        row: int | None = None
        start = 0  # a slice of the rest for each node would copy a large gang many times
        while start < len(pods):
            left = len(pods) - start
            block = 1 if one_by_one else self.nodes.block_size(demand, left)
            former, view = view, self._scores_of(shape, demand, block)
            if self.within is None:
                score = view.score
            elif view is not former:
                score = np.where(self.within, view.score, -np.inf)
            elif row is not None:
                score[row] = view.score[row]
            row = self._best(score)
            if row is None:
                break
            if not one_by_one and _only_gets_better(view.inputs, row):
                block = left
            count = min(self._pods_that_fit(demand, row), block)
            self._place(Placement(tuple(pods[start : start + count]), row, demand))
            start += count
            if not one_by_one and self._shared is None:
                self._last_placement = _LastPlacement(
                    shape, row, self.within, len(self._touched), score.item(row), view.inputs
                )
        return pods[start:]

    def _continue_on_last_row(
        self, shape: PodShape, demand: ResourceDemand, pods: Sequence[PodInfo]
    ) -> Sequence[PodInfo]:
        """Place pods on the row of the last placement of their shape, if nothing has changed since.

        It was the best row then, and remains so while its score is not lower. Pods without a gang
        come one by one, and finding the best row for each of them took most of a cycle.
        """
        last = self._last_placement
        if last is None or last.shape is not shape or last.within is not self.within:
            return pods
        if last.touched != len(self._touched) or not (
            fitting := self._pods_that_fit(demand, last.row)
        ):
            return pods
        if not _only_gets_better(last.inputs, last.row) and (
            len(pods) > 1
            or last.inputs.block > 1
            or score_row(last.inputs, demand, last.row, EXTRA_SCORE_WEIGHT) < last.best
        ):
            return pods
        self._place(Placement(tuple(pods[:fitting]), last.row, demand))
        last.touched = len(self._touched)
        return pods[fitting:]

    def depends_on_others(self, pod: PodInfo) -> bool:
        """Return whether the places of other pods, apart from amounts, may matter to a pod."""
        return self.has_inter_pod_rules(pod.shape) or self.matches_claims(pod)

    def matches_claims(self, pod: PodInfo) -> bool:
        """Return whether a pod has claims whose volumes or devices depend on other pods."""
        return self.volumes.concerns(pod) or self.devices.concerns(pod)

    def claims_refusal(self, pods: Sequence[PodInfo], row: int) -> str:
        """Return why these pods cannot have their volumes and devices on one more row; empty: they
        can.
        """
        return self.volumes.refusal(pods, row) or self.devices.refusal(pods, row)

    def has_inter_pod_rules(self, shape: PodShape) -> bool:
        """Return whether inter-pod rules may apply to pods of this shape."""
        return (
            shape.constraints.inter_pod is not None
            or bool(self.nodes.anti_affinity_owners)
            or self._has_tentative_rules
        )

    def rows_for(self, shape: PodShape) -> list[int]:
        """Return the rows where a pod of this shape fits now, the best first."""
        score = self._scores_of(shape, self.nodes.demand(shape.request)).score
        rows = np.flatnonzero((score > -np.inf) & (True if self.within is None else self.within))
        ordered: list[int] = rows[np.lexsort((self.nodes.rank()[rows], -score[rows]))].tolist()
        return ordered

    def tentative(self) -> list[tuple[PodInfo, int]]:
        """Return all tentatively placed pods, with their rows."""
        return [(pod, placement.row) for placement in self._journal for pod in placement.pods]

    def _place_one(self, pod: PodInfo, demand: ResourceDemand) -> bool:
        """Place one pod on the best row that inter-pod rules and its volumes allow."""
        if self.volumes.is_in_use(pod):
            return False
        score = self._scores_of(pod.shape, demand).score
        if self.has_inter_pod_rules(pod.shape):
            placed = self.tentative()
            mask = self._inter_pod_mask(pod, placed)
            score = np.where(mask, score, -np.inf)
            score += inter_pod.inter_pod_score(self.nodes, pod, placed)
        else:
            score = score.copy()
        if self.within is not None:
            score[~self.within] = -np.inf
        row = self._best_with_claims(score, (pod,))
        if row is not None:
            self._place(Placement((pod,), row, demand))
        return row is not None

    def _best_with_claims(self, score: Scores, pods: Sequence[PodInfo]) -> int | None:
        """Return the best row where these pods can have their volumes and devices."""
        first = self._best(score)
        if first is None or not self.claims_refusal(pods, first):
            return first
        free = self._best(np.where(self.volumes.rows_with_free(pods), score, -np.inf))
        if free is not None and not self.claims_refusal(pods, free):
            return free
        # Only volumes of other claims are left: these may get others.
        rows = np.flatnonzero(score > -np.inf)
        ordered = rows[np.lexsort((self.nodes.rank()[rows], -score[rows]))].tolist()
        refusals = self.volumes.refusals(pods, ordered)
        return next(
            (row for row, why in refusals if not (why or self.devices.refusal(pods, row))), None
        )

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

    def place_together(self, pods: Sequence[PodInfo], avoid: Set[int]) -> int | None:
        """Place all of these pods on the one best row; return it, or None if no row holds them.

        Args:
            avoid: rows that must not be used.
        """
        if any(self.has_inter_pod_rules(pod.shape) for pod in pods):
            return None
        total: Counter[str] = Counter()
        for pod in pods:
            total.update(dict(pod.shape.request))
        request = tuple(sorted(total.items()))
        images = sorted(image for pod in pods for image in pod.shape.images)
        combined = shape_of(request, pods[0].shape.constraints, *images)
        score = score_rows(
            self._scoring_inputs(combined), self.nodes.demand(request), None, EXTRA_SCORE_WEIGHT
        )
        for constraints in {pod.shape.constraints for pod in pods}:
            score[~self.nodes.eligible(constraints).accepted] = -np.inf
        if self.within is not None:
            score[~self.within] = -np.inf
        score[list(avoid)] = -np.inf
        row = self._best_with_claims(score, pods)
        if row is not None:
            for pod in pods:
                self.place_on_row(pod, row)
        return row

    def place_on_row(self, pod: PodInfo, row: int) -> bool:
        """Place a pod on this row if it is accepted there and fits; return whether it is placed."""
        if self.within is not None and not self.within[row]:
            return False
        demand = self.nodes.demand(pod.shape.request)
        accepts = self.nodes.eligible(pod.shape.constraints).accepted[row]
        if not accepts or self._pods_that_fit(demand, row) < 1:
            return False
        if (
            self.has_inter_pod_rules(pod.shape)
            and not self._inter_pod_mask(pod, self.tentative())[row]
        ):
            return False
        if self.claims_refusal((pod,), row):
            return False
        self._place(Placement((pod,), row, demand))
        return True

    def free_without_reservations(self) -> Amounts:
        """Return the free amounts as if nothing were reserved."""
        return self.free if self._reserved is None else self.free + self._reserved

    def without_reservations(self) -> "ScratchAllocation | None":
        """Return an allocation without any reservation; None: these hold more than amounts."""
        if self._has_claims or self._shared is not None:
            return None
        return self.fork(self.free_without_reservations())

    def has_capacity(self, placement: Placement) -> bool:
        """Return whether a placement fits, apart from constraints."""
        return self._pods_that_fit(placement.demand, placement.row) >= placement.count

    def shortages(self, shape: PodShape) -> dict[str, int]:
        """Return, by resource, the number of eligible nodes with too little of it."""
        demand = self.nodes.demand(shape.request)
        accepts = self.nodes.eligible(shape.constraints).accepted
        names = {column: name for name, column in self.nodes.columns.items()}
        short = {
            names[column]: int(np.count_nonzero(accepts & (self.free[column] < amount)))
            for column, amount, _ in demand.terms
        }
        return {name: count for name, count in short.items() if count}

    def count_claim_messages(self, pod: PodInfo) -> Counter[str]:
        """Return the number of nodes with enough of all amounts where a pod cannot have its
        volumes and devices, by message.
        """
        if not self.matches_claims(pod):
            return Counter()
        refusals = self.volumes.refusals((pod,), self.rows_for(pod.shape))
        messages = (why or self.devices.refusal((pod,), row) for row, why in refusals)
        return Counter(why for why in messages if why)

    def lacking_resources(self, shape: PodShape, row: int) -> list[str]:
        """Return the resources of which one row has too little for a pod of this shape."""
        names = {column: name for name, column in self.nodes.columns.items()}
        demand = self.nodes.demand(shape.request)
        return sorted(names[c] for c, amount, _ in demand.terms if self.free[c, row] < amount)

    def charge_pod(self, pod: PodInfo, row: int) -> None:
        """Charge a pod to a row, whether it is accepted there or not."""
        self.reserve([Placement((pod,), row, self.nodes.demand(pod.shape.request))])

    def reserve(self, placements: Iterable[Placement]) -> None:
        """Charge reservations. Free amounts may become negative: reserved resources may still be in
        use.
        """
        for placement in placements:
            self._charge(placement, placement.count, planned=True)

    def release(self, placements: Iterable[Placement]) -> None:
        """Release what ``reserve`` charged."""
        for placement in placements:
            self._charge(placement, -placement.count, planned=True)

    def end_pods(
        self, pods: Iterable[tuple[PodInfo, int]], freed: Iterable[tuple[int, int, int]]
    ) -> None:
        """Count running pods as ended, for good: there is no rollback.

        Args:
            pods: the pods with their rows, for the rules of other pods.
            freed: the columns, rows and amounts that they free.
        """
        ended = list(pods)
        self._gone += ended
        if self._has_claims:
            self.volumes.end_pods(pod for pod, _ in ended)
            self.devices.end_pods(pod for pod, _ in ended)
        for column, row, amount in freed:
            self.free[column, row] += amount
            self._touched.append(row)

    def end_all_but(self, staying: Callable[[], Iterable[PodInfo]]) -> None:
        """Count all running pods as ended, except these, for good. Their amounts are free already:
        the caller has given the free amounts.
        """
        self._staying = inter_pod.StayingPods(self.nodes, staying)
        if self._has_claims:
            keys = {pod.key for pod in staying()}
            self.volumes.end_all_but(keys)
            self.devices.end_all_but(keys)

    def _inter_pod_mask(self, pod: PodInfo, placed: inter_pod.TentativePods) -> Mask:
        return inter_pod.inter_pod_mask(self.nodes, pod, placed, self._gone, self._staying)

    def detach_volumes(self, row: int, driver_column: int, count: int, claims: Set[int]) -> None:
        """Free attachments of a driver on a row.

        Args:
            driver_column: the column of the driver's attachments.
            claims: columns of claims of several pods that are not attached there any more.
        """
        self.free[driver_column, row] += count
        self._touched.append(row)
        if self._shared is not None:
            self._shared.detach(row, driver_column, claims)

    def _charge(self, placement: Placement, count: int, planned: bool = False) -> None:
        """Charge the demand ``count`` times; negative: release it."""
        row, parts = placement.row, placement.demand.terms
        if self._has_claims:
            for pod in placement.pods:
                (self.volumes.add if count > 0 else self.volumes.remove)(pod, row)
                (self.devices.add if count > 0 else self.devices.remove)(pod, row)
        self._touched.append(row)
        for column, amount, _ in parts:
            self.free[column, row] -= amount * count
        if planned:
            if self._reserved is None:
                self._reserved = np.zeros_like(self.free)
            for column, amount, _ in parts:
                self._reserved[column, row] += amount * count
        if self._shared is not None:
            self._shared.update_row(row, [column for column, _, _ in parts], count, planned)

    def _place(self, placement: Placement) -> None:
        self._charge(placement, placement.count)
        self._journal.append(placement)
        if placement.pods and placement.pods[0].shape.constraints.inter_pod is not None:
            self._has_tentative_rules = True

    def fork(self, free: Amounts) -> "ScratchAllocation":
        """Return an allocation with the same tentative placements and these free amounts."""
        # Scores are not copied: they belong to the free amounts.
        other = ScratchAllocation(self.nodes, free)
        other._journal = list(self._journal)
        other._gone, other._staying = list(self._gone), self._staying
        other.volumes, other.devices = self.volumes.copy(), self.devices.copy()
        other.within = self.within
        other._has_tentative_rules = self._has_tentative_rules
        return other

    def _scores_of(self, shape: PodShape, demand: ResourceDemand, block: int = 1) -> _ShapeScores:
        """Return the current score of each row for a block of pods."""
        view = self._shape_scores.get((shape, block))
        if view is None:
            inputs = self._scoring_inputs(shape, block)
            if self._initial_free is None:
                score, seen = (
                    score_rows(inputs, demand, None, EXTRA_SCORE_WEIGHT),
                    len(self._touched),
                )
            else:
                score, seen = self.nodes.scores(shape, self._initial_free, block).copy(), 0
            view = self._shape_scores[shape, block] = _ShapeScores(score, seen, inputs)
        if view.seen < len(self._touched):
            rows = set(self._touched[view.seen :])
            if len(rows) < FEW_ROWS:
                for row in rows:
                    view.score[row] = score_row(view.inputs, demand, row, EXTRA_SCORE_WEIGHT)
            else:
                many = np.array(sorted(rows), dtype=np.intp)
                view.score[many] = score_rows(view.inputs, demand, many, EXTRA_SCORE_WEIGHT)
            view.seen = len(self._touched)
        return view

    def _pods_that_fit(self, demand: ResourceDemand, row: int) -> int:
        """Return how many pods of this demand fit on a row."""
        free = self.free
        return min(
            [free.item(column, row) // amount for column, amount, _ in demand.terms],
            default=sys.maxsize,
        )

    def _scoring_inputs(self, shape: PodShape, block: int = 1) -> ScoringInputs:
        inputs = self.nodes.scoring_inputs(shape, self.free, block)
        return (
            inputs if self._extra_score is None else replace(inputs, extra_score=self._extra_score)
        )


def may_hold(
    nodes: NodeTable,
    free: Amounts,
    pods: Iterable[PodInfo],
    within: NDArray[np.bool_] | None = None,
) -> bool:
    """Return whether a row has enough of all amounts for one of these pods, apart from other rules:
    without one none of them can be placed.
    """
    for shape in {pod.shape for pod in pods}:
        fits = nodes.eligible(shape.constraints).accepted
        if within is not None:
            fits = fits & within
        for column, amount, _ in nodes.demand(shape.request).terms:
            fits = fits & (free[column] >= amount)
        if fits.any():
            return True
    return False


def _only_gets_better(inputs: ScoringInputs, row: int) -> bool:
    """Return whether a row's score grows with each pod, as packing alone makes it."""
    return inputs.stranding is None or not inputs.has_devices[row]
