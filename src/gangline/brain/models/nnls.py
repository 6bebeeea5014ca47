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
_FEW_COLUMNS = 3
_DEPENDENT = 1e-11
"""Columns are dependent if the determinant of their correlation matrix is below this."""
_NEGATIVE = 1e-10
"""Coefficients of normalised columns above minus this share of the largest count as 0."""

_EMPTY = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Solution:
    """Coefficients, the columns that they rest on, and the sum of squared residuals."""

    x: Array
    support: tuple[int, ...]
    squares: float


def nnls(a: Array, b: Array) -> Solution:
    """Minimise ``|a x - b|`` over ``x >= 0``.

    Raises:
        ValueError: the shapes do not fit, there are too many columns, or a value is not finite.
    """
    solutions = _solutions(a, b)
    return solutions.solution(solutions.order[0])


def equivalent_solutions(a: Array, b: Array, tolerance: float = 1e-9) -> list[Solution]:
    """Return all basic solutions that fit as well as the best one, the best first.

    More than one means that the data does not separate some columns. Every convex combination of
    them fits equally well, so a prediction must cover what each of them predicts.

    Args:
        tolerance: residuals may differ by this share of the squared length of ``b``.
    """
    solutions = _solutions(a, b)
    limit = solutions.squares[solutions.order[0]] + tolerance * float(b @ b)
    return [
        solutions.solution(index) for index in solutions.order if solutions.squares[index] <= limit
    ]


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
    if rows > columns > _FEW_COLUMNS:  # the same minimum with at most eight equations
        q, a = np.linalg.qr(a)
        reduced = q.T @ b
        unreachable = b - q @ reduced
        outside = float(unreachable @ unreachable)
        b = reduced
    normal = a[:, used] / lengths[used]
    gram = normal.T @ normal
    right = normal.T @ b
    if len(used) <= _FEW_COLUMNS:
        supports, scaled = _solve_few(gram.tolist(), right.tolist())
    else:
        supports, scaled = _solve_many(gram, right)
    rest = scaled @ normal.T - b
    squares = ((rest * rest).sum(axis=1) + outside).tolist()
    used_columns = [used[support] for support in supports]
    values = [row[support] for row, support in zip(scaled / lengths[used], supports, strict=True)]
    rounding = 1e-15 * squares[0]
    rough = [square // rounding if rounding else 0.0 for square in squares]
    order = sorted(range(len(squares)), key=lambda index: (rough[index], len(used_columns[index])))
    return _Solutions(columns, squares, used_columns, values, order)


def _solve_many(gram: Array, right: Array) -> tuple[list[NDArray[np.intp]], Array]:
    """Return the feasible supports, the empty one first, and a row of coefficients for each."""
    count = len(right)
    feasible_supports = [_EMPTY]
    rows = [np.zeros((1, count))]
    for size in range(1, count + 1):
        supports = _supports(count, size)
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
        complete = np.zeros((len(supports), count))
        np.put_along_axis(complete, supports, scaled, axis=1)
        feasible_supports += list(supports)
        rows.append(complete)
    return feasible_supports, np.concatenate(rows)


def _solve_few(gram: list[list[float]], right: list[float]) -> tuple[list[NDArray[np.intp]], Array]:
    """The same by Cramer's rule: for three columns a call of LAPACK takes longer than all of it."""
    count = len(right)
    supports = [_EMPTY]
    rows = [[0.0] * count]
    for size in range(1, count + 1):
        for support in _supports(count, size):
            solved = _cramer(gram, right, support.tolist())
            if solved is None or min(solved) < -_NEGATIVE * max(map(abs, solved)):
                continue
            row = [0.0] * count
            for column, value in zip(support.tolist(), solved, strict=True):
                row[column] = max(value, 0.0)
            supports.append(support)
            rows.append(row)
    return supports, np.array(rows).reshape(len(rows), count)


def _cramer(
    gram: list[list[float]], right: list[float], support: list[int]
) -> tuple[float, ...] | None:
    """Solve one to three symmetric equations; None if they are dependent.

    Capital letters are the cofactors of the small ones.
    """
    if len(support) == 1:
        (i,) = support
        return (right[i] / gram[i][i],)
    if len(support) == 2:
        i, j = support
        a, b, d = gram[i][i], gram[i][j], gram[j][j]
        det = a * d - b * b
        if det <= _DEPENDENT:
            return None
        p, q = right[i], right[j]
        return (p * d - q * b) / det, (q * a - p * b) / det
    i, j, k = support
    a, b, c = gram[i][i], gram[i][j], gram[i][k]
    d, e, f = gram[j][j], gram[j][k], gram[k][k]
    A, B, C = d * f - e * e, c * e - b * f, b * e - c * d
    D, E, F = a * f - c * c, b * c - a * e, a * d - b * b
    det = a * A + b * B + c * C
    if det <= _DEPENDENT:
        return None
    p, q, r = right[i], right[j], right[k]
    return (
        (A * p + B * q + C * r) / det,
        (B * p + D * q + E * r) / det,
        (C * p + E * q + F * r) / det,
    )


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
