"""Exact non-negative least squares, against the conditions of its optimum and against SciPy."""

import numpy as np
import pytest
from benchmarks.brain.least_squares import SEED, random_problem, violation

from gangline.brain.models.nnls import equivalent_solutions, nnls

PROBLEMS = 300
"""Of each test; ``benchmarks brain_least_squares`` solves 5,000."""
TOLERANCE = 1e-7


def test_q16_optimum_of_random_problems() -> None:
    random = np.random.default_rng(SEED)
    for _ in range(PROBLEMS):
        a, b = random_problem(random)
        assert violation(a, b, nnls(a, b).x) <= TOLERANCE


def test_columns_that_are_not_separated_have_several_solutions() -> None:
    a = np.array([[1.0, 32.0], [1.0, 32.0]])
    b = np.array([2.0, 2.0])
    solutions = {solution.support: solution.x for solution in equivalent_solutions(a, b)}
    assert solutions[0,] == pytest.approx([2.0, 0.0])
    assert solutions[1,] == pytest.approx([0.0, 1 / 16])
    separated = equivalent_solutions(np.array([[1.0, 32.0], [1.0, 16.0]]), np.array([2.0, 1.5]))
    assert [solution.support for solution in separated] == [(0, 1)]
