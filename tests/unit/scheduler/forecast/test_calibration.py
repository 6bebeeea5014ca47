"""The interval of a forecast contains the start as often as it claims.

``benchmarks scheduler_forecast`` measures the same on complete traces.
"""

from random import Random

import pytest
from benchmarks.scheduler.forecast import Calibration

from gangline.scheduler.forecast.forecast import MIN_SAMPLES, Forecaster
from gangline.scheduler.forecast.run_times import RunTime
from gangline.scheduler.types.types import GangId
from unit.scheduler.builders import cluster, gang, group, node, pod

NOW = 10_000.0
TRIALS = 100
AHEAD = (GangId("d/runs"), GangId("d/next"))


def interval_and_start(seed: int) -> tuple[float, float, float]:
    """One node, a gang that has just begun, and two that wait: the last one's interval and start.

    The true run times are drawn from what is known about them.
    """
    random = Random(seed)
    state = cluster(
        node("n", cpu=1),
        group("runs", 1),
        pod("runs-0", group="runs", on="n", started_at=NOW),
        *gang("next", 1, age=1),
        *gang("last", 1, age=2),
    )
    known = {
        name: random.choice([RunTime(estimate_s=size), RunTime(limit_s=size)])
        for name, size in ((name, 1000.0 * random.uniform(1, 9)) for name in AHEAD)
    }
    start = sum(each.draw(random, 0.0) for each in known.values())
    forecaster = Forecaster(state, NOW, run_times=known, seed=seed)
    found = forecaster.forecast(GangId("d/last"), samples=MIN_SAMPLES)
    assert found.earliest_s is not None
    assert found.latest_s is not None
    return found.earliest_s, found.latest_s, start


def test_interval_contains_the_start_in_most_independent_trials() -> None:
    trials = [interval_and_start(seed) for seed in range(TRIALS)]
    covered = [earliest - 1 <= start <= latest + 1 for earliest, latest, start in trials]
    assert 0.7 <= sum(covered) / len(covered) <= 0.9
    assert any(start < earliest - 1 for earliest, _, start in trials)
    assert any(start > latest + 1 for _, latest, start in trials)


@pytest.mark.parametrize("shape", ["philly", "pai", "helios"])
def test_a_trace_gives_forecasts_and_their_starts(shape: str) -> None:
    """Forecasts of one trace share their errors, so that a few of them have no fixed coverage."""
    covered = Calibration(shape, 12, jobs=40, nodes=2, forecasts=6, samples=MIN_SAMPLES).run()
    assert len(covered) == 6
    assert any(covered)
