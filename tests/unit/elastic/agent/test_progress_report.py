"""Progress reports of a node, from the progress files of its workers."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.elastic.agent.progress_report import ProgressTracker
from gangline.elastic.progress import (
    PhaseReporter,
    ReportedShape,
    SaveReporter,
    StepReporter,
    StepTimes,
    TrainingReport,
    TrainingReporter,
    WorkerProgress,
    format_report,
    parse_report,
    read_progress,
)


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


@pytest.mark.parametrize("cut", range(20))
def test_file_of_any_length_is_read_from_its_end(tmp_path, cut):
    """A script appends; where the read part begins, half a line must not be another report."""
    path = tmp_path / "progress"
    lines = "".join(f"saved_step {number}\n" for number in range(1000, 2000))
    path.write_text(lines + "y" * cut)
    seen = read_progress(path, tmp_path / "none")
    assert (seen.step, seen.saved_step) == (1999, 1999)


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


COUNT = st.none() | st.integers(1, 1 << 50)
NUMBER = st.none() | st.floats(0, 1e20)
TEXT = st.text(st.characters(codec="ascii", exclude_categories=["C", "Z"]), min_size=1, max_size=20)
SHAPES = st.builds(ReportedShape, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT)
REPORTS = st.builds(
    TrainingReport,
    batch_size=COUNT, accumulation=COUNT, global_batch=COUNT, compute_s=NUMBER, sync_s=NUMBER,
    data_s=NUMBER, grad_sqr=NUMBER, grad_var=NUMBER,
    device_peak_bytes=st.just(()) | st.tuples(st.integers(1, 1 << 45)),
    device_model=st.just("") | TEXT,
    step_times=st.none()
    | st.builds(StepTimes, st.integers(1, 1 << 40), st.floats(1e-9, 1e9), st.floats(0, 1e9)),
    model=st.none() | SHAPES.filter(lambda shape: shape != ReportedShape()),
)  # fmt: skip


def numbers_of(text: str) -> dict[str, float]:
    rows = (line.partition(" ") for line in text.splitlines())
    return {name: float(value) for name, _, value in rows if name != "device_model"}


@given(REPORTS)
def test_report_survives_the_progress_file(report: TrainingReport) -> None:
    text = format_report(report)
    assert len(text) < 1024, "the part of the file"
    parsed = parse_report(numbers_of(text), report.device_model)
    assert parsed == (None if report == TrainingReport() else report)


def test_script_may_write_a_few_words_and_nonsense_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.write_text(
        "step 5\nbatch_size 32\ncompute_s 0.25\nsync_s nan\ndata_s -1\naccumulation 0\n"
        "grad_sqr inf\nglobal_batch 1e300\nmodel_layers 12\n"
    )
    report = read_progress(path, tmp_path / "none").training
    assert report == TrainingReport(batch_size=32, compute_s=0.25, model=ReportedShape(layers=12))


def test_node_reports_its_slowest_worker_and_mean_noise() -> None:
    reports = [
        TrainingReport(batch_size=4, compute_s=0.2, sync_s=0.2, grad_var=2.0,
                       device_peak_bytes=(5,)),
        TrainingReport(batch_size=4, compute_s=0.3, sync_s=0.1, grad_var=4.0,
                       device_peak_bytes=(7,)),
    ]  # fmt: skip
    assert TrainingReport.merge(reports) == TrainingReport(
        batch_size=4, compute_s=0.3, sync_s=0.1, grad_var=3.0, device_peak_bytes=(5, 7)
    )
    assert TrainingReport.merge([]) is None


def test_further_numbers_of_scripts_are_means_over_processes_and_stay_in_their_part(tmp_path):
    path, metrics = tmp_path / "progress", tmp_path / "metrics"
    path.write_text("step 5\nmetric.lr -0.5\nmetric.acc 0.25\nmetric.bad nan\nmetric. 1\n")
    training = read_progress(path, metrics).training
    assert training is not None
    assert training.metrics == (("acc", 0.25), ("lr", -0.5))
    merged = TrainingReport.merge([training, TrainingReport(metrics=(("acc", 0.75),))])
    assert merged is not None
    assert merged.metrics == (("acc", 0.5), ("lr", -0.5))
    many = TrainingReport(metrics=tuple((f"number-{n}" * 5, 1.0) for n in range(60)))
    environment = {"GANGLINE_PROGRESS_FILE": str(path)}
    with PhaseReporter(environment).report_phase("evaluation"):
        TrainingReporter(environment).report(many)
        assert read_progress(path, metrics).phase == "evaluation"
