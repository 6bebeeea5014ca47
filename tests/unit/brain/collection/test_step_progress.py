"""Segments from step numbers: of files, of reports of a training."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gangline.api.jobs.progress import ReportedMetric, TrainerStatus
from gangline.api.jobs.training_facts import GOOD, WARM_UP, SegmentFacts
from gangline.brain.collection.measurements import (
    ReportedStep,
    StepProgress,
    reported_step,
    written_steps,
)
from gangline.brain.record.recorder import read_step

MINUTE_MS = 60_000


def segments(steps: list[int], workers: list[int] | None = None) -> list[SegmentFacts]:
    """What step numbers give, one a minute."""
    reported = [ReportedStep(minute * MINUTE_MS, step) for minute, step in enumerate(steps)]
    counts = workers or [2] * len(steps)
    return StepProgress().add(reported[::-1], lambda at_ms: counts[at_ms // MINUTE_MS])


def test_first_minute_is_warm_up_and_then_five_minutes_are_a_segment() -> None:
    warm, first, second = segments([10 * minute for minute in range(12)])
    assert (warm.quality, warm.since, warm.until) == (WARM_UP, 0, MINUTE_MS)
    assert (first.quality, first.nodes, first.steps) == (GOOD, 2, 50)
    assert first.step_seconds.mean == 6
    assert (second.since, second.round) == (first.until, first.round)


@pytest.mark.parametrize(
    ("steps", "workers"),
    [([30, 60, 90, 120, 10, 40, 70], None), ([30, 60, 90, 120, 150, 180, 210], [2] * 4 + [3] * 3)],
    ids=["went back to a checkpoint", "another worker"],
)
def test_what_was_open_is_dropped(steps: list[int], workers: list[int] | None) -> None:
    found = segments(steps, workers)
    assert [(s.quality, s.round, s.since // MINUTE_MS) for s in found] == [
        (WARM_UP, 0, 0),
        (WARM_UP, 1, 4),
    ]


def test_a_time_without_steps_or_workers_is_no_segment() -> None:
    assert segments([5] * 20) == []
    assert segments([10 * minute for minute in range(12)], [0] * 12) == []


def test_a_clock_that_was_ahead_stops_nothing() -> None:
    progress = StepProgress()
    for ahead_ms in (60 * MINUTE_MS, 0):
        times = range(ahead_ms, ahead_ms + 12 * MINUTE_MS, MINUTE_MS)
        steps = [ReportedStep(at_ms, 10 * number) for number, at_ms in enumerate(times)]
        assert len(progress.add(steps, lambda _: 2)) == 3


def test_steps_of_event_files_are_no_numbers_of_epochs() -> None:
    scalars = [(1, 100, "loss", 1.0), (2, 1, "train/epoch_loss", 1.0), (3, 0, "loss", 1.0)]
    assert list(written_steps(scalars)) == [ReportedStep(1, 100)]


def test_step_of_a_report() -> None:
    at = datetime(2026, 11, 23, tzinfo=UTC)
    metrics = [ReportedMetric("loss", "0.1"), ReportedMetric("global_step", "120")]
    assert reported_step(TrainerStatus(metrics=metrics, last_updated_time=at)) == ReportedStep(
        round(at.timestamp() * 1000), 120
    )
    wrong = [ReportedMetric("step", value) for value in ("nan", "many", "-1", "1e300")]
    for metric in wrong:
        assert reported_step(TrainerStatus(metrics=[metric], last_updated_time=at)) is None


def test_step_of_a_progress_file(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    assert read_step(path) == []
    os.mkfifo(tmp_path / "pipe")
    assert read_step(tmp_path / "pipe") == []
    path.write_bytes(
        b"step 1\n" * 100_000 + b"\0" * 300 + b"step 7\nloss 0.1\nfirst_step 1\nstep 9\n"
    )
    ((_, step),) = read_step(path)
    assert step == 9
