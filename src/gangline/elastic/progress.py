"""The progress file, in which a training process reports its steps to its agent.

The file (``GANGLINE_PROGRESS_FILE``) holds lines of a name and a number. Any script may write it:

    Path(os.environ["GANGLINE_PROGRESS_FILE"]).write_text(f"step {step}\\n")

``ElasticTrainer`` and ``Checkpointer`` write it themselves, each its own fixed part of the file.
That is one system call, which costs microseconds a step. Only the standard library is used here.

``TrainingReport``: batch sizes, times, noise, device memory, model. Every value is optional, and
None (or an empty text) means that it is not known. Seconds are means of one optimizer step with all
its micro-steps, over the steps since the last report. Numbers that are negative, except a loss, or
not finite are not believed.
"""

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from gangline.elastic.variables import SUCCESSOR_VARIABLE

DEVICE_MODEL: Final = "device_model"
"""The only text; all other values are numbers."""
MAX_DEVICE_MODEL: Final = 64
_LARGEST_INTEGER: Final = 1 << 53
_LARGEST_NUMBER: Final = 1e30

PROGRESS_VARIABLE: Final = "GANGLINE_PROGRESS_FILE"
METRICS_VARIABLE: Final = "RUNTIME_METRICS_PATH"
"""Names the file to which trainers written for DLRover report their steps."""
_FIRST_AT: Final = "first_at_monotonic"
_SKIPPED: Final = "saves_skipped"
_OVERTAKEN: Final = "saves_overtaken"
_FAILED: Final = "saves_failed"
_LOSS: Final = "loss"
METRIC: Final = "metric."
"""Begins the names of further numbers of the script, such as ``metric.accuracy``."""
MAX_METRICS: Final = 32
MAX_METRIC_NAME: Final = 64
_PART: Final = 128
_TRAINING_AT: Final = 2 * _PART
_TRAINING_PART: Final = 1024
_PHASE_AT: Final = _TRAINING_AT + _TRAINING_PART
_PHASE: Final = "phase"
_SAVE_TIMES_AT: Final = _TRAINING_AT + _TRAINING_PART
_LARGEST: Final = 4096


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


_INTEGERS: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "batch_size": max, "accumulation": max, "global_batch": max, "device_memory_bytes": min,
    "loader_workers": max, "saves_adapt": min, "total_steps": max,
}  # fmt: skip
"""Numbers of a report, and what a node's report has of those of its processes."""
_MAY_BE_ZERO: Final = ("loader_workers", "saves_adapt")
_NUMBERS: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "compute_s": max, "sync_s": min, "data_s": max, "grad_sqr": _mean, "grad_var": _mean,
    "save_s": max, "save_interval_s": max,
}  # fmt: skip


class NodePhase:
    """Names of the phases. The set is open: unknown ones count as waiting."""

    WAITING = "waiting"
    STARTING = "starting"
    CHECKING = "checking"
    TRAINING = "training"
    RESTARTING = "restarting"
    CHECKPOINT = "checkpoint"
    """Training waits while a checkpoint is written or read."""
    HANGING = "hanging"


@dataclass(frozen=True, slots=True)
class SaveCounts:
    """Numbers of saves that did not complete as requested, since the last start."""

    skipped: int = 0
    """Saves for which no memory was free."""
    overtaken: int = 0
    """Steps that were not written to storage because newer ones came first."""
    failed: int = 0
    """Failed writes of a step to storage; each is tried again."""

    @classmethod
    def merge_max(cls, counts: Iterable["SaveCounts"]) -> Self:
        """Combine the counts of processes that save the same steps: the maximum of each number."""
        rows = [(count.skipped, count.overtaken, count.failed) for count in counts]
        return cls(*map(max, *rows, (0, 0, 0))) if rows else cls()


