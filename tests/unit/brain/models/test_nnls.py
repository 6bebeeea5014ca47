"""Exact non-negative least squares, against the conditions of its optimum and against SciPy."""

import numpy as np
import pytest
from benchmarks.brain.least_squares import SEED, random_problem, violation
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gangline.brain.models.nnls import Array, equivalent_solutions, nnls

PROBLEMS = 300
"""Of each test; ``benchmarks brain_least_squares`` solves 5,000."""
TOLERANCE = 1e-7


def test_q16_optimum_of_random_problems() -> None:
    random = np.random.default_rng(SEED)
    for _ in range(PROBLEMS):
        a, b = random_problem(random)
        assert violation(a, b, nnls(a, b).x) <= TOLERANCE


def test_q16_equals_scipy_on_random_problems() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    random = np.random.default_rng(7)
    for _ in range(PROBLEMS):
        a, b = random_problem(random)
        _, norm = optimize.nnls(a, b)
        assert np.sqrt(nnls(a, b).squares) == pytest.approx(
            norm, rel=1e-9, abs=TOLERANCE * float(np.linalg.norm(b))
        )


ELEMENTS = st.floats(-1e3, 1e3, allow_nan=False).map(lambda value: round(value, 3))


@settings(max_examples=200, deadline=None)
@given(
    arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 4)), elements=ELEMENTS),
    st.data(),
)
def test_optimum_of_any_problem(a: Array, data: st.DataObject) -> None:
    b = data.draw(arrays(np.float64, a.shape[0], elements=ELEMENTS))
    assert violation(a, b, nnls(a, b).x) <= 1e-5


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.floats(1e-6, 1e6))
def test_scaling_the_right_side_scales_the_solution(seed: int, factor: float) -> None:
    a, b = random_problem(np.random.default_rng(seed))
    assert nnls(a, factor * b).x == pytest.approx(factor * nnls(a, b).x, rel=1e-6, abs=1e-9)


def test_columns_that_are_not_separated_have_several_solutions() -> None:
    a = np.array([[1.0, 32.0], [1.0, 32.0]])
    b = np.array([2.0, 2.0])
    solutions = {solution.support: solution.x for solution in equivalent_solutions(a, b)}
    assert solutions[0,] == pytest.approx([2.0, 0.0])
    assert solutions[1,] == pytest.approx([0.0, 1 / 16])
    separated = equivalent_solutions(np.array([[1.0, 32.0], [1.0, 16.0]]), np.array([2.0, 1.5]))
    assert [solution.support for solution in separated] == [(0, 1)]


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.zeros((2, 9)), np.zeros(2), "9 columns"),
        (np.zeros((2, 1)), np.zeros(3), "do not fit"),
        (np.array([[np.nan]]), np.zeros(1), "not finite"),
        (np.zeros((0, 1)), np.zeros(0), "do not fit"),
    ],
)
def test_impossible_problem_is_refused(a: Array, b: Array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nnls(a, b)
