"""Exact non-negative least squares for a few columns: all supports are tried.

The minimum of ``|Ax - b|`` with ``x >= 0`` is the least-squares solution over the columns where it
is positive (Lawson and Hanson, Solving Least Squares Problems, chapter 23). With at most eight
columns there are at most 255 such supports, and each is a system of at most eight equations. Trying
all of them needs no iteration and no tolerance of convergence, and it also finds the other
solutions that fit as well, where the data does not separate columns.
"""

import math
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST_COLUMNS = 8
_DEPENDENT = 1e-11
"""Columns are dependent if the determinant of their correlation matrix is below this."""
_NEGATIVE = 1e-10
"""Coefficients of normalised columns above minus this share of the largest count as 0."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Coefficients, the columns that they rest on, and the sum of squared residuals."""

    x: Array
    support: tuple[int, ...]
    squares: float


def nnls(a: Array, b: Array) -> Solution:
    """Minimise ``|a x - b|`` over ``x >= 0``.

    Args:
        a: matrix of at least one row and at most eight columns.
        b: right side, one value for each row.

    Raises:
        ValueError: the shapes do not fit, there are too many columns, or a value is not finite.
    """
    found = _solutions(a, b)
    return found.solution(found.order[0])


def equivalent_solutions(a: Array, b: Array, tolerance: float = 1e-9) -> list[Solution]:
    """Return all basic solutions that fit as well as the best one, the best first.

    More than one means that the data does not separate some columns. Every convex combination of
    them fits equally well, so a prediction must cover what each of them predicts.

    Args:
        a: as for ``nnls``.
        b: as for ``nnls``.
        tolerance: residuals may differ by this share of the squared length of ``b``.
    """
    found = _solutions(a, b)
    limit = found.squares[found.order[0]] + tolerance * float(b @ b)
    return [found.solution(each) for each in found.order if found.squares[each] <= limit]


@dataclass(frozen=True, slots=True)
class _Solutions:
    """All feasible basic solutions; few of them are ever looked at."""

    columns: int
    squares: list[float]
    supports: list[NDArray[np.intp]]
    values: list[Array]
    order: list[int]
    """By residual; fewer columns first where these equal."""

    def solution(self, index: int) -> Solution:
        support = self.supports[index]
        x = np.zeros(self.columns)
        x[support] = self.values[index]
        return Solution(x, tuple(support.tolist()), self.squares[index])


def _solutions(a: Array, b: Array) -> _Solutions:
    rows, columns = _checked_shape(a, b)
    lengths = np.sqrt((a * a).sum(axis=0))
    used = np.flatnonzero(lengths > 0)
    outside = 0.0
    if rows > columns:  # the same minimum with at most eight equations
        q, a = np.linalg.qr(a)
        reduced = q.T @ b
        unreachable = b - q @ reduced
        outside = float(unreachable @ unreachable)
        b = reduced
    normal = a[:, used] / lengths[used]
    gram = normal.T @ normal
    right = normal.T @ b
    lengths = lengths[used]
    squares = [float(b @ b) + outside]
    found = [used[:0]]
    values = [lengths[:0]]
    for size in range(1, len(used) + 1):
        supports = _supports(len(used), size)
        if size == 1:
            scaled = (right / gram.diagonal())[:, None]
        else:
            systems = gram[supports[:, :, None], supports[:, None, :]]
            independent = np.linalg.det(systems) > _DEPENDENT
            supports, systems = supports[independent], systems[independent]
            if not len(supports):
                continue
            scaled = np.linalg.solve(systems, right[supports][:, :, None])[:, :, 0]
        lowest = scaled.min(axis=1)
        feasible = lowest >= -_NEGATIVE * np.abs(scaled).max(axis=1)
        supports, scaled = supports[feasible], np.maximum(scaled[feasible], 0.0)
        rest = (normal[:, supports].transpose(1, 0, 2) @ scaled[:, :, None])[:, :, 0] - b
        squares += ((rest * rest).sum(axis=1) + outside).tolist()
        found += list(used[supports])
        values += list(scaled / lengths[supports])
    rounding = 1e-15 * squares[0]
    rough = [each // rounding if rounding else 0.0 for each in squares]
    order = sorted(range(len(squares)), key=lambda each: (rough[each], len(found[each])))
    return _Solutions(columns, squares, found, values, order)


@cache
def _supports(columns: int, size: int) -> NDArray[np.intp]:
    return np.array(list(combinations(range(columns), size)), dtype=np.intp)


def _checked_shape(a: Array, b: Array) -> tuple[int, int]:
    if a.ndim != 2 or b.shape != (a.shape[0],) or not a.shape[0]:
        raise ValueError(f"shapes {a.shape} and {b.shape} do not fit: one value of b for each row")
    if a.shape[1] > MOST_COLUMNS:
        raise ValueError(f"{a.shape[1]} columns; at most {MOST_COLUMNS} are possible")
    # A sum of finite numbers may be infinite; one with another number is never finite.
    if not math.isfinite(a.sum() + b.sum()) and not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("a value is not finite; drop such rows first")
    return a.shape[0], a.shape[1]
