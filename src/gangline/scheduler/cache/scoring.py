"""Scores: on which rows a shape fits, and which of them are best.

Scores of the cached cluster are kept for each shape. A changed node, or a changed pod on it, only
costs its own row. Scratch allocations start from copies.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.cache.node_stats import ResourceDemand
from gangline.scheduler.plugins.scores import (
    Amounts,
    Scores,
    ScoreWeights,
    balance_score,
)
from gangline.scheduler.types.types import PodShape

Rows = NDArray[np.intp] | None
"""None: all rows, without indexing."""
MAX_CACHED_SHAPES = 512
MAX_CHANGE_LOG = 100_000
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class ScoringInputs:
    """What scores depend on besides the request."""

    free: Amounts
    allocatable: Amounts
    has_devices: NDArray[np.bool_]
    accepted: NDArray[np.bool_]
    preference: NDArray[np.float64] | None
    weights: ScoreWeights
    prefer_no_schedule: NDArray[np.int32] | None = None
    """Number of untolerated PreferNoSchedule taints by row; None: there are none."""
    extra_score: NDArray[np.float64] | None = None
    """Added to each row's score, for plans that consider more than packing."""
    images: NDArray[np.float64] | None = None
    """Image locality by row (see ``image_locality``); None: it has no weight."""


def score_rows(
    inputs: ScoringInputs, demand: ResourceDemand, rows: Rows, extra_weight: float = 0.0
) -> Scores:
    """Score rows by packing: the fullest after the placement is best; minus infinity where it does
    not fit.
    """
    fits = inputs.accepted.copy() if rows is None else inputs.accepted[rows]
    # All resources of the rows are gathered in one step: one per resource takes longer.
    free = inputs.free if rows is None else inputs.free[:, rows]
    allocatable = inputs.allocatable if rows is None else inputs.allocatable[:, rows]
    score: Scores = np.zeros(len(fits))
    weights = 0.0
    for column, amount, weight in demand.terms:
        left = free[column] - amount
        fits &= left >= 0
        if weight:
            score += weight * (1.0 - left / np.maximum(allocatable[column], 1))
            weights += weight
    score *= inputs.weights.packing / max(weights, 1e-9)
    if not demand.wants_device:
        score -= inputs.weights.spare_devices * _at_rows(inputs.has_devices, rows)
    if inputs.preference is not None:
        score += inputs.weights.affinity * _at_rows(inputs.preference, rows)
    if inputs.prefer_no_schedule is not None:
        score -= inputs.weights.discouraged * _at_rows(inputs.prefer_no_schedule, rows)
    if inputs.images is not None:
        score += inputs.weights.images * _at_rows(inputs.images, rows)
    if demand.balanced:
        score += inputs.weights.balance * _balance(demand, free, allocatable)
    if inputs.extra_score is not None:
        score += extra_weight * _at_rows(inputs.extra_score, rows)
    score[~fits] = -np.inf
    return score


def score_row(
    inputs: ScoringInputs, demand: ResourceDemand, row: int, extra_weight: float = 0.0
) -> float:
    """Return exactly what ``score_rows`` returns for one row, in a tenth of the time.

    An array operation costs the same for one row as for hundreds, and packing pod after pod asks
    for one row at a time.
    """
    if demand.balanced:
        rows = np.array([row], dtype=np.intp)
        return float(score_rows(inputs, demand, rows, extra_weight)[0])
    if not inputs.accepted[row]:
        return -np.inf
    free, allocatable = inputs.free, inputs.allocatable
    score = weights = 0.0
    for column, amount, weight in demand.terms:
        left = free.item(column, row) - amount
        if left < 0:
            return -np.inf
        if weight:
            # Floats, as in arrays: Python rounds the quotient of integers differently.
            score += weight * (1.0 - float(left) / float(max(allocatable.item(column, row), 1)))
            weights += weight
    score *= inputs.weights.packing / max(weights, 1e-9)
    if not demand.wants_device:
        score -= inputs.weights.spare_devices * inputs.has_devices.item(row)
    if inputs.preference is not None:
        score += inputs.weights.affinity * inputs.preference.item(row)
    if inputs.prefer_no_schedule is not None:
        score -= inputs.weights.discouraged * inputs.prefer_no_schedule.item(row)
    if inputs.images is not None:
        score += inputs.weights.images * inputs.images.item(row)
    if inputs.extra_score is not None:
        score += extra_weight * inputs.extra_score.item(row)
    return score


def _balance(demand: ResourceDemand, free: Amounts, allocatable: Amounts) -> Scores:
    """Return the balance of resources with the pod."""
    columns = [column for column, _ in demand.balanced]
    amounts = np.array([amount for _, amount in demand.balanced], dtype=np.int64)
    return balance_score(free[columns] - amounts[:, None], allocatable[columns])


def _at_rows(values: NDArray[T], rows: Rows) -> NDArray[T]:
    return values if rows is None else values[rows]


class ScoreCache:
    """Scores of the cached cluster, by shape."""

    def __init__(self) -> None:
        self._scores: dict[PodShape, tuple[Scores, int]] = {}
        self._touched: list[int] = []

    def mark_changed(self, row: int) -> None:
        """Record that a row's scores may have changed."""
        self._touched.append(row)
        if len(self._touched) > MAX_CHANGE_LOG:
            self.clear()

    def clear(self) -> None:
        self._scores.clear()
        self._touched.clear()

    def drop_images(self, images: Set[str]) -> None:
        """Drop the scores of pods with any of these images."""
        for shape in [each for each in self._scores if not images.isdisjoint(each.images)]:
            del self._scores[shape]

    def get(self, shape: PodShape, compute: Callable[[Rows], Scores]) -> Scores:
        """Return the current scores of a shape; the caller copies before writing."""
        known = self._scores.get(shape)
        if known is None:
            if len(self._scores) >= MAX_CACHED_SHAPES:
                self._scores.pop(next(iter(self._scores)))
            score = compute(None)
        else:
            score, seen = known
            if seen < len(self._touched):
                rows = np.array(sorted(set(self._touched[seen:])), dtype=np.intp)
                score[rows] = compute(rows)
        self._scores[shape] = (score, len(self._touched))
        return score
