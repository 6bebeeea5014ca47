"""Histograms of usage: buckets, decay, and sums that do not depend on their order."""

import random as randomness
import zlib

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


def restored(histogram: Histogram) -> Histogram:
    return Histogram.decode(
        histogram.kind,
        histogram.encode(),
        peak=histogram.peak,
        first_ms=histogram.first_ms or 0,
        last_ms=histogram.last_ms or 0,
        count=histogram.count,
    )


def test_buckets_are_those_of_the_vertical_pod_autoscaler() -> None:
    starts = bucket_starts(MEMORY)
    assert starts[:4] == (0, 10_000_000, 20_500_000, 31_525_000)
    assert starts[-2] < 10**12 <= starts[-1]
    for before, start, after in zip(starts[1:], starts[2:], starts[3:], strict=False):
        assert after - start == pytest.approx(1.05 * (start - before), abs=2)
    assert bucket_starts(CPU)[1] == 10


def test_empty_histogram_has_no_percentile() -> None:
    assert Histogram(MEMORY).percentile(500) is None
    assert restored(Histogram(MEMORY)).percentile(500) is None


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
@given(SAMPLES, SAMPLES, SAMPLES)
def test_merging_in_any_order_is_equal_bit_for_bit(
    a: list[tuple[int, int, int]], b: list[tuple[int, int, int]], c: list[tuple[int, int, int]]
) -> None:
    one, two, three = filled(a), filled(b), filled(c)
    one.merge(two)
    one.merge(three)
    other = filled(c)
    other.merge(filled(a))
    other.merge(filled(b))
    shuffled = [*a, *b, *c]
    randomness.Random(1).shuffle(shuffled)
    assert one.encode() == other.encode() == filled(shuffled).encode()
    assert one == other == filled(shuffled)


@settings(max_examples=100, deadline=None)
@given(SAMPLES)
def test_stored_histogram_equals_the_one_in_memory(samples: list[tuple[int, int, int]]) -> None:
    histogram = filled(samples)
    assert restored(histogram) == histogram
    assert [restored(histogram).percentile(p) for p in (500, 950, 980)] == [
        histogram.percentile(p) for p in (500, 950, 980)
    ]


@pytest.mark.parametrize("sample", [(0, 1, 1), (-5, 1, 1), (5, -1, 1), (5, 1, 0)])
def test_sample_that_is_not_positive_is_refused(sample: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        filled([sample])


@pytest.mark.parametrize("text", [b"", b"x", zlib.compress(b""), zlib.compress(bytes([1, 5, 1]))])
def test_damaged_bytes_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="histogram"):
        Histogram.decode(MEMORY, text, peak=1, first_ms=0, last_ms=0, count=1)


def test_histograms_of_other_kinds_cannot_be_merged() -> None:
    with pytest.raises(ValueError, match="different kinds"):
        Histogram(MEMORY).merge(Histogram(CPU))


def test_many_years_stay_small() -> None:
    histogram = Histogram(CPU)
    for day in range(3650):
        histogram.add(1000 + day % 7, day * DAY)
    assert len(histogram.slots) <= 60
    assert len(histogram.encode()) < 1000
