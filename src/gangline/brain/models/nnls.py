"""Exact non-negative least squares for a few columns: all supports are tried.

The minimum of ``|Ax - b|`` with ``x >= 0`` is the least-squares solution over the columns where it
is positive (Lawson and Hanson, Solving Least Squares Problems, chapter 23). With at most eight
columns there are at most 255 such supports, and each is a system of at most eight equations. Trying
all of them needs no iteration and no tolerance of convergence, and it also finds the other
solutions that fit as well, where the data does not separate columns.
"""

from functools import cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_DEPENDENT = 1e-11
"""Columns are dependent if the determinant of their correlation matrix is below this."""
_TOLERANCE = 1e-9
"""Residuals may differ by this share of the squared length of the right side."""
_NEGATIVE = 1e-10
"""Coefficients of normalised columns above minus this share of the largest count as 0."""


class Solution(NamedTuple):
    """Coefficients, the columns that they rest on, and the sum of squared residuals."""

    x: Array
    support: tuple[int, ...]
    squares: float


def nnls(a: Array, b: Array) -> Solution:
    """Minimise ``|a x - b|`` over ``x >= 0``, for at most eight columns of finite numbers."""
    return _basic_solutions(a, b)[0]


def equivalent_solutions(a: Array, b: Array) -> list[Solution]:
    """Return all basic solutions that fit as well as the best one, the best first.

    More than one means that the data does not separate some columns. Every convex combination of
    them fits equally well, so a prediction must cover what each of them predicts.
    """
    solutions = _basic_solutions(a, b)
    limit = solutions[0].squares + _TOLERANCE * float(b @ b)
    return [solution for solution in solutions if solution.squares <= limit]


def _basic_solutions(a: Array, b: Array) -> list[Solution]:
    """Return all feasible ones by residual; fewer columns first where these are equal."""

    lengths = np.sqrt((a * a).sum(axis=0))
    used = np.flatnonzero(lengths > 0)
    normal = a[:, used] / lengths[used]
    gram, right = normal.T @ normal, normal.T @ b
    supports: list[tuple[int, ...]] = [()]
    rows = [np.zeros((1, len(used)))]
    for size in range(1, len(used) + 1):
        tried = _supports(len(used), size)
        systems = gram[tried[:, :, None], tried[:, None, :]]
        independent = np.linalg.det(systems) > _DEPENDENT
        tried, systems = tried[independent], systems[independent]
        if not len(tried):
            continue
        scaled = np.linalg.solve(systems, right[tried][:, :, None])[:, :, 0]
        feasible = scaled.min(axis=1) >= -_NEGATIVE * np.abs(scaled).max(axis=1)
        tried, scaled = tried[feasible], np.maximum(scaled[feasible], 0.0)
        complete = np.zeros((len(tried), len(used)))
        np.put_along_axis(complete, tried, scaled, axis=1)
        supports += map(tuple, used[tried].tolist())
        rows.append(complete)
    coefficients = np.concatenate(rows)
    rest = coefficients @ normal.T - b
    squares = (rest * rest).sum(axis=1)
    x = np.zeros((len(supports), a.shape[1]))
    x[:, used] = coefficients / lengths[used]
    rounding = 1e-15 * float(squares[0]) or 1.0
    solutions = zip(x, supports, squares.tolist(), strict=True)
    return sorted(
        (Solution(*solution) for solution in solutions),
        key=lambda solution: (solution.squares // rounding, len(solution.support)),
    )


@cache
def _supports(columns: int, size: int) -> NDArray[np.intp]:
    return np.array(list(combinations(range(columns), size)), dtype=np.intp)
