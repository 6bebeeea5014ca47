"""What a training process reports about its steps: batch sizes, times, noise, device memory, model.

Every value is optional, and None (or an empty text) means that it is not known. Seconds are means
of one optimizer step with all its micro-steps, over the steps since the last report. Numbers that
are negative or not finite are not believed. Only the standard library is used here.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self, TypeVar

DEVICE_MODEL: Final = "device_model"
"""The only text; all other values are numbers."""
MAX_DEVICE_MODEL: Final = 64
_LARGEST_INTEGER: Final = 1 << 53
_LARGEST_NUMBER: Final = 1e30

T = TypeVar("T")


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

    @classmethod
    def merge(cls, reports: Sequence["TrainingReport"]) -> Self | None:
        """Combine the reports of a node's processes; None without any.

        All processes wait for the slowest, which waits least in the exchange: so computing and
        waiting for records are maxima, the exchange is a minimum. Estimates of noise are means,
        because each process estimates from its own gradients.
        """
        if not reports:
            return None

        def over(name: str, combine: Callable[[list[Any]], T]) -> T | None:
            values = [value for one in reports if (value := getattr(one, name)) is not None]
            return combine(values) if values else None

        return cls(
            batch_size=over("batch_size", max),
            accumulation=over("accumulation", max),
            global_batch=over("global_batch", max),
            compute_s=over("compute_s", max),
            sync_s=over("sync_s", min),
            data_s=over("data_s", max),
            grad_sqr=over("grad_sqr", _mean),
            grad_var=over("grad_var", _mean),
            device_peak_bytes=tuple(peak for one in reports for peak in one.device_peak_bytes),
            device_model=next((one.device_model for one in reports if one.device_model), ""),
            step_times=next((one.step_times for one in reports if one.step_times), None),
            model=next((one.model for one in reports if one.model), None),
            device_memory_bytes=over("device_memory_bytes", min),
            loader_workers=over("loader_workers", max),
            save_s=over("save_s", max),
            save_interval_s=over("save_interval_s", max),
            saves_adapt=over("saves_adapt", min),
        )


NOTHING: Final = TrainingReport()


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


_INTEGERS = (
    "batch_size",
    "accumulation",
    "global_batch",
    "device_memory_bytes",
    "loader_workers",
    "saves_adapt",
)
_NUMBERS = (
    "compute_s", "sync_s", "data_s", "grad_sqr", "grad_var", "save_s", "save_interval_s",
)  # fmt: skip
_SHAPE = tuple(field.name for field in fields(ReportedShape))


def format_report(report: TrainingReport) -> str:
    """Return the lines of the progress file: a name and a value each."""
    lines: dict[str, object] = {
        name: value
        for name in (*_INTEGERS, *_NUMBERS)
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
    return "".join(f"{name} {value}\n" for name, value in lines.items())


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
    shape = ReportedShape(**{name: integer(f"model_{name}") for name in _SHAPE})
    report = TrainingReport(
        batch_size=integer("batch_size"),
        accumulation=integer("accumulation"),
        global_batch=integer("global_batch"),
        compute_s=number("compute_s"),
        sync_s=number("sync_s"),
        data_s=number("data_s"),
        grad_sqr=number("grad_sqr"),
        grad_var=number("grad_var"),
        device_peak_bytes=() if peak is None else (peak,),
        device_model=_one_line(device_model),
        step_times=StepTimes(timed, mean_s, number("step_m2") or 0.0) if timed and mean_s else None,
        model=shape if shape != ReportedShape() else None,
        device_memory_bytes=integer("device_memory_bytes"),
        loader_workers=integer("loader_workers", least=0),
        save_s=number("save_s"),
        save_interval_s=number("save_interval_s"),
        saves_adapt=integer("saves_adapt", least=0),
    )
    return report if report != NOTHING else None


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
