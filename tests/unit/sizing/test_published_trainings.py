"""Published speeds and memory of public trainings against the ranges that a plan gives for them."""

import math
import statistics

import pytest
from benchmarks.sizing.published import Prediction, predict_all, table

from gangline.sizing.efficiency import Runs

TUNED = predict_all(Runs.TUNED)
TYPICAL = predict_all(Runs.TYPICAL)


def test_at_least_80_percent_of_tuned_runs_are_inside_their_range() -> None:
    assert len(TUNED) >= 20
    inside = [point.predicted.contains(point.tokens) for point in TUNED]
    assert sum(inside) >= 0.8 * len(TUNED)


def test_the_middle_of_the_range_is_neither_too_fast_nor_too_slow() -> None:
    ratios = [point.ratio for point in TUNED]
    assert statistics.median(ratios) == pytest.approx(1, abs=0.03)
    assert statistics.median(abs(ratio - 1) for ratio in ratios) < 0.08
    assert sum(abs(ratio - 1) < 0.15 for ratio in ratios) >= 0.75 * len(ratios)


@pytest.mark.parametrize("source", sorted({point.point["source"] for point in TUNED}))
def test_no_source_is_predicted_wrong_as_a_whole(source: str) -> None:
    ratios = [math.log(point.ratio) for point in TUNED if point.point["source"] == source]
    assert abs(statistics.median(ratios)) < math.log(1.27)


@pytest.mark.parametrize(
    "prediction",
    [point for point in TUNED if point.predicted_gib],
    ids=lambda point: f"{point.point['shape']} on {point.point['gpus']}",
)
def test_memory_of_layouts_that_ran_is_within_10_percent(prediction: Prediction) -> None:
    assert prediction.predicted_gib == pytest.approx(prediction.point["memory_gib"], rel=0.10)


def test_typical_runs_are_slower_and_inside_their_own_range() -> None:
    inside = [point.predicted.contains(point.tokens) for point in TYPICAL]
    assert sum(inside) >= 0.8 * len(TYPICAL)
    assert statistics.median(point.ratio for point in TYPICAL) == pytest.approx(1, abs=0.1)


def test_the_documentation_has_the_table_of_this_version() -> None:
    from pathlib import Path

    docs = (Path(__file__).parents[3] / "docs" / "plan-published.md").read_text()
    for runs, points in ((Runs.TUNED, TUNED), (Runs.TYPICAL, TYPICAL)):
        assert table(points) in docs, f"python -m benchmarks sizing_published has the {runs} rows"
