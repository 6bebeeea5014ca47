"""Histograms of usage: buckets, decay, and sums that do not depend on their order."""

import random as randomness

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.brain.models.histogram import CPU, MEMORY, Histogram, bucket_starts

DAY = 86_400_000
GIB = 1 << 30

SAMPLES = st.lists(
    st.tuples(
        st.integers(1, 2 * 10**12),
        st.integers(0, 10_000 * DAY),
        st.integers(1, 1000),
    ),
    max_size=30,
)


def filled(samples: list[tuple[int, int, int]]) -> Histogram:
    histogram = Histogram(MEMORY)
    for value, at_ms, weight in samples:
        histogram.add(value, at_ms, weight)
    return histogram


def test_buckets_are_those_of_the_vertical_pod_autoscaler() -> None:
    starts = bucket_starts(MEMORY)
    assert starts[:4] == (0, 10_000_000, 20_500_000, 31_525_000)
    assert starts[-2] < 10**12 <= starts[-1]
    for before, start, after in zip(starts[1:], starts[2:], starts[3:], strict=False):
        assert after - start == pytest.approx(1.05 * (start - before), abs=2)
    assert bucket_starts(CPU)[1] == 10


def test_percentile_is_the_end_of_a_bucket_and_never_above_the_peak() -> None:
    histogram = filled([(GIB, 0, 98), (8 * GIB, 0, 2)])
    usual = histogram.percentile(980)
    assert usual is not None
    assert GIB <= usual <= 1.051 * GIB
    assert histogram.percentile(981) == 8 * GIB


def test_sample_loses_half_of_its_weight_in_a_half_life() -> None:
    fresh, old = (100 * DAY, 1), (100 * DAY - MEMORY.half_life_ms, 2)
    histogram = filled([(GIB, *old), (4 * GIB, *fresh)])
    assert (histogram.percentile(499) or 0) < 2 * GIB
    assert histogram.percentile(501) == 4 * GIB


@settings(max_examples=100, deadline=None)
@given(SAMPLES)
def test_order_of_samples_has_no_effect(samples: list[tuple[int, int, int]]) -> None:
    shuffled = [*samples]
    randomness.Random(1).shuffle(shuffled)
    assert filled(samples) == filled(shuffled)
