"""Fair shares of amounts among those who ask. Pure arithmetic on arrays."""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
"""An amount of each resource."""
Matrix = NDArray[np.float64]
"""One row for each who asks."""

_HALVINGS = 60


def water_fill(total: Vector, weights: Vector, floors: Matrix, wants: Matrix) -> Matrix:
    """Divide ``total`` by weight: nobody gets more than wanted, or less than its floor.

    For each resource by itself: what one does not want goes to the others. Floors are paid first,
    also where they add up to more than there is; a floor above the want counts as far as wanted.
    """
    if not len(weights):
        return np.zeros_like(wants)
    floors = np.minimum(floors, wants)
    everybody = wants.sum(axis=0) <= total
    if everybody.all():
        return wants
    low = np.zeros_like(total)
    high = np.max(wants / weights[:, None], axis=0, initial=0.0)

    def at(level: Vector) -> Matrix:
        return np.clip(level * weights[:, None], floors, wants)

    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = at(middle).sum(axis=0) <= total
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(everybody, wants, at(low))


def dominant_share(used: Vector, entitled: Vector) -> float:
    """Return the largest part that is used of any resource; of what one may not have: infinite."""
    relevant = used > 0
    if not relevant.any():
        return 0.0
    with np.errstate(divide="ignore"):
        return float((used[relevant] / entitled[relevant]).max())
