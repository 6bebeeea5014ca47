"""The slope of a series and how likely it is by chance."""

import numpy as np
import pytest

from brain_records import not_none
from gangline.brain.models.trend import fit_trend


def test_outliers_do_not_move_the_slope() -> None:
    x = np.arange(50.0)
    y = 3 + 2 * x
    y[[5, 20, 33]] += 1000
    trend = not_none(fit_trend(list(x), list(y)))
    assert trend.slope == pytest.approx(2.0, rel=0.01)
    assert trend.level == pytest.approx(101.0, rel=0.01)
    assert trend.grows


@pytest.mark.parametrize("sign", [0.0, -1.0])
def test_flat_and_falling_series_do_not_grow(sign: float) -> None:
    noise = np.random.default_rng(2).normal(0, 0.1, 60)
    trend = not_none(fit_trend(list(np.arange(60.0)), list(5 + sign * np.arange(60.0) + noise)))
    assert not trend.grows


def test_chance_of_a_slope_is_uniform_where_there_is_none() -> None:
    random = np.random.default_rng(3)
    p_values = []
    for _ in range(400):
        trend = not_none(fit_trend(list(np.arange(40.0)), list(random.normal(0, 1, 40))))
        p_values.append(trend.p_value)
    assert 0.02 <= np.mean(np.array(p_values) < 0.05) <= 0.08
    assert 0.4 <= np.mean(np.array(p_values) < 0.5) <= 0.6


def test_equal_values_are_no_growth() -> None:
    trend = not_none(fit_trend(list(np.arange(20.0)), [7.0] * 20))
    assert trend.p_value == 1.0
    assert not trend.grows


def test_long_series_are_reduced() -> None:
    x = np.arange(20_000.0)
    trend = not_none(fit_trend(list(x), list(0.5 * x)))
    assert trend.slope == pytest.approx(0.5)


def test_too_few_points_have_no_trend() -> None:
    assert fit_trend([0.0, 1.0, 2.0], [0.0, 1.0, 2.0]) is None
    assert fit_trend([1.0] * 20, [1.0] * 20) is None


def test_growth_within_the_noise_is_no_growth_yet() -> None:
    noise = np.random.default_rng(4).normal(0, 1, 120)
    small, large = (
        fit_trend(list(np.arange(120.0)), list(noise + rise * np.arange(120.0) / 120))
        for rise in (2.0, 6.0)
    )
    assert small is not None
    assert large is not None
    assert small.p_value < 0.001
    assert not small.grows
    assert large.grows
