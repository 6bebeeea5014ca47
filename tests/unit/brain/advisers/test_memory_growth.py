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


@pytest.mark.parametrize(
    ("correlation", "runs", "most"),
    [pytest.param(0.0, 1000, 0, id="M9: flat"), pytest.param(0.9, 500, 5, id="ten minutes long")],
)
def test_noise_is_hardly_an_alarm(correlation: float, runs: int, most: int) -> None:
    assert alarms(correlation, runs) <= most


CACHES = 8 * GIB - 3 * GIB * np.exp(-np.arange(120) / 40)
LEAK = 8 * GIB + 2.0 * GIB / 60 * (np.arange(60) - 59.0)


@pytest.mark.parametrize(
    ("values", "remaining_s"),
    [
        pytest.param(LEAK, 3000, id="M9: the job outruns the leak"),
        pytest.param(
            CACHES + np.random.default_rng(1).normal(0, 0.3 * GIB, 120),
            20 * 3600,
            id="caches fill and stop",
        ),
        pytest.param(8 * GIB + 0.1 * GIB * np.arange(7.0), 3 * 3600, id="few samples"),
    ],
)
def test_what_is_no_leak_is_no_alarm(values: np.ndarray, remaining_s: float) -> None:
    assert codes(advise(watched(values, remaining_s))) == []
