"""Fair shares: divides amounts by weight among queues (water filling), and dominant shares."""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
"""An amount of each resource."""
Matrix = NDArray[np.float64]
"""One row for each queue."""


def water_fill(total: Vector, weights: Vector, floors: Matrix, wants: Matrix) -> Matrix:
    """Divide ``total`` by weight: no queue gets more than it wants, or less than its floor.

    Each resource is divided by itself, and what one queue does not want goes to the others. Floors
    come first, even if their sum exceeds the total. A floor above what the queue wants counts as
    that.
    """
    if not len(weights):
        return np.zeros_like(wants)
    floors = np.minimum(floors, wants)
    everybody = wants.sum(axis=0) <= total
    if everybody.all():
        return wants
    level = _water_level(total, weights, floors, wants)
    return np.where(everybody, wants, np.clip(level * weights[:, None], floors, wants))


def _water_level(total: Vector, weights: Vector, floors: Matrix, wants: Matrix) -> Vector:
    """Return, for each resource, the water level after ``total`` has been poured in.

    The allocated amount is a piecewise linear function of the level. Its slope increases where a
    queue's floor is reached, and decreases where a queue has what it wants.
    """
    scale = weights[:, None]
    bends = np.concatenate([floors / scale, wants / scale])
    steeper = np.concatenate([np.broadcast_to(scale, floors.shape)] * 2)
    steeper[len(weights) :] *= -1
    order = np.argsort(bends, axis=0, kind="stable")
    bends = np.take_along_axis(bends, order, axis=0)
    slopes = np.cumsum(np.take_along_axis(steeper, order, axis=0), axis=0)
    given = floors.sum(axis=0) + np.concatenate(
        [np.zeros((1, len(total))), np.cumsum(slopes[:-1] * np.diff(bends, axis=0), axis=0)]
    )
    # The last bend that the total suffices for; before the first one only floors are paid.
    last = np.maximum(np.count_nonzero(given <= total, axis=0) - 1, 0)
    here = np.arange(len(total))
    slope = np.maximum(slopes[last, here], 1e-12)
    level: Vector = bends[last, here] + np.maximum(total - given[last, here], 0.0) / slope
    return level


def dominant_share(used: Vector, entitled: Vector) -> float:
    """Return the largest used fraction of any resource; infinite if the fair share of it is 0."""
    relevant = used > 0
    if not relevant.any():
        return 0.0
    with np.errstate(divide="ignore"):
        return float((used[relevant] / entitled[relevant]).max())
