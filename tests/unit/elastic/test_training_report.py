"""Reports of steps: what is written to the progress file is what is read."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.elastic.progress import StepReporter, TrainingReporter, read_progress
from gangline.elastic.protocol import messages as msg
from gangline.elastic.training_report import (
    ReportedShape,
    StepTimes,
    TrainingReport,
    format_report,
    parse_report,
)

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
    found = parse_report(numbers_of(text), report.device_model)
    assert found == (None if report == TrainingReport() else report)


def test_trainer_checkpointer_and_script_share_the_file(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    environment = {"GANGLINE_PROGRESS_FILE": str(path)}
    TrainingReporter(environment).report(TrainingReport(batch_size=8, device_model="NVIDIA A100"))
    StepReporter(environment).report_step(3)
    progress = read_progress(path, tmp_path / "none")
    assert progress.step == 3
    assert progress.training == TrainingReport(batch_size=8, device_model="NVIDIA A100")


def test_script_may_write_a_few_words_and_nonsense_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.write_text(
        "step 5\nbatch_size 32\ncompute_s 0.25\nsync_s nan\ndata_s -1\naccumulation 0\n"
        "grad_sqr inf\nglobal_batch 1e300\nmodel_layers 12\n"
    )
    report = read_progress(path, tmp_path / "none").training
    assert report == TrainingReport(batch_size=32, compute_s=0.25, model=ReportedShape(layers=12))


def test_file_without_them_reports_nothing(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.write_text("step 5\n")
    assert read_progress(path, tmp_path / "none").training is None


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


@pytest.mark.parametrize("kind", [msg.Heartbeat, msg.Commands])
def test_releases_without_the_new_fields_read_the_messages(
    kind: type[msg.Heartbeat | msg.Commands],
) -> None:
    """A decoder that knows only the fields of the earlier release ignores the others."""
    new = {
        msg.Heartbeat: msg.Heartbeat(node_id=3, node=msg.NodeReport(batch_size=4)),
        msg.Commands: msg.Commands(tuning=msg.Tuning(version=2)),
    }[kind]
    known = [
        (field.name, field.type, field.default)
        for field in msgspec.structs.fields(kind)
        if field.name not in ("node", "tuning") and field.default is not msgspec.NODEFAULT
    ]
    before = msgspec.defstruct(
        "Before", known, tag=kind.__struct_config__.tag, tag_field="type", kw_only=True
    )
    msgspec.msgpack.decode(msgspec.msgpack.encode(new), type=before)
    old = msgspec.msgpack.encode(kind(node_id=3) if kind is msg.Heartbeat else kind())
    assert b"node\xc0" not in old
