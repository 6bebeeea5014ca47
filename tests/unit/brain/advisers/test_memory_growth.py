"""Foretelling that a rank runs out of memory, against leaks and noise of known size."""

import numpy as np
import pytest

from gangline.brain.advisers.rightsize import advise
from gangline.brain.advisers.view import AdviserView
from gangline.brain.facts.records import MemorySample, Run
from unit.brain.histories import DAY, GIB, HOUR, NOW, a_job, a_view, asking, codes

MINUTE = 60_000


def watched(
    values: np.ndarray, remaining_s: float = 3 * 3600, limit_gib: float = 10
) -> AdviserView:
    """A job with one sample of memory a minute until now."""
    begin = NOW - (len(values) - 1) * MINUTE
    samples = [
        MemorySample(role="worker", rank=3, at_ms=begin + i * MINUTE, memory_bytes=round(value))
        for i, value in enumerate(values)
    ]
    job = a_job(roles=(asking(limit_gib),), started_ms=begin - HOUR)
    return a_view(own=Run(job=job), memory=samples, remaining_s=remaining_s)


@pytest.mark.parametrize("minutes", [30, 60, 180])
def test_m9_linear_leak_is_foretold(minutes: int) -> None:
    random = np.random.default_rng(minutes)
    slope = 2.0 * GIB / 60  # a minute; 8 GiB are used now, so the limit is an hour away
    at = np.arange(minutes) - (minutes - 1)
    values = 8 * GIB + slope * at + random.normal(0, 0.05 * GIB, minutes)
    (advice,) = advise(watched(values))
    assert advice.reason.code == "GrowingMemory"
    assert advice.value == pytest.approx(3600, rel=0.2)
    arguments = advice.reason.arguments
    assert arguments["rank"] == 3
    assert arguments["runs_out_ms"] == pytest.approx(NOW + HOUR, abs=0.2 * HOUR)
    assert arguments["needed_bytes"] == pytest.approx(14 * GIB, rel=0.05)


def test_m9_leak_that_the_job_outruns_is_no_alarm() -> None:
    values = 8 * GIB + 2.0 * GIB / 60 * (np.arange(60) - 59.0)
    assert codes(advise(watched(values, remaining_s=3000))) == []


def alarms(correlation: float, runs: int) -> int:
    """Alarms of flat noise in a job that runs for another day."""
    random = np.random.default_rng(5)
    count = 0
    for _ in range(runs):
        noise = np.zeros(90)
        for i in range(1, 90):
            noise[i] = correlation * noise[i - 1] + random.normal(0, 0.1 * GIB)
        count += len(advise(watched(9 * GIB + noise, remaining_s=DAY / 1000)))
    return count


def test_m9_flat_noise_is_no_alarm_in_1000_runs() -> None:
    assert alarms(0.0, 1000) == 0


def test_noise_that_lasts_for_ten_minutes_is_hardly_an_alarm() -> None:
    assert alarms(0.9, 500) <= 5


def test_caches_that_fill_and_stop_are_no_leak() -> None:
    values = 8 * GIB - 3 * GIB * np.exp(-np.arange(120) / 40)
    values += np.random.default_rng(1).normal(0, 0.3 * GIB, 120)
    assert codes(advise(watched(values, remaining_s=20 * 3600))) == []


def test_few_samples_are_no_trend() -> None:
    assert codes(advise(watched(8 * GIB + 0.1 * GIB * np.arange(7.0)))) == []