@dataclass(frozen=True, slots=True)
class ReportedShape:
    """Shape of the trained model, as far as the script reports it."""

    params: int | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    vocab: int | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of all steps since the start of the process: Welford's count, mean and squares."""

    count: int
    mean_s: float
    m2: float = 0.0
    """Sum of squared deviations from the mean."""


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """The report of one process, or of a node."""

    batch_size: int | None = None
    """Records of one process in one micro-step."""
    accumulation: int | None = None
    """Micro-steps of one process in an optimizer step."""
    global_batch: int | None = None
    """Records of all processes in an optimizer step."""
    compute_s: float | None = None
    """Computing, without exchanges and without waiting for records."""
    sync_s: float | None = None
    """Exposed exchange of gradients: from the last own gradient to the end of the exchange."""
    data_s: float | None = None
    grad_sqr: float | None = None
    """Squared norm of the true gradient, estimated."""
    grad_var: float | None = None
    """Trace of the covariance of the gradient of one record, estimated."""
    device_peak_bytes: tuple[int, ...] = ()
    """Highest allocated memory of each device since the start."""
    device_model: str = ""
    step_times: StepTimes | None = None
    model: ReportedShape | None = None
    device_memory_bytes: int | None = None
    loader_workers: int | None = None
    """Data loader processes of one process; 0: it loads its records itself."""
    save_s: float | None = None
    """Time for which one checkpoint stops training; a running mean."""
    save_interval_s: float | None = None
    """Time between two checkpoints."""
    saves_adapt: int | None = None
    """1 if the trainer chooses that time from the rate of failures, 0 if the script does."""
    total_steps: int | None = None
    """The step with which the training ends."""
    loss: float | None = None
    """The last loss that the script has reported; this and ``metrics`` may be negative."""
    metrics: tuple[tuple[str, float], ...] = ()
    """Further numbers of the script, ordered by name."""

    @classmethod
    def merge(cls, reports: Sequence["TrainingReport"]) -> Self | None:
        """Combine the reports of a node's processes; None without any.

        All processes wait for the slowest, which waits least in the exchange: so computing and
        waiting for records are maxima, the exchange is a minimum. Estimates of noise are means,
        because each process estimates from its own gradients.
        """
        if not reports:
            return None

        def over(name: str, combine: Callable[[list[Any]], Any]) -> Any:
            values = [value for one in reports if (value := getattr(one, name)) is not None]
            return combine(values) if values else None

        return cls(
            **{name: over(name, combine) for name, combine in {**_INTEGERS, **_NUMBERS}.items()},
            device_peak_bytes=tuple(peak for one in reports for peak in one.device_peak_bytes),
            device_model=next((one.device_model for one in reports if one.device_model), ""),
            step_times=next((one.step_times for one in reports if one.step_times), None),
            model=next((one.model for one in reports if one.model), None),
            loss=over("loss", _mean),
            metrics=_mean_metrics(reports),
        )


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """Progress of one process since its start."""

    step: int | None = None
    first_step: int | None = None
    first_at: float | None = None
    """Time of the first finished step, on this machine's monotonic clock."""
    saved_step: int | None = None
    """The last step that a complete checkpoint holds, in memory or in storage."""
    blocked_s: float = 0.0
    """Time for which training has waited for checkpoints."""
    saves: SaveCounts = SaveCounts()
    phase: str = ""
    """What it does instead of steps: ``evaluation``, ``checkpoint``, or empty."""
    training: TrainingReport | None = None
    """Batch sizes, times of steps and more; None if none is reported."""
    lacks_steps: bool = False
    """True if saves or phases are reported, but nothing announces steps. An empty file does."""


