"""Laws of step times: adding and subtracting agrees with the statistics module."""

import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from gangline.elastic.master.segments.digest import NO_MOMENTS, Moments, WindowMoments

SECONDS = st.floats(1e-5, 1e4)


def of(values: list[float]) -> Moments:
    total = NO_MOMENTS
    for value in values:
        total = total.merge(Moments(1, value))
    return total


def same(one: Moments, other: Moments, scale: float) -> bool:
    """Equal within the precision of sums over ``scale``, the sum of squares."""
    return (
        one.count == other.count
        and math.isclose(one.mean, other.mean, rel_tol=1e-9, abs_tol=1e-12 * math.sqrt(scale))
        and math.isclose(one.m2, other.m2, rel_tol=1e-6, abs_tol=1e-9 * scale)
    )


@given(st.lists(SECONDS, min_size=2, max_size=40))
def test_moments_are_mean_and_variance(values: list[float]) -> None:
    moments, scale = of(values), sum(value**2 for value in values)
    expected = Moments(
        len(values), statistics.fmean(values), statistics.variance(values) * (len(values) - 1)
    )
    assert same(moments, expected, scale)


@given(st.lists(SECONDS, max_size=30), st.lists(SECONDS, max_size=30))
def test_merging_is_commutative_and_subtracting_is_its_inverse(
    first: list[float], second: list[float]
) -> None:
    scale = sum(value**2 for value in (*first, *second))
    both = of(first).merge(of(second))
    assert same(both, of(second).merge(of(first)), scale)
    assert same(both, of([*first, *second]), scale)
    if second:
        assert same(both.without(of(first)), of(second), scale)
    assert both.without(both) == NO_MOMENTS
    assert of(first).without(both) in (NO_MOMENTS, of(first))


@given(st.lists(st.tuples(st.integers(1, 500), SECONDS), min_size=2, max_size=30))
def test_windows_have_the_mean_of_all_steps_and_count_windows(
    windows: list[tuple[int, float]],
) -> None:
    total = WindowMoments()
    for steps, seconds in windows:
        total = total.add(steps, seconds)
    moments = total.moments()
    expected = sum(seconds for _, seconds in windows) / sum(steps for steps, _ in windows)
    assert math.isclose(moments.mean, expected, rel_tol=1e-9)
    assert moments.count == len(windows)
    assert moments.m2 >= 0
