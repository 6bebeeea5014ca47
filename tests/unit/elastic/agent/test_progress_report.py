"""Progress reports of a node, from the progress files of its workers."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.elastic.agent.progress_report import ProgressTracker
from gangline.elastic.progress import (
    PhaseReporter,
    SaveReporter,
    StepReporter,
    WorkerProgress,
    read_progress,
)
from gangline.elastic.training_report import TrainingReport


@pytest.fixture
def book() -> ProgressTracker:
    return ProgressTracker(1, 0, since=100.0, is_first=True, reports_steps=False)


def test_trainer_and_checkpointer_share_the_file(tmp_path):
    path = tmp_path / "progress"
    environment = {"GANGLINE_PROGRESS_FILE": str(path)}
    steps, saves = StepReporter(environment), SaveReporter(environment)
    saves.report_blocked(0.25)
    saves.report_saved(9)
    assert (
        read_progress(path, tmp_path / "none").step == 9
    )  # a loaded checkpoint counts as the step reached
    for step in (10, 11, 12):
        steps.report_step(step)
    saves.report_blocked(0.5)
    progress = read_progress(path, tmp_path / "none")
    assert (progress.step, progress.first_step, progress.saved_step, progress.blocked_s) == (
        12,
        10,
        9,
        0.75,
    )


def test_scripts_may_write_the_file_or_report_as_for_dlrover(tmp_path):
    path, metrics = tmp_path / "progress", tmp_path / "metrics"
    assert read_progress(path, metrics) == WorkerProgress()
    metrics.write_text(json.dumps({"step": 4, "timestamp": 1}))
    assert read_progress(path, metrics).step == 4
    path.write_text("step 5\nwhatever\nstep x\n\0\0")
    assert read_progress(path, metrics).step == 5


def test_file_with_saves_and_phases_only_lacks_steps(tmp_path):
    path, metrics = tmp_path / "progress", tmp_path / "metrics"
    environment = {"GANGLINE_PROGRESS_FILE": str(path)}
    saves = SaveReporter(environment)
    assert not path.exists(), "an empty file would announce steps"
    saves.report_saved(3)
    with PhaseReporter(environment).report_phase("evaluation"):
        seen = read_progress(path, metrics)
    assert (seen.lacks_steps, seen.step, seen.phase) == (True, 3, "evaluation")
    reporter = StepReporter(environment)
    assert not read_progress(path, metrics).lacks_steps
    reporter.report_step(4)
    assert not read_progress(path, metrics).lacks_steps
    path.write_text("")
    assert not read_progress(path, metrics).lacks_steps


def test_missing_progress_file_is_ignored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nowhere = tmp_path / "gone" / "progress"
    StepReporter({}).report_step(1)
    SaveReporter({"GANGLINE_PROGRESS_FILE": str(nowhere)}).report_saved(1)
    assert list(tmp_path.iterdir()) == []
    assert read_progress(nowhere, tmp_path / "none") == WorkerProgress()


def test_node_step_is_minimum_of_workers(book):
    progress = [
        WorkerProgress(12, 1, 103.0, 10, 0.5),
        WorkerProgress(11, 1, 104.0, 9, 0.7),
        WorkerProgress(),
    ]
    report = book.report(progress, 110.0, None)
    assert (report.step, report.first_step, report.checkpoint_step) == (11, 1, 9)
    assert report.spent_s == {"starting": 4.0, "checkpoint": 0.7}
    assert book.report([WorkerProgress(16)], 112.0, None).steps_per_s == pytest.approx(2.5)


def test_script_without_steps_counts_as_training(book):
    assert book.report([WorkerProgress()], 160.0, None).spent_s == {}


def test_restarted_script_counts_as_starting_until_its_first_step():
    book = ProgressTracker(1, 0, since=100.0, is_first=False, reports_steps=True)
    assert book.report([WorkerProgress()], 102.0, None).spent_s == {"restarting": 2.0}


def test_a_hang_counts_from_the_last_progress(book):
    book.hung_since = 130.0
    report = book.report([WorkerProgress(5)], 190.0, None)
    assert (report.phase, report.spent_s["hanging"]) == ("hanging", 60.0)


_SECONDS = st.floats(allow_nan=False, allow_infinity=False, width=32)


@settings(deadline=None)
@given(st.lists(st.tuples(_SECONDS, _SECONDS), min_size=1), st.floats(0, 1e6))
def test_lost_time_never_exceeds_attempt_duration(seconds, passed):
    book = ProgressTracker(1, 0, since=100.0, is_first=True, reports_steps=True, hung_since=50.0)
    progress = [WorkerProgress(5, 1, first_at, None, blocked_s) for first_at, blocked_s in seconds]
    report = book.report(progress, 100.0 + passed, None)
    assert all(0 < seconds <= passed + 0.001 for seconds in report.spent_s.values())


def test_first_step_time_is_on_the_shared_monotonic_clock(tmp_path):
    path = tmp_path / "progress"
    before = time.monotonic()
    StepReporter({"GANGLINE_PROGRESS_FILE": str(path)}).report_step(1)
    first_at = read_progress(path, tmp_path / "none").first_at
    assert first_at is not None
    assert before - 0.001 <= first_at <= time.monotonic() + 0.001


def test_file_that_is_empty_for_a_moment_changes_nothing(book):
    training = TrainingReport(batch_size=8)
    first = book.report([WorkerProgress(5, 1, training=training)], 110.0, None)
    assert first.training == training
    empty = book.report([WorkerProgress()], 116.0, None)
    assert (empty.step, empty.first_step, empty.training) == (5, 1, training)
    assert "starting" not in empty.spent_s


def test_steps_are_detailed_every_few_seconds_and_at_the_end(book):
    workers = [WorkerProgress(1, 1, training=TrainingReport(batch_size=8))]
    detailed = [book.report(workers, 100.0 + second, None).is_detailed for second in range(11)]
    assert [second for second in range(11) if detailed[second]] == [0, 5, 10]
    changed = [WorkerProgress(2, 1, training=TrainingReport(batch_size=4))]
    assert book.report(changed, 111.0, None).is_detailed, "a setting has changed"
    assert not book.report(changed, 112.0, None).is_detailed
    last = book.report(workers, 113.0, None, is_last=True)
    assert last.is_detailed
    assert last.training == TrainingReport(batch_size=8)