class _FilePart:
    """One writer's fixed part of the file; without a file it does nothing.

    The file is created by the first report: an empty one announces steps.
    """

    def __init__(self, start: int, size: int, environment: Mapping[str, str]) -> None:
        self._at, self._size, self._file = start, size, -1
        self._path = environment.get(PROGRESS_VARIABLE, "")

    def write(self, text: str) -> None:
        if self._file < 0 and self._path:
            with contextlib.suppress(OSError):
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if self._file >= 0:
            with contextlib.suppress(OSError):  # a full disk must not end the training
                os.pwrite(self._file, text.ljust(self._size - 1).encode() + b"\n", self._at)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class StepReporter:
    """Reports finished steps."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._part = _FilePart(0, _PART, environment)
        self._part.write("\n")
        # A successor has no first step of its own: the training has not begun with it.
        self._first = "\n" if SUCCESSOR_VARIABLE in environment else ""

    def report_step(self, step: int) -> None:
        """Report that a step is finished."""
        if not self._first:
            self._first = f"first_step {step}\n{_FIRST_AT} {time.monotonic():.3f}"
        self._part.write(f"step {step}\n{self._first}\n")


class SaveReporter:
    """Reports saved steps, and the time for which training has waited for checkpoints."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._part = _FilePart(_PART, _PART, environment)
        self._times_part = _FilePart(_SAVE_TIMES_AT, _PART, environment)
        self._blocked_s, self._saved = 0.0, ""
        self._saves = SaveCounts()
        self._write_lock = threading.Lock()

    def report_saved(self, step: int) -> None:
        """Report that a complete checkpoint holds this step."""
        self._saved = f"saved_step {step}\n"
        self._write()

    def report_blocked(self, seconds: float) -> None:
        """Add time for which training has waited for checkpoints."""
        self._blocked_s += seconds
        self._write()

    def report_times(self, save_s: float, interval_s: float | None, *, adapts: bool) -> None:
        """Report the time for which a save stops training, and the time between two saves.

        ``adapts`` is true if that time follows from the rate of failures.
        """
        interval = "" if interval_s is None else f"save_interval_s {interval_s:.6g}\n"
        self._times_part.write(f"save_s {save_s:.6g}\nsaves_adapt {int(adapts)}\n{interval}")

    def report_counts(self, saves: SaveCounts) -> None:
        """Report the numbers of saves that did not complete."""
        if saves != self._saves:
            self._saves = saves
            self._write()

    def _write(self) -> None:
        with self._write_lock:  # a save may complete in another thread
            saves = self._saves
            counts = {_SKIPPED: saves.skipped, _OVERTAKEN: saves.overtaken, _FAILED: saves.failed}
            more = "".join(f"{name} {number}\n" for name, number in counts.items() if number)
            self._part.write(f"{self._saved}blocked_s {self._blocked_s:.3f}\n{more}")


class PhaseReporter:
    """Reports phases without steps, which have time-outs of their own."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._part = _FilePart(_PHASE_AT, _PART, environment)

    @contextlib.contextmanager
    def report_phase(self, phase: str) -> Iterator[None]:
        """Report ``evaluation`` or ``checkpoint`` while the block runs.

        Example:
            with PhaseReporter().report_phase("evaluation"):
                evaluate(model)
        """
        self._part.write(f"{_PHASE} {phase}\n")
        try:
            yield
        finally:
            self._part.write("\n")


class TrainingReporter:
    """Reports batch sizes, times of steps and more."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._part = _FilePart(_TRAINING_AT, _TRAINING_PART, environment)
        self.is_enabled = bool(environment.get(PROGRESS_VARIABLE))
        """False if no agent reads the reports."""

    def report(self, report: TrainingReport) -> None:
        """Replace the last report."""
        self._part.write(format_report(report))


def read_progress(progress: Path, metrics: Path) -> WorkerProgress:
    """Read the progress of a process; invalid lines are ignored."""
    text = _text(progress)
    numbers = _numbers(text)
    texts = first_line((DEVICE_MODEL, _PHASE), text)
    device_model = texts.get(DEVICE_MODEL, "")
    step = _integer(numbers, "step")
    if step is None:
        step = _dlrover_step(_text(metrics))
    # The part of steps comes first. Without a writer of steps it is a hole.
    lacks_steps = step is None and text.startswith("\0")
    if step is None:
        step = _integer(numbers, "saved_step")
    return WorkerProgress(
        step=step,
        first_step=_integer(numbers, "first_step"),
        first_at=numbers.get(_FIRST_AT),
        saved_step=_integer(numbers, "saved_step"),
        blocked_s=numbers.get("blocked_s", 0.0),
        saves=SaveCounts(
            *(_integer(numbers, name) or 0 for name in (_SKIPPED, _OVERTAKEN, _FAILED))
        ),
        phase=texts.get(_PHASE, ""),
        training=parse_report(numbers, device_model),
        lacks_steps=lacks_steps,
    )


