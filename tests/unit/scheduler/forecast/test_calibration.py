"""The interval of a forecast contains the start as often as it claims."""

import pytest

from unit.scheduler.forecast.calibration import Calibration

HELD_OUT = [("philly", 11), ("pai", 11), ("helios", 11)]
"""Traces that were not used to tune the forecast."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_interval_contains_the_start_in_most_cases() -> None:
    covered: list[bool] = []
    for shape, seed in HELD_OUT:
        covered += Calibration(shape, seed, forecasts=18).run()
    assert len(covered) > 50
    assert 0.7 <= sum(covered) / len(covered) <= 0.9
