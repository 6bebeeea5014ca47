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


X = np.arange(120.0)
NOISE = np.random.default_rng(4).normal(0, 1, 120)


@pytest.mark.parametrize(
    ("values", "grows"),
    [
        pytest.param(5 + NOISE, False, id="flat"),
        pytest.param(5 + NOISE - X, False, id="falling"),
        pytest.param(np.full(120, 7.0), False, id="equal values"),
        pytest.param(NOISE + 2 * X / 120, False, id="growth within the noise"),
        pytest.param(NOISE + 6 * X / 120, True, id="growth beyond the noise"),
    ],
)
def test_series_grow_beyond_their_noise(values: np.ndarray, grows: bool) -> None:
    assert not_none(fit_trend(list(X), list(values))).grows is grows


def test_chance_of_a_slope_is_uniform_where_there_is_none() -> None:
    random = np.random.default_rng(3)
    p_values = []
    for _ in range(400):
        trend = not_none(fit_trend(list(np.arange(40.0)), list(random.normal(0, 1, 40))))
        p_values.append(trend.p_value)
    assert 0.02 <= np.mean(np.array(p_values) < 0.05) <= 0.08
    assert 0.4 <= np.mean(np.array(p_values) < 0.5) <= 0.6


def test_long_series_are_reduced() -> None:
    x = np.arange(20_000.0)
    trend = not_none(fit_trend(list(x), list(0.5 * x)))
    assert trend.slope == pytest.approx(0.5)


def test_too_few_points_have_no_trend() -> None:
    assert fit_trend([0.0, 1.0, 2.0], [0.0, 1.0, 2.0]) is None
    assert fit_trend([1.0] * 20, [1.0] * 20) is None