def format_report(report: TrainingReport) -> str:
    """Return the lines of the progress file: a name and a value each."""
    lines: dict[str, object] = {
        name: value
        for name in (*_INTEGERS, *_NUMBERS, _LOSS)
        if (value := getattr(report, name)) is not None
    }
    if report.device_peak_bytes:
        lines["device_peak_bytes"] = max(report.device_peak_bytes)
    if report.step_times is not None:
        times = report.step_times
        lines |= {"steps_timed": times.count, "step_mean_s": times.mean_s, "step_m2": times.m2}
    if report.model is not None:
        shape = {f"model_{name}": getattr(report.model, name) for name in _SHAPE}
        lines |= {name: value for name, value in shape.items() if value is not None}
    if report.device_model:
        lines[DEVICE_MODEL] = _one_line(report.device_model)
    text = "".join(f"{name} {value}\n" for name, value in lines.items())
    for name, value in report.metrics:
        line = f"{METRIC}{''.join(name.split())} {value}\n"
        if len((text + line).encode()) < _TRAINING_PART:  # what follows is another writer's part
            text += line
    return text


def parse_report(numbers: Mapping[str, float], device_model: str = "") -> TrainingReport | None:
    """Read the values of one process; None if it reports none of them."""

    def number(name: str) -> float | None:
        value = numbers.get(name)
        return value if value is not None and 0 <= value < _LARGEST_NUMBER else None

    def integer(name: str, least: int = 1) -> int | None:
        value = number(name)
        return int(value) if value is not None and least <= value < _LARGEST_INTEGER else None

    peak, timed, mean_s = (
        integer("device_peak_bytes"),
        integer("steps_timed"),
        number("step_mean_s"),
    )
    loss = numbers.get(_LOSS)
    shape = ReportedShape(**{name: integer(f"model_{name}") for name in _SHAPE})
    values: dict[str, Any] = {name: number(name) for name in _NUMBERS}
    values |= {name: integer(name, least=int(name not in _MAY_BE_ZERO)) for name in _INTEGERS}
    report = TrainingReport(
        **values,
        device_peak_bytes=() if peak is None else (peak,),
        device_model=_one_line(device_model),
        step_times=StepTimes(timed, mean_s, number("step_m2") or 0.0) if timed and mean_s else None,
        model=shape if shape != ReportedShape() else None,
        loss=loss if loss is not None and abs(loss) < _LARGEST_NUMBER else None,
        metrics=_metrics(numbers),
    )
    return report if report != NOTHING else None


def _metrics(numbers: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    named = {
        name.removeprefix(METRIC): value
        for name, value in numbers.items()
        if name.startswith(METRIC) and abs(value) < _LARGEST_NUMBER
    }
    usable = (pair for pair in sorted(named.items()) if 0 < len(pair[0]) <= MAX_METRIC_NAME)
    return tuple(usable)[:MAX_METRICS]


def _mean_metrics(reports: Iterable[TrainingReport]) -> tuple[tuple[str, float], ...]:
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.metrics:
            values.setdefault(name, []).append(value)
    return tuple((name, _mean(values[name])) for name in sorted(values))[:MAX_METRICS]


NOTHING: Final = TrainingReport()
_SHAPE = tuple(field.name for field in fields(ReportedShape))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_DEVICE_MODEL]


def first_line(names: Iterable[str], text: str) -> dict[str, str]:
    """Return the texts of the lines that begin with one of these names."""
    texts = {}
    for line in text.replace("\0", " ").splitlines():
        name, _, rest = line.strip().partition(" ")
        if name in names:
            texts[name] = rest
    return texts


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            # Of a file that a script appends to, the end has the last values.
            start = max(0, file.seek(0, os.SEEK_END) - _LARGEST)
            file.seek(start)
            text = file.read(_LARGEST).decode(errors="replace")
            # Half a line is another one: of ``saved_step 5`` it could be ``step 5``.
            return text.partition("\n")[2] if start else text
    except OSError:
        return ""


def _numbers(text: str) -> dict[str, float]:
    numbers = {}
    for line in text.replace("\0", " ").splitlines():
        name, _, number = line.strip().partition(" ")
        with contextlib.suppress(ValueError):
            numbers[name] = float(number)
    return numbers


def _integer(numbers: Mapping[str, float], name: str) -> int | None:
    number = numbers.get(name)
    return int(number) if number is not None and abs(number) < 1 << 53 else None


def _dlrover_step(text: str) -> int | None:
    try:
        step = json.loads(text)["step"]
    except (ValueError, KeyError, TypeError):
        return None  # absent, or incomplete
    return step if isinstance(step, int) else None
